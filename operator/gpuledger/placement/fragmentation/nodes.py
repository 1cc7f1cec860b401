"""The nodes of the ledger as arrays: what is left of their cards, their CPU and memory. Costs what has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.amounts import NOTHING
from gpuledger.model.share import peak_on
from gpuledger.placement.candidates import Candidate, Footprint
from gpuledger.placement.decide import Effect
from gpuledger.placement.fragmentation.remnants import NO_CARD, Remnants
from gpuledger.placement.fragmentation.typical import Floats, Ints

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
        self._left: dict[int, list[int]] = {}  # node -> remnants of its cards, in their order
        self.remnants = Remnants()
        self.size = 0
        self.cards: Ints = np.zeros((64, 8), dtype=np.int32)
        """Node -> remnants of its cards, filled up with that of no card."""
        self.cpu: Floats = np.zeros(64, dtype=np.float32)
        self.memory: Floats = np.zeros(64, dtype=np.float32)
        self.changed: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        """Node -> number of the ledger's change that was the last applied here."""

    def sync(self) -> None:
        """Apply what has changed in the ledger."""
        names, changes = list(self._ledger.touched_since(self._seen)), self._ledger.changes
        for name in names:
            self._take(self._ledger.node_room(name), changes)
        self._seen = changes

    def changed_since(self, change: int) -> NDArray[np.intp]:
        """Return the nodes that have changed after a change of the ledger."""
        return np.flatnonzero(self.changed[: self.size] > change)

    @property
    def seen(self) -> int:
        """Number of the ledger's last change that is applied."""
        return self._seen

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does; the table must have its node as it is."""
        number = self._numbers[candidate.node.name]
        left, after = self._left[number], self.remnants.after
        changes = []
        for remnant, room in zip(left, candidate.node.rooms, strict=True):
            uuid = room.card.uuid
            users = [
                demand for demand, uuids in zip(footprint.shape, candidate.assignment, strict=True) if uuid in uuids
            ]
            if users:
                alone = any(demand.exclusive for demand in users)
                taken = NOTHING if alone else peak_on(footprint.shape, candidate.assignment, room.card)
                changes.append((remnant, after(remnant, room, taken, alone)))
        return Effect(number, tuple(changes))

    def _take(self, node: NodeRoom, change: int) -> None:
        number = self._numbers.get(node.name)
        if number is None:
            number = self._numbers[node.name] = self.size
            self.size += 1
        self._make_room(number, len(node.rooms))
        left = self._left[number] = [self.remnants.now(room) for room in node.rooms]
        if node.offer is None:
            left = []  # no pod can have them
        self.cards[number] = NO_CARD
        self.cards[number, : len(left)] = left
        self.cpu[number] = UNLIMITED if node.host is None else node.host.cpu_milli
        self.memory[number] = UNLIMITED if node.host is None else node.host.memory_mib
        self.changed[number] = change

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
        self._seen = self._nodes.seen
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
