"""Limits of a card's memory for control groups, which the driver itself keeps from version 615 on.

Source: NVML's nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryInfo_v2, and NVIDIA's "MPS v3 Memory Partitioning".
What a group has been limited to is not asked for: of a group without a limit some drivers say that they can't tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pynvml

from gpuledger.agent.devices.nvml_calls import Handle, raise_if_gone, try_to_ask
from gpuledger.agent.devices.source import NOT_ASKED, LimitRefused, MemoryLimit

MIB = 1024 * 1024

FIRST_DRIVER = "615"

NEEDS = f"it needs NVIDIA's driver {FIRST_DRIVER} or newer, and so does the driver's library that the agent has loaded"

NO_RIGHT = (
    "the driver allows the agent to set no limits: it needs the capability SYS_ADMIN, and /sys/fs/cgroup to write"
)

NO_GROUP = (
    "the driver finds no control group there that it could limit: with the kernel's controller dmem, the container "
    "runtime has to turn it on for containers, as runc does"
)

REASONS = {
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NEEDS,
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the driver limits no memory on this card, as for cards in MIG mode, or where "
    "RmMemacctMode turns it off",
    pynvml.NVML_ERROR_NO_PERMISSION: NO_RIGHT,
    pynvml.NVML_ERROR_NOT_FOUND: NO_GROUP,
}


class GroupTree(Protocol):
    """The node's control groups."""

    def why_no_limits(self) -> str:
        """Return why groups can't be limited here, whatever the driver can; empty: they can."""

    def own(self) -> Path | None:
        """Return the directory of this process' own group; None where it can't be found."""


class NvmlLimits:
    """What is known of a node's cards while NVML is open."""

    def __init__(self, groups: GroupTree | None) -> None:
        self._groups = groups
        self._reasons: dict[str, str] = {}  # card's UUID -> why its memory can't be limited; empty: it can

    def forget(self) -> None:
        """Look again: the driver may be another one."""
        self._reasons.clear()

    def why_not(self, uuid: str, handle: Handle) -> str:
        """Return why a card's memory can't be limited; empty: it can. Raises DriverGone.

        Found out once, by removing the limits of the agent's own group, which has none.
        """
        if self._groups is None:
            return NOT_ASKED
        why_not = self._groups.why_no_limits()
        if why_not:
            return why_not
        if uuid not in self._reasons:
            own = self._groups.own()
            if own is None:
                return "the agent does not find its own control group in /sys/fs/cgroup"
            self._reasons[uuid] = self._probe(handle, own)
        return self._reasons[uuid]

    def set(self, limit: MemoryLimit, handle: Handle, total_mib: int | None) -> None:
        """Have a group keep to a limit on a card. Raises LimitRefused, DriverGone."""
        most = limit.most_mib
        if most is not None and total_mib is not None and most >= total_mib:
            most = None  # with memory scaling, a share can be more than there is
        try:
            _set(handle, limit.group, limit.guaranteed_mib, most)
        except pynvml.NVMLError as error:
            raise_if_gone(error)
            reason = REASONS.get(error.value, str(error))
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION):
                self._reasons[limit.uuid] = reason  # the card takes no more pods until the driver is another one
            raise LimitRefused(
                f"the memory of card {limit.uuid} can't be limited for {limit.group}: {reason}"
            ) from error

    def _probe(self, handle: Handle, own: Path) -> str:
        try:
            _set(handle, str(own), 0, None)
        except pynvml.NVMLError as error:
            raise_if_gone(error)
            # An agent that is no container can be in a group that has no such limits, unlike those of containers.
            return "" if error.value == pynvml.NVML_ERROR_NOT_FOUND else REASONS.get(error.value, str(error))
        return ""


def _set(handle: Handle, group: str, guaranteed_mib: int, most_mib: int | None) -> None:
    most = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX if most_mib is None else most_mib * MIB
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(group.encode(), guaranteed_mib * MIB, most)
    pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)


def reserved_mib(handle: Handle) -> int:
    """Return how much of a card's memory the driver keeps for itself, rounded up. Raises DriverGone."""
    memory = try_to_ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return -(-int(memory.reserved) // MIB) if memory is not None else 0
