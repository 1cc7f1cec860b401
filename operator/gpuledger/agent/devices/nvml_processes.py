"""What is used of a card, and the processes on it, as NVML lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuledger.agent.devices.nvml_calls import Handle, raise_if_gone, try_to_ask
from gpuledger.agent.devices.source import CardUse, DeviceProcess

MIB = 1024 * 1024

SAMPLED_US = 1_000_000
"""Of which last time the samples of processes are taken."""

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


def use_of(context: Context) -> CardUse:
    """Return what is used of a card, by all together. Raises DriverGone.

    Without what the driver keeps for itself, as in nvidia-smi: NVML's older answer counts it, 480 MiB of an H100 on
    which nothing runs.
    """
    memory = try_to_ask(pynvml.nvmlDeviceGetMemoryInfo, context.handle, pynvml.nvmlMemory_v2)
    if memory is None:  # an older driver
        memory = try_to_ask(pynvml.nvmlDeviceGetMemoryInfo, context.handle)
    rates = try_to_ask(pynvml.nvmlDeviceGetUtilizationRates, context.handle)  # not of MIG devices
    return CardUse(
        context.uuid,
        None if memory is None else int(memory.used) // MIB,
        None if rates is None else int(rates.gpu),
        None if rates is None else int(rates.memory),
    )


def processes_of(context: Context, now_us: int) -> list[DeviceProcess]:
    """Return each process once, with the largest amount of memory that a list names for it. Raises DriverGone.

    `now_us` is the Unix time, to which the driver's samples of utilization are relative.
    """
    found: dict[int, int | None] = {}
    for processes in LISTS:
        for process in try_to_ask(processes, context.handle) or ():
            memory = process.usedGpuMemory
            known = found.get(process.pid)
            memory_mib = known if memory is None else max(int(memory) // MIB, known or 0)
            found[process.pid] = memory_mib
    cores = _cores_percent(context.handle, now_us) if found else None
    return [
        DeviceProcess(pid, context.uuid, memory_mib, None if cores is None else cores.get(pid, 0))
        for pid, memory_mib in found.items()
    ]


def _cores_percent(handle: Handle, now_us: int) -> dict[int, int] | None:
    """Return each process that has computed lately -> its part of the multiprocessors' time, in percent.

    None where the card, the driver or the account has no such numbers. No process that computed is an answer, too.
    """
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, now_us - SAMPLED_US)
    except pynvml.NVMLError as error:
        raise_if_gone(error)
        # Of no samples, some versions say that they have not found any, others that all went well.
        return {} if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS) else None
    latest: dict[int, tuple[int, int]] = {}  # process -> time and percent
    for sample in samples:
        if sample.pid not in latest or sample.timeStamp >= latest[sample.pid][0]:
            latest[sample.pid] = sample.timeStamp, min(int(sample.smUtil), 100)
    return {pid: percent for pid, (_, percent) in latest.items()}
