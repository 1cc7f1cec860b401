"""Kinds of pods as numbers, and how much each kind of card is in demand.

Pods and cards are reduced to what prices can be made of. A card has one number, the part of it that is free, in
thousandths: of memory or of cores, whichever is less. A pod asks for a number of cards and the same part of each.

A card's demand is its load when the pods that are expected choose the least wanted that they may have. Pods that may
have any card should leave those alone which other pods need: this load is the price for taking them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.card import Card
from gpuledger.model.request import Demand, phases
from gpuledger.placement.decide import Footprint

WHOLE = 1000
"""Thousandths of a card that no pod is on. A pod that needs the card alone asks for as many."""

Floats = NDArray[np.float32]
Numbers = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Typical:
    """A kind of pod: it needs `cards` cards, and of each what the container needs that asks for most."""

    footprint: Footprint
    cards: int
    demand: Demand | None
    """None for a pod without cards."""
    frequency: float
    """Its part of all arrivals, 0 to 1."""

    def needed_milli(self, card: Card) -> int:
        """Return the thousandths of a card that it needs, more than there are if it can't have the card at all."""
        demand, capacity = self.demand, card.capacity
        if demand is None or not demand.admits(card):
            return WHOLE + 1
        if demand.exclusive:
            return WHOLE
        amounts = demand.amounts_on(capacity)
        if not amounts.fits_in(capacity):
            return WHOLE + 1
        memory = amounts.memory_mib * WHOLE // max(capacity.memory_mib, 1)
        return max(1, memory, amounts.cores * WHOLE // max(capacity.cores, 1))


def typical(footprint: Footprint, frequency: float) -> Typical:
    """Return a kind of pod. Its containers that run at the same time count as if each had cards of its own."""
    if not footprint.shape:
        return Typical(footprint, 0, None, frequency)
    cards = max(sum(footprint.shape[position].cards for position in phase) for phase in phases(footprint.shape))
    most = max(
        footprint.shape, key=lambda demand: (demand.exclusive, demand.memory_mib or 0, demand.cores, demand.cards)
    )
    return Typical(footprint, cards, most, frequency)


class Needs:
    """What each of some kinds of pods needs of a card of each kind."""

    def __init__(self, kinds: Sequence[Card], pods: Sequence[Typical]) -> None:
        self._kinds = kinds  # may grow
        self._pods = pods
        self._known: dict[int, Ints] = {}

    def of(self, kind: int) -> Ints:
        """Return the thousandths that each pod needs of a card of this kind, as `Typical.needed_milli` says."""
        found = self._known.get(kind)
        if found is None:
            needs = [pod.needed_milli(self._kinds[kind]) for pod in self._pods]
            found = self._known[kind] = np.array(needs, dtype=np.int32)
        return found

    def on_average(self, position: int) -> float:
        """Return what one pod needs of a card, the mean over the kinds that it can have; 0 if there are none."""
        needs = [float(self.of(kind)[position]) for kind in range(len(self._kinds))]
        possible = [need for need in needs if need <= WHOLE]
        return sum(possible) / len(possible) if possible else 0.0


LARGEST_LOAD = 3.0
ROUNDS = 20


def loads(demand: Mapping[frozenset[int], float], idle: Sequence[float]) -> list[float]:
    """Return the load of each kind of card: the demand that falls to it, divided by what is idle of it.

    `demand` is, per set of kinds that would do, the expected demand of pods, in any unit; scaled to all that is idle,
    each set's is poured over its kinds like water, where the load is lowest first.
    """
    possible = {kinds: amount for kinds, amount in demand.items() if kinds}
    total = sum(possible.values())
    if not total:
        return [1.0] * len(idle)
    room = [max(amount, 1.0) for amount in idle]
    poured = {kinds: dict.fromkeys(kinds, 0.0) for kinds in possible}
    level = [0.0] * len(idle)  # kind -> what is poured on it by all
    for _ in range(ROUNDS):
        for kinds, amount in possible.items():
            for kind, part in poured[kinds].items():
                level[kind] -= part
            poured[kinds] = _pour(amount * sum(idle) / total, {kind: level[kind] for kind in kinds}, room)
            for kind, part in poured[kinds].items():
                level[kind] += part
    return [min(LARGEST_LOAD, filled / size) for filled, size in zip(level, room, strict=True)]


def _pour(amount: float, level: Mapping[int, float], room: Sequence[float]) -> dict[int, float]:
    """Distribute demand over card models so that all models in use end at equal load (water-filling)."""
    order = sorted(level, key=lambda kind: (level[kind] / room[kind], kind))
    filled = size = 0.0
    load = 0.0
    for place, kind in enumerate(order):
        filled, size = filled + level[kind], size + room[kind]
        load = (filled + amount) / size
        if place + 1 == len(order) or load <= level[order[place + 1]] / room[order[place + 1]]:
            break
    return {kind: max(0.0, load * room[kind] - level[kind]) for kind in order}
