"""Selectors of a request before its search: compiled, and who pays for them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain

from gpuledger.model.card import Payer
from gpuledger.model.errors import WorkLimitExceeded
from gpuledger.model.request import PodRequest, Shape


def payers_of(shape: Shape) -> tuple[Payer, ...]:
    """Return who pays for the selectors of a shape: nobody for most, and one namespace for the others."""
    return tuple({test.payer for demand in shape for test in demand.wanted.tests if test.payer is not None})


def compiled(request: PodRequest) -> Generator[None, None, None]:
    """Compile the selectors of a request that are not, one at each step.

    Raises BadInput for one that can't be compiled, and WorkLimitExceeded if its namespace has to wait.
    """
    for demand in chain.from_iterable(each.shape for each in request.variants):
        for test in demand.wanted.tests:
            if test.payer is None or test.compile():
                continue
            yield
            if not test.compile():
                raise WorkLimitExceeded(test.payer.why_not())


def why_it_waits(shapes: Iterable[Shape]) -> str:
    """Return why selectors of these shapes can't be evaluated for a while, for people; empty if they can."""
    return next((payer.why_not() for shape in shapes for payer in payers_of(shape) if payer.is_spent), "")
