"""The policy `fragmentation`: a pod goes where it takes least from the pods that are to be expected.

The cost of a way is the sum of three things, all in thousandths of a card:

- the *slots* it takes: how much less the node is worth to further pods of each expected kind (`nodes.py`);
- the *remnant* it leaves on a shared card, less than the one that it found (see below);
- the *load* of the kind of card it takes, for pods that could as well have another (`loads`).

What is left of a card is worth what the pods are worth that can still fill it.

This is the cutting-stock problem: pieces, the shares that pods ask for, are demanded in known proportions and cut from
what is left of the cards. The dual of its linear program gives every size a price, and every remnant the worth of its
best filling. A size that few remnants can be cut to, such as 460 of 1000, becomes dear, and a remnant of 540 that no
usual piece fits into well is worth less than its size: shares go where they leave something useful.

All fillings count here, the better the more (a soft maximum at a `TEMPERATURE`), so that small changes of the demand
make no jumps. Prices are raised where a size is cut more often than it is demanded and lowered where it is cut less.

Keeps prices up to date with the mix of pods and with what is idle.

They are rebuilt after some arrivals, in small steps between the questions of the scheduler: no one waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.card import Amounts
from gpuledger.placement.decide import Candidate, Effect, Footprint
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.fragmentation.nodes import (
    WHOLE,
    Effects,
    Needs,
    NodeTable,
    Numbers,
    Slots,
    Typical,
    Worth,
    together,
    typical,
)

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


REMNANT_WEIGHT = 0.1
LOAD_WEIGHT = 0.2


class Prices:
    """Prices made from one look at the cluster and at the mix of pods.

    `loads` are per number of a kind of card, `remnant_worth` per capacity and steps of the grid. `now` is what the
    nodes' slots were worth in version `seen` of their table; what has changed since is found out when it is asked for.
    """

    def __init__(
        self,
        nodes: NodeTable,
        slots: Slots,
        worth: Worth,
        loads: Sequence[float],
        remnant_worth: Mapping[Amounts, Numbers],
        now: Numbers,
        seen: int,
    ) -> None:
        self._nodes = nodes
        self._slots = slots
        self._worth = worth
        self._loads = loads
        self._remnant_worth = remnant_worth
        self._now = now
        self._seen = seen
        self._of_remnant = np.zeros((0, 2))  # remnant -> its worth, and what taking all of it costs by its kind's load

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Numbers:
        """Return the cost of each way, in thousandths of a card."""
        candidates = together(effects)
        self._sync()
        lost = self._now[candidates.nodes] - self._worth.of(self._slots.after(candidates, footprint.host))
        remnant, load = self._given(candidates)
        shared = not all(demand.exclusive for demand in footprint.shape)
        costs: Numbers = lost + LOAD_WEIGHT * load + (REMNANT_WEIGHT * remnant if shared else 0)
        return costs

    def _sync(self) -> None:
        """Apply what has changed of the nodes, and remnants that were not seen before."""
        self._slots.sync()
        changed = self._nodes.changed_since(self._seen)
        self._seen = self._nodes.version
        if self._nodes.size > len(self._now):
            self._now = np.pad(self._now, (0, 2 * self._nodes.size - len(self._now)))
        self._now[changed] = self._worth.of(self._slots.of(changed))
        new = self._nodes.remnants.found[len(self._of_remnant) :]
        if new:
            values = [self._value(kind, milli) for kind, milli in new]
            self._of_remnant = np.concatenate([self._of_remnant, values])

    def _given(self, candidates: Effects) -> Numbers:
        """Return, for each way, what the cards are worth that it uses, less what they are worth afterwards."""
        given: Numbers = (self._of_remnant[candidates.before] - self._of_remnant[candidates.after]).sum(axis=1).T
        return given

    def _value(self, kind: int, milli: int) -> tuple[float, float]:
        kinds = self._nodes.remnants.kinds
        known = self._remnant_worth.get(kinds[kind].capacity) if kinds else None
        load = self._loads[kind] if kind < len(self._loads) else 1.0
        return (0.0 if known is None else float(known[milli // GRID])), load * milli


LARGEST_LOAD = 3.0
POURED_ROUNDS = 20


def loads(demand: Mapping[frozenset[int], float], idle: Sequence[float]) -> list[float]:
    """Return the load of each kind of card: the demand that falls to it, divided by what is idle of it.

    `demand` is, per set of kinds that would do, the expected demand of pods, in any unit; scaled to all that is idle,
    each set's is poured over its kinds like water, where the load is lowest first. Pods that may have any card should
    leave those alone which other pods need: this load is the price for taking them.
    """
    possible = {kinds: amount for kinds, amount in demand.items() if kinds}
    total = sum(possible.values())
    if not total:
        return [1.0] * len(idle)
    room = [max(amount, 1.0) for amount in idle]
    poured = {kinds: dict.fromkeys(kinds, 0.0) for kinds in possible}
    level = [0.0] * len(idle)  # kind -> what is poured on it by all
    for _ in range(POURED_ROUNDS):
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


REFRESHED_EVERY = 100
"""Arrivals between two refreshes; at the start, when each pod tells much of the mix, fewer."""

STEPS_AT_ONCE, FIRST_STEPS_AT_ONCE = 1, 4
"""Steps of a refresh that are done at each question. 5,000 nodes take some 130, of a fraction of a millisecond; the
first refresh takes 400 more."""

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
        self._next = mix.first_look  # number of arrivals at which the next refresh begins
        self._work: Iterator[None] | None = None  # the steps of a refresh that are left, if one is under way

    @property
    def version(self) -> int:
        """Number of the prices that are used now."""
        return self._version

    def tick(self) -> None:
        """Do some steps of a refresh, if one is due or under way; the whole first one if the mix is known already."""
        if self._work is None and self._mix.arrivals >= self._next and self._begin():
            self._next = self._mix.next_look(REFRESHED_EVERY)
            self._work = self._refresh()
        if self._work is not None:
            first = FIRST_STEPS_AT_ONCE if self._mix.first_look else None
            steps = STEPS_AT_ONCE if self._version else first
            if sum(1 for _ in islice(self._work, steps)) != steps:
                self._work = None

    def as_if(self, nodes: Collection[NodeRoom]) -> AbstractContextManager[None]:
        """Let nodes have other rooms than in the ledger, while this lasts."""
        return self._nodes.as_if(nodes)

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does to its node."""
        self._nodes.sync()
        return self._nodes.effect(footprint, candidate)

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Sequence[float]:
        """Return the cost of each way, in thousandths of a card; before the first prices nothing costs anything."""
        if self._version == 0:
            return [0.0] * len(effects)
        self._nodes.sync()
        return self._prices.costs(footprint, effects).tolist()  # type: ignore[no-any-return]

    def _begin(self) -> bool:
        """Take the mix as it is now; return whether there is anything to make prices of."""
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
        seen, now = self._nodes.version, np.zeros(0)
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
