"""A pod's CPU and memory on a node, beside its cards. Only preferences look at it; kube-scheduler decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostAmounts:
    """CPU in thousandths of a core, memory in MiB. Differences can be negative: a node can shrink."""

    cpu_milli: int = 0
    memory_mib: int = 0

    def __add__(self, other: HostAmounts) -> HostAmounts:
        return HostAmounts(self.cpu_milli + other.cpu_milli, self.memory_mib + other.memory_mib)

    def __sub__(self, other: HostAmounts) -> HostAmounts:
        return HostAmounts(self.cpu_milli - other.cpu_milli, self.memory_mib - other.memory_mib)

    def fits_in(self, room: HostAmounts) -> bool:
        """Tell whether both amounts are at most the room's."""
        return self.cpu_milli <= room.cpu_milli and self.memory_mib <= room.memory_mib

    def peak(self, other: HostAmounts) -> HostAmounts:
        """Return the larger of each amount."""
        return HostAmounts(max(self.cpu_milli, other.cpu_milli), max(self.memory_mib, other.memory_mib))


NO_HOST = HostAmounts()
