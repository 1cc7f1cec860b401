"""The nodes of the ledger as arrays, and the worth of their slots. An update costs what has changed.

The arrays have what is left of cards, CPU and memory. *Slots* are how many more pods of each expected kind a node can
take. A node's worth is the sum over the kinds of pods of weight x slots^0.75. The power says that the last slot of a
kind on a node is worth more than the tenth. The weight is the part of the GPU demand that the kind makes up, divided by
the root of the slots that the cluster has left for it: a kind that few nodes can still take weighs more, and so the
nodes that could take it are left to it. Together that is what keeps whole nodes free for pods with eight cards while
small pods fill what is broken already.

Pods and cards are reduced to what prices can be made of. A card has one number, the part of it that is free, in
thousandths: of memory or of cores, whichever is less. A pod asks for a number of cards and the same part of each.
Remnants, what is left of cards, are numbered: a cluster has few kinds of cards and few remnants that differ to its
pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.card import NOTHING, Amounts, Card
from gpuledger.model.request import Demand, HostAmounts, phases
from gpuledger.model.share import peak_on
from gpuledger.placement.decide import Candidate, Effect, Footprint

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


CardKind = tuple[str, str, str, Amounts]
"""Vendor, model, mode, capacity: cards that are alike to every pod that names none."""

NO_CARD = 0
"""Number of the remnant that stands for no card at all."""


class Remnants:
    """Numbers kinds of cards, and their remnants: (kind of card, free thousandths)."""

    def __init__(self) -> None:
        self.kinds: list[Card] = []
        """Kind's number -> a card of it that has no name."""
        self.found: list[tuple[int, int]] = [(NO_CARD, 0)]
        """Remnant's number -> (number of the card's kind, free thousandths)."""
        self._kind_numbers: dict[CardKind, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}

    def now(self, room: Room) -> int:
        """Return the number of what is left of a card."""
        return self._number(self.kind(room.card), _free_milli(room))

    def after(self, remnant: int, room: Room, taken: Amounts, alone: bool) -> int:
        """Return the number of what will be left of a card, now `remnant`, when a pod has taken this.

        A pod that is `alone` there leaves nothing.
        """
        kind, _ = self.found[remnant]
        return self._number(kind, 0 if alone else _part_milli(room.free - taken, room.card.capacity))

    def kind(self, card: Card) -> int:
        """Return the number of a card's kind."""
        kind = (card.vendor, card.model, card.mode, card.capacity)
        number = self._kind_numbers.get(kind)
        if number is None:
            number = self._kind_numbers[kind] = len(self.kinds)
            self.kinds.append(replace(card, uuid="", node_name="", numa_node=None, links={}))
        return number

    def _number(self, kind: int, milli: int) -> int:
        key = (kind, milli)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.found)
            self.found.append(key)
        return number


def _free_milli(room: Room) -> int:
    """Return the thousandths of a card that pods can still get."""
    return WHOLE if room.idle else 0 if room.shut else _part_milli(room.free, room.card.capacity)


def _part_milli(free: Amounts, capacity: Amounts) -> int:
    """Return what is free of a card that a pod is on: of memory or of cores, whichever is less."""
    if free.number < 1:
        return 0
    memory = free.memory_mib * WHOLE // max(capacity.memory_mib, 1)
    cores = free.cores * WHOLE // capacity.cores if capacity.cores else WHOLE
    return max(0, min(memory, cores, WHOLE - 1))


UNLIMITED = 1e12
"""CPU and memory of a node of which they are not known: more than any pod asks for, so they never count there."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Some ways of one ask, a row each: the node's number, and the remnants of its cards before and after."""

    nodes: Ints
    before: Ints
    after: Ints
    """Filled up with the remnant of no card."""


def together(effects: Sequence[Effect]) -> Effects:
    """Return effects as arrays."""
    width = max((len(effect.changes) for effect in effects), default=0)
    padded = [effect.changes + ((NO_CARD, NO_CARD),) * (width - len(effect.changes)) for effect in effects]
    both = np.array(padded, dtype=np.int32).reshape(len(effects), width, 2)
    nodes = np.fromiter((effect.node for effect in effects), np.int32, len(effects))
    return Effects(nodes, both[:, :, 0], both[:, :, 1])


class NodeTable:
    """The nodes, numbered in the order of their coming. Arrays have a row for each, and may have some more."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._numbers: dict[str, int] = {}
        self._seen = 0
        self._rooms: dict[int, Sequence[Room]] = {}  # node -> its cards' rooms, in their order
        self._left: dict[int, list[int]] = {}  # node -> remnants of these
        self.remnants = Remnants()
        self.size = 0
        self.cards: Ints = np.zeros((64, 8), dtype=np.int32)
        """Node -> remnants of its cards, filled up with that of no card."""
        self.cpu: Floats = np.zeros(64, dtype=np.float32)
        self.memory: Floats = np.zeros(64, dtype=np.float32)
        self.changed: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        """Node -> the version of this table in which it has changed last."""
        self.version = 0
        """Grows with each change."""

    def sync(self) -> None:
        """Apply what has changed in the ledger."""
        names, self._seen = list(self._ledger.touched_since(self._seen)), self._ledger.changes
        self._take([self._ledger.node_room(name) for name in names])

    @contextmanager
    def as_if(self, nodes: Collection[NodeRoom]) -> Iterator[None]:
        """Let nodes have other rooms than in the ledger, while this lasts."""
        self.sync()
        self._take(nodes)
        try:
            yield
        finally:
            self._take([self._ledger.node_room(node.name) for node in nodes])

    def changed_since(self, version: int) -> NDArray[np.intp]:
        """Return the nodes that have changed after a version of this table."""
        return np.flatnonzero(self.changed[: self.size] > version)

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does; the table must have its node as it is."""
        number = self._numbers[candidate.node.name]
        left, after = self._left[number], self.remnants.after
        used = set(chain.from_iterable(candidate.assignment))
        changes = []
        for remnant, room in zip(left, candidate.node.rooms, strict=True):
            if (uuid := room.card.uuid) in used:
                by_container = zip(footprint.shape, candidate.assignment, strict=True)
                alone = any(demand.exclusive for demand, uuids in by_container if uuid in uuids)
                taken = NOTHING if alone else peak_on(footprint.shape, candidate.assignment, room.card)
                changes.append((remnant, after(remnant, room, taken, alone)))
        return Effect(number, tuple(changes))

    def _take(self, nodes: Collection[NodeRoom]) -> None:
        self.version += bool(nodes)
        for node in nodes:
            self._take_one(node)

    def _take_one(self, node: NodeRoom) -> None:
        number = self._numbers.get(node.name)
        if number is None:
            number = self._numbers[node.name] = self.size
            self.size += 1
        self._make_room(number, len(node.rooms))
        left = self._left[number] = self._remnants_of(number, node.rooms)
        self._rooms[number] = node.rooms
        if node.offer is None:
            left = []  # no pod can have them
        self.cards[number] = NO_CARD
        self.cards[number, : len(left)] = left
        self.cpu[number] = UNLIMITED if node.host is None else node.host.cpu_milli
        self.memory[number] = UNLIMITED if node.host is None else node.host.memory_mib
        self.changed[number] = self.version

    def _remnants_of(self, number: int, rooms: Sequence[Room]) -> list[int]:
        """Return the remnants of a node's rooms. As a rule all but one are the objects that they were before."""
        before = self._rooms.get(number)
        if before is None or len(before) != len(rooms):
            return [self.remnants.now(room) for room in rooms]
        known = zip(rooms, before, self._left[number], strict=True)
        return [remnant if room is old else self.remnants.now(room) for room, old, remnant in known]

    def _make_room(self, number: int, cards: int) -> None:
        more = len(self.cpu) if number >= len(self.cpu) else 0
        wider = max(0, cards - self.cards.shape[1])
        if more or wider:
            self.cards = np.pad(self.cards, ((0, more), (0, wider)))
            self.cpu, self.memory = np.pad(self.cpu, (0, more)), np.pad(self.memory, (0, more))
            self.changed = np.pad(self.changed, (0, more))


class CardSums:
    """For each node the sum over its cards of what `value` says of a remnant: an array of `width` numbers."""

    def __init__(self, nodes: NodeTable, value: Callable[[int, int], Floats], width: int) -> None:
        self._nodes = nodes
        self._value = value
        self._seen = -1
        self._values: Floats = np.zeros((1, width), dtype=np.float32)
        self._sums: Floats = np.zeros((0, width), dtype=np.float32)

    def sync(self) -> None:
        """Apply what has changed of the nodes."""
        changed = self._nodes.changed_since(self._seen)
        self._seen = self._nodes.version
        self._sums = _grown(self._sums, self._nodes.size)
        self._sums[changed] = self._known_values()[self._nodes.cards[changed]].sum(axis=1)

    def of(self, nodes: Ints | NDArray[np.intp]) -> Floats:
        """Return the sums of these nodes."""
        return self._sums[nodes]

    def after(self, effects: Effects) -> Floats:
        """Return the sums as they would be, a row for each way."""
        values, result = self._known_values(), self._sums[effects.nodes]
        for column in range(effects.before.shape[1]):
            result += values[effects.after[:, column]] - values[effects.before[:, column]]
        return result

    def _known_values(self) -> Floats:
        found = self._nodes.remnants.found
        known = len(self._values)
        if len(found) > known:
            more = [self._value(kind, milli) for kind, milli in found[known:]]
            self._values = np.concatenate([self._values, np.array(more, dtype=np.float32)])
        return self._values


def _grown(array: Floats, rows: int) -> Floats:
    """Return the array with at least so many rows, and room for more."""
    if len(array) >= rows:
        return array
    return np.concatenate([array, np.zeros((max(rows, 2 * len(array)) - len(array), array.shape[1]), np.float32)])


SCARCITY = 0.5
"""Power of a kind's slots in the cluster by which its weight is divided."""

SEVERAL_IN_TURNOVER = 29.0
"""In a steady state, kinds of pods with several cards weigh by so much more. While the cluster fills, what they need is
mostly there; but once their room is broken up, it comes back only if small pods are kept from it for long."""

LINEAR_IN_TURNOVER = 2.0
"""From the half of a steady state on, slots count as they are, and not by their power."""

MANY = 1e4
"""Slots of a node as far as its CPU and memory are concerned, if these are not known, or not asked for."""


class Worth:
    """The worth of slots of each kind, in thousandths of a card; `turnover` says how they are counted, 0 to 1."""

    def __init__(self, weights: Numbers, turnover: float) -> None:
        self._weights = weights.astype(np.float32)
        self._linear = np.float32(min(1.0, LINEAR_IN_TURNOVER * turnover))

    def of(self, slots: Floats) -> Numbers:
        """Return what slots are worth, a node a row."""
        root = np.sqrt(slots)
        counted = (1 - self._linear) * root * np.sqrt(root) + self._linear * slots
        return np.asarray(counted @ self._weights, dtype=np.float64)


class Slots:
    """The slots of the nodes for some kinds of pods with cards."""

    def __init__(self, nodes: NodeTable, pods: Sequence[Typical], needs: Needs) -> None:
        self._nodes = nodes
        self._needs = needs
        self._cards = np.array([pod.cards for pod in pods], dtype=np.float64)
        self._several = np.array([pod.cards > 1 for pod in pods], dtype=bool)
        self._per_card = np.array([1 / pod.cards for pod in pods], dtype=np.float32)
        self._by_cpu = _divided_by([pod.footprint.host.cpu_milli for pod in pods])
        self._by_memory = _divided_by([pod.footprint.host.memory_mib for pod in pods])
        self._sums = CardSums(nodes, self._on_card, len(pods))

    def sync(self) -> None:
        """Apply what has changed of the nodes, which are synced already."""
        self._sums.sync()

    def of(self, nodes: Ints | NDArray[np.intp]) -> Floats:
        """Return how many pods of each kind some nodes could take; fractions where CPU or memory is the limit."""
        return self._limited(self._sums.of(nodes), self._nodes.cpu[nodes], self._nodes.memory[nodes])

    def after(self, effects: Effects, host: HostAmounts) -> Floats:
        """Return the same for the nodes as they would be, a row for each way."""
        cpu = self._nodes.cpu[effects.nodes] - host.cpu_milli
        memory = self._nodes.memory[effects.nodes] - host.memory_mib
        return self._limited(self._sums.after(effects), cpu, memory)

    def sizes(self) -> Numbers:
        """Return how many cards a pod of each kind stands for, a part of one for a share."""
        parts = [self._needs.on_average(position) / WHOLE for position in range(len(self._cards))]
        sizes: Numbers = self._cards * np.array(parts)
        return sizes

    def worth(self, frequency: Numbers, sizes: Numbers, in_all: Numbers, idle_milli: float, turnover: float) -> Worth:
        """Return what slots are worth, when there are `in_all` of each kind in the cluster.

        What all of them are worth comes to what is idle.
        """
        weights = frequency * sizes / np.maximum(1, in_all) ** SCARCITY
        weights[self._several] *= 1 + SEVERAL_IN_TURNOVER * turnover
        volume = (weights * in_all * WHOLE * sizes).sum()
        return Worth(weights * (idle_milli / volume if volume > 0 else 0), turnover)

    def _limited(self, by_cards: Floats, cpu: Floats, memory: Floats) -> Floats:
        (per_cpu, least_cpu), (per_memory, least_memory) = self._by_cpu, self._by_memory
        by_cpu = cpu[:, np.newaxis] * per_cpu + least_cpu
        by_host = np.minimum(np.minimum(by_cpu, memory[:, np.newaxis] * per_memory + least_memory), MANY)
        whole = np.floor(by_cards * self._per_card + 1e-4)
        slots: Floats = np.where(by_host < 1, 0, np.minimum(whole, by_host))
        return slots

    def _on_card(self, kind: int, milli: int) -> Floats:
        """Return how often each kind of pod fits on a card of which so much is free."""
        return (milli // self._needs.of(kind)).astype(np.float32)


def _divided_by(amounts: list[int]) -> tuple[Floats, Floats]:
    """Return what makes quotients of something by these amounts: a factor and a summand; for an amount of 0, `MANY`."""
    factors = np.array([1 / amount if amount else 0 for amount in amounts], dtype=np.float32)
    return factors, np.where(factors, 0, MANY).astype(np.float32)
