"""The processes on a card, as NVML lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuledger.agent.devices.nvml_calls import Handle, try_to_ask
from gpuledger.agent.devices.source import DeviceProcess

MIB = 1024 * 1024

LISTS: tuple[Callable[[Handle], list[Any]], ...] = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)


@dataclass(frozen=True, slots=True)
class Context:
    """A card or MIG device on which processes can be; a card in MIG mode itself has none."""

    uuid: str
    handle: Handle


def processes_of(context: Context) -> list[DeviceProcess]:
    """Return each process once, with the largest amount of memory that a list names for it. Raises DriverGone."""
    found: dict[int, int | None] = {}
    for processes in LISTS:
        for process in try_to_ask(processes, context.handle) or ():
            memory = process.usedGpuMemory
            known = found.get(process.pid)
            memory_mib = known if memory is None else max(int(memory) // MIB, known or 0)
            found[process.pid] = memory_mib
    return [DeviceProcess(pid, context.uuid, memory_mib) for pid, memory_mib in found.items()]
