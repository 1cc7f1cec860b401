"""Amounts of one card: memory in MiB, cores in percent of one card's compute, number of slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of one card. Differences can be negative: a card can shrink below what is held on it."""

    memory_mib: int = 0
    cores: int = 0
    number: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.memory_mib + other.memory_mib, self.cores + other.cores, self.number + other.number)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.memory_mib - other.memory_mib, self.cores - other.cores, self.number - other.number)

    def fits_in(self, room: Amounts) -> bool:
        """Tell whether every amount is at most the room's."""
        return self.memory_mib <= room.memory_mib and self.cores <= room.cores and self.number <= room.number

    def peak(self, other: Amounts) -> Amounts:
        """Return the larger of each amount: what two users need who are never there at the same time."""
        return Amounts(
            max(self.memory_mib, other.memory_mib), max(self.cores, other.cores), max(self.number, other.number)
        )


NOTHING = Amounts()


def total(parts: Iterable[Amounts]) -> Amounts:
    """Return the sum, without an object for each step."""
    memory_mib = cores = number = 0
    for part in parts:
        memory_mib += part.memory_mib
        cores += part.cores
        number += part.number
    return Amounts(memory_mib, cores, number)
