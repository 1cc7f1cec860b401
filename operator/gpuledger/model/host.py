"""What a pod takes of a node beside the cards of the ledger: CPU, memory, and cards that its own plugin only counts.

Of CPU and memory kube-scheduler decides; here only preferences look at them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostAmounts:
    """CPU in thousandths of a core, memory in MiB. Differences can be negative: a node can shrink."""

    cpu_milli: int = 0
    memory_mib: int = 0
    cards: int = 0
    """Whole cards under the name by which NVIDIA's own device plugin serves them."""

    def __add__(self, other: HostAmounts) -> HostAmounts:
        cards = self.cards + other.cards
        return HostAmounts(self.cpu_milli + other.cpu_milli, self.memory_mib + other.memory_mib, cards)

    def __sub__(self, other: HostAmounts) -> HostAmounts:
        cards = self.cards - other.cards
        return HostAmounts(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib, cards)

    def fits_in(self, room: HostAmounts) -> bool:
        """Tell whether CPU and memory are at most the room's."""
        return self.cpu_milli <= room.cpu_milli and self.memory_mib <= room.memory_mib

    def peak(self, other: HostAmounts) -> HostAmounts:
        """Return the larger of each amount."""
        cards = max(self.cards, other.cards)
        return HostAmounts(max(self.cpu_milli, other.cpu_milli), max(self.memory_mib, other.memory_mib), cards)


NO_HOST = HostAmounts()
