"""Keeps prices up to date with the mix of pods and with what is idle.

They are rebuilt after some arrivals, in small steps between the questions of the scheduler: no one waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpuledger.ledger.book import Ledger
from gpuledger.model.amounts import Amounts
from gpuledger.placement.candidates import Candidate, Footprint
from gpuledger.placement.decide import Effect
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.fragmentation.model_load import loads
from gpuledger.placement.fragmentation.nodes import NodeTable
from gpuledger.placement.fragmentation.prices import Prices
from gpuledger.placement.fragmentation.remnant_worth import GRID, LENGTH, RemnantWorth
from gpuledger.placement.fragmentation.slots import Slots, Worth
from gpuledger.placement.fragmentation.typical import WHOLE, Needs, Numbers, Typical, typical

REFRESHED_EVERY = 100
"""Arrivals between two refreshes; at the start, when each pod tells much of the mix, fewer."""

STEPS_AT_ONCE = 1
"""Steps of a refresh that are done at each question. 5,000 nodes take some 130, of a fraction of a millisecond."""

NODES_AT_ONCE = 128
"""Nodes that are worked on in one step."""


class FragmentationPrices:
    """Prices that follow the cluster."""

    def __init__(self, ledger: Ledger, mix: Mix) -> None:
        self._mix = mix
        self._nodes = NodeTable(ledger)
        self._pods: list[Typical] = []
        self._needs = Needs(self._nodes.remnants.kinds, [])
        self._slots = Slots(self._nodes, [], self._needs)
        self._remnant_worth: dict[Amounts, RemnantWorth] = {}  # capacity of a card -> worth of its remnants
        self._prices = Prices(self._nodes, self._slots, Worth(np.zeros(0), 0.0), [], {}, np.zeros(0), seen=-1)
        self._version = 0
        self._next = 0  # number of arrivals at which the next refresh begins
        self._work: Iterator[None] | None = None  # the steps of a refresh that are left, if one is under way

    @property
    def version(self) -> int:
        """Number of the prices that are used now."""
        return self._version

    def tick(self) -> None:
        """Do some steps of a refresh, if one is due or under way. The very first one is done at once."""
        if self._work is None and self._mix.arrivals >= self._next and self._begin():
            self._next = self._mix.next_look(REFRESHED_EVERY)
            self._work = self._refresh()
        if self._work is not None:
            steps = None if self._version == 0 else STEPS_AT_ONCE
            if sum(1 for _ in islice(self._work, steps)) != steps:
                self._work = None

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does to its node."""
        self._nodes.sync()
        return self._nodes.effect(footprint, candidate)

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Sequence[float]:
        """Return the cost of each way, in thousandths of a card."""
        self._nodes.sync()
        return self._prices.costs(footprint, effects).tolist()  # type: ignore[no-any-return]

    def _begin(self) -> bool:
        """Take the mix as it is now; tell whether there is anything to make prices of."""
        pods = [typical(each.footprint, each.frequency) for each in self._mix.expected() if each.footprint.shape]
        if [pod.footprint for pod in pods] != [pod.footprint for pod in self._pods]:
            self._needs = Needs(self._nodes.remnants.kinds, pods)
            self._slots = Slots(self._nodes, pods, self._needs)
        self._pods = pods
        return bool(pods)

    def _refresh(self) -> Iterator[None]:
        """Make new prices, a step at a time, and take them into use at the end.

        The cluster changes between the steps. What has changed since the worth of the nodes was begun is found out
        by the new prices; before, it makes them a little older, and no more.
        """
        pods, slots, needs = self._pods, self._slots, self._needs
        in_all = np.zeros(len(pods))
        for some in self._parts():
            in_all += slots.of(some).sum(axis=0)
            yield
        left = self._left_by_kind()
        idle = left @ np.arange(WHOLE + 1)
        yield from self._refresh_remnants(left)
        frequency = np.array([pod.frequency for pod in pods])
        sizes = slots.sizes()
        worth = slots.worth(frequency, sizes, in_all, float(idle.sum()), self._mix.turnover)
        self._nodes.sync()
        seen, now = self._nodes.seen, np.zeros(0)
        for some in self._parts():
            now = np.append(now, worth.of(slots.of(some)))
            yield
        by_capacity = {capacity: known.worth for capacity, known in self._remnant_worth.items()}
        load = loads(_demand(pods, needs, sizes, len(idle)), idle.tolist())
        self._prices = Prices(self._nodes, slots, worth, load, by_capacity, now, seen)
        self._version += 1

    def _parts(self) -> Iterator[NDArray[np.intp]]:
        """Yield the nodes that there are now, some at once, each time with what is known of them up to date."""
        self._nodes.sync()
        size = self._nodes.size
        for begin in range(0, size, NODES_AT_ONCE):
            self._nodes.sync()
            self._slots.sync()
            yield np.arange(begin, min(begin + NODES_AT_ONCE, size))

    def _left_by_kind(self) -> Numbers:
        """Return how many cards of each kind have 0, 1, ... 1000 thousandths free."""
        remnants = self._nodes.remnants
        left = np.zeros((len(remnants.kinds), WHOLE + 1))
        numbers = np.bincount(self._nodes.cards[: self._nodes.size].ravel(), minlength=len(remnants.found))
        for (kind, milli), number in zip(remnants.found[1:], numbers[1:].tolist(), strict=True):
            left[kind, milli] += number
        return left

    def _refresh_remnants(self, left: Numbers) -> Iterator[None]:
        """Compute the worth of remnants again, for each size of cards by itself: pods need another part of each."""
        kinds = self._nodes.remnants.kinds
        for capacity in dict.fromkeys(card.capacity for card in kinds):
            alike = [kind for kind, card in enumerate(kinds) if card.capacity == capacity and kind < len(left)]
            demand: dict[int, float] = {}
            for position, pod in enumerate(self._pods):
                milli = min(int(self._needs.of(kind)[position]) for kind in alike)
                if milli <= WHOLE:
                    demand[milli] = demand.get(milli, 0.0) + pod.frequency * pod.cards
            by_grid = np.zeros(LENGTH)
            np.add.at(by_grid, np.arange(WHOLE + 1) // GRID, left[alike].sum(axis=0))
            yield from self._remnant_worth.setdefault(capacity, RemnantWorth()).refresh(demand, by_grid)


def _demand(pods: Sequence[Typical], needs: Needs, sizes: Numbers, kinds: int) -> dict[frozenset[int], float]:
    """Return the expected demand by the set of kinds of cards that can meet it."""
    demand: dict[frozenset[int], float] = {}
    for position, pod in enumerate(pods):
        able = frozenset(kind for kind in range(kinds) if needs.of(kind)[position] <= WHOLE)
        demand[able] = demand.get(able, 0.0) + pod.frequency * float(sizes[position])
    return demand
