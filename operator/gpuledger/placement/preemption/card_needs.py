"""The amounts that must be free on one card for some containers of a pod: the rules of `placement.fit`, as numbers.

The search for victims asks this of thousands of sets of pods. So it is worked out once for a card, and what is freed
is then only added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuledger.model.card import NOTHING, Card, total
from gpuledger.model.request import Shape

Numbers = tuple[int, int, int]
"""Memory in MiB, cores in percent of one card's compute, and slots."""


class Need(NamedTuple):
    """The containers' needs on a card that no other pod has alone."""

    free: Numbers
    idle: bool
    """No other pod may be there."""


def need_on(card: Card, shape: Shape, containers: Sequence[int], phases: Sequence[Sequence[int]]) -> Need | None:
    """Return what some containers of a pod, by their position in the shape, need of a card; None if it can't be theirs.

    `phases` are the sets of containers that run at the same time, as `model.request.phases` tells.
    """
    demands = [shape[container] for container in containers]
    if not all(demand.admits(card) for demand in demands):
        return None
    capacity = card.capacity
    peak = demands[0].amounts_on(capacity) if len(demands) == 1 else NOTHING
    for phase in phases if len(demands) > 1 else ():
        there = [shape[container] for container in phase if container in containers]
        if len(there) > 1 and any(demand.exclusive for demand in there):
            return None
        peak = peak.peak(total(demand.amounts_on(capacity) for demand in there))
    if not peak.fits_in(capacity):
        return None
    cores = peak.cores
    if capacity.cores > 0 and any(demand.cores == 0 and not demand.whole for demand in demands):
        cores = max(cores, 1)  # a container that names no cores stays out where others were promised all of them
    return Need((peak.memory_mib, cores, peak.number), any(demand.exclusive for demand in demands))
