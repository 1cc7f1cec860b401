"""CPU and memory of nodes, as a set of the nodes that have what a pod asks for.

kube-scheduler asks the operator only about nodes that have a pod's CPU and memory. To list these for every pod would be
a walk over all nodes; a placement looks at few of them, so the set answers when it is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from gpuledger.model.request import HostAmounts


class HostRoom(Container[str]):
    """The nodes that have the CPU and memory that was asked for last."""

    def __init__(self, hosts: Mapping[str, HostAmounts]) -> None:
        # node name -> free CPU in thousandths, free memory in MiB: plain numbers, for this is the inner loop
        self.free = {name: [host.cpu_milli, host.memory_mib] for name, host in hosts.items()}
        self._cpu_milli = self._memory_mib = 0

    def __contains__(self, name: object) -> bool:
        cpu_milli, memory_mib = self.free[name]  # type: ignore[index]
        return cpu_milli >= self._cpu_milli and memory_mib >= self._memory_mib

    def asked(self, amounts: HostAmounts) -> HostRoom:
        """Return itself, as the set of the nodes that have these amounts."""
        self._cpu_milli, self._memory_mib = amounts.cpu_milli, amounts.memory_mib
        return self

    def has(self, name: str, amounts: HostAmounts) -> bool:
        """Return whether a node has these amounts."""
        cpu_milli, memory_mib = self.free[name]
        return cpu_milli >= amounts.cpu_milli and memory_mib >= amounts.memory_mib

    def change(self, name: str, amounts: HostAmounts, sign: int) -> None:
        """Give amounts back to a node, or take them with a negative sign."""
        free = self.free[name]
        free[0] += sign * amounts.cpu_milli
        free[1] += sign * amounts.memory_mib

    def only(self, names: Collection[str]) -> HostRoom:
        """Return the same room on some of the nodes."""
        return _Some(self, names)

    def recorded(self, amounts: HostAmounts) -> Lacking:
        """Return an empty set of nodes, which notes what the nodes lack that are looked for in it."""
        return Lacking(self, amounts)


class _Some(HostRoom):
    def __init__(self, all_hosts: HostRoom, names: Collection[str]) -> None:
        super().__init__({})
        self.free = all_hosts.free
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names and super().__contains__(name)


class Lacking(Container[str]):
    """No node; `lacks` says what those lack that were looked for: cpu, memory, cpu-and-memory."""

    def __init__(self, hosts: HostRoom, amounts: HostAmounts) -> None:
        self._hosts = hosts
        self._amounts = amounts
        self.lacks: set[str] = set()

    def __contains__(self, name: object) -> bool:
        cpu_milli, memory_mib = self._hosts.free[name]  # type: ignore[index]
        short = [cpu_milli < self._amounts.cpu_milli, memory_mib < self._amounts.memory_mib]
        if any(short):
            self.lacks.add("cpu-and-memory" if all(short) else "cpu" if short[0] else "memory")
        return False
