"""What is left of a card is worth what the pods are worth that can still fill it.

This is the cutting-stock problem: pieces, the shares that pods ask for, are demanded in known proportions and cut from
what is left of the cards. The dual of its linear program gives every size a price, and every remnant the worth of its
best filling. A size that few remnants can be cut to, such as 460 of 1000, becomes dear, and a remnant of 540 that no
usual piece fits into well is worth less than its size: shares go where they leave something useful.

All fillings count here, the better the more (a soft maximum at a `TEMPERATURE`), so that small changes of the demand
make no jumps. Prices are raised where a size is cut more often than it is demanded and lowered where it is cut less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gpuledger.placement.fragmentation.typical import WHOLE, Numbers

GRID = 10
"""Sizes and remnants are rounded to so many thousandths, sizes up and remnants down."""

TEMPERATURE = 5.0
STEP = 2.5
FIRST_ROUNDS, ROUNDS = 400, 10
"""How often prices are adjusted, at the start and at each refresh."""

LENGTH = WHOLE // GRID + 1


class RemnantWorth:
    """The worth of remnants of one kind of card, in thousandths of a card. Keeps the prices for the next refresh."""

    def __init__(self) -> None:
        self._prices: dict[int, float] = {}  # size in steps of the grid -> its price, in thousandths
        self.worth: Numbers = np.zeros(LENGTH)
        """By free steps of the grid; before the first refresh nothing."""

    def refresh(self, demand: Mapping[int, float], remnants: Numbers) -> Iterator[None]:
        """Adjust prices and worth, a round a step.

        `demand` is, per size in thousandths, how many pieces are expected to each other; `remnants` is the number of
        cards of which 0, 1, ... steps of the grid are free. All that is free is expected to be filled.
        """
        wanted = _by_grid(demand)
        volume = sum(size * GRID * pieces for size, pieces in wanted.items())
        idle = float((remnants * np.arange(LENGTH)).sum()) * GRID
        if not volume or not idle:
            return
        sizes = sorted(wanted)
        pieces = np.array([wanted[size] for size in sizes]) * idle / volume
        prices = np.array([self._prices.get(size, 0.0) for size in sizes])
        for _ in range(ROUNDS if self._prices else FIRST_ROUNDS):
            gains = np.exp((np.array(sizes) * GRID - prices) / TEMPERATURE)
            used = _used(sizes, gains, remnants)
            prices = np.maximum(0, prices + STEP * np.log(np.maximum(used, 1e-9) / np.maximum(pieces, 1e-9)))
            yield
        self._prices |= dict(zip(sizes, prices.tolist(), strict=True))
        gains = np.exp((np.array(sizes) * GRID - prices) / TEMPERATURE)
        self.worth = TEMPERATURE * np.log(_fillings(sizes, gains))


def _by_grid(demand: Mapping[int, float]) -> dict[int, float]:
    wanted: dict[int, float] = {}
    for milli, pieces in demand.items():
        size = -(-milli // GRID)
        wanted[size] = wanted.get(size, 0.0) + pieces
    return wanted


def _fillings(sizes: list[int], gains: Numbers) -> Numbers:
    """Return, per length, the sum over all its fillings of the product of their pieces' gains.

    These are partial sums of the coefficients of the product over sizes s of 1 / (1 - gain x^s).
    """
    exact = np.zeros(LENGTH)
    exact[0] = 1.0
    for size, gain in zip(sizes, gains, strict=True):
        for begin in range(size, LENGTH, size):
            end = min(begin + size, LENGTH)
            exact[begin:end] += gain * exact[begin - size : end - size]
    return np.cumsum(exact)


def _used(sizes: list[int], gains: Numbers, remnants: Numbers) -> Numbers:
    """Return how many pieces of each size all remnants are cut to, on the average over fillings by their gains."""
    fillings = _fillings(sizes, gains)
    share = remnants / fillings
    used = np.zeros(len(sizes))
    for position, (size, gain) in enumerate(zip(sizes, gains, strict=True)):
        with_it = np.zeros(LENGTH)  # per length: the sum over fillings of gains x number of such pieces
        for begin in range(size, LENGTH, size):
            end = min(begin + size, LENGTH)
            with_it[begin:end] = gain * (fillings[begin - size : end - size] + with_it[begin - size : end - size])
        used[position] = share @ with_it
    return used
