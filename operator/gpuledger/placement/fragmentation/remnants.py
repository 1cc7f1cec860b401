"""What is left of cards, numbered. A cluster has few kinds of cards and few remnants that differ to its pods."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.ledger.entry import Room
from gpuledger.model.card import Amounts, Card
from gpuledger.placement.fragmentation.expected import WHOLE

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
