"""NVIDIA's cards, their links, their use and their processes, through the driver's own library.

Calls that a card or a driver does not know cost nothing but that one detail. A card that can't be read keeps no other
from being listed: it is shown with its fault where its UUID is known, and in the log otherwise.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml

from gpuledger.agent.devices.nvml_faults import (
    MIB,
    CardError,
    FaultEvents,
    GroupTree,
    Handle,
    NvmlLimits,
    Probe,
    ask,
    need,
    pci_address,
    probe,
    raise_if_gone,
    reserved_mib,
    text,
    try_to_ask,
)
from gpuledger.agent.devices.source import (
    CardUse,
    Device,
    DeviceProcess,
    DeviceUses,
    DriverGone,
    DriverReplaced,
    Fault,
    LimitRefused,
    Links,
    MemoryLimit,
    Pair,
    Snapshot,
    Wiring,
    link_scores,
    pcie_root,
    wired,
)
from gpuledger.formats.custom_resource.stored_card import UUID_PATTERN
from gpuledger.model.card import MIG
from gpuledger.model.failure import Failure, FaultClass


def read_links(cards: Sequence[_Card]) -> Links:
    """Return the scores of all pairs. Questions that a card can't answer add nothing to them. Raises DriverGone."""
    wirings = [_wiring(card, {each.bus_id for each in cards}) for card in cards]
    some_nvlinks = wired(wirings)
    pairs = {
        frozenset((one.uuid, other.uuid)): Pair(
            ancestor=try_to_ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle),
            nvlink_usable=some_nvlinks and _nvlink_usable(one.handle, other.handle),
        )
        for one, other in combinations(cards, 2)
    }
    return link_scores(wirings, pairs)


def _wiring(card: _Card, cards: set[str]) -> Wiring:
    peers: list[str] = []
    switch_links = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = try_to_ask(pynvml.nvmlDeviceGetNvLinkState, card.handle, link)
        if active is None:
            break  # the card has no link of this number, and none of a higher one
        if not active:
            continue
        remote = try_to_ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, card.handle, link)
        address = pci_address(remote.busId) if remote is not None else ""
        if address in cards:
            peers.append(address)
        elif try_to_ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, card.handle, link) == _SWITCH:
            switch_links += 1
    return Wiring(card.uuid, card.bus_id, tuple(peers), switch_links)


_SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def _nvlink_usable(one: Handle, other: Handle) -> bool:
    """Return whether the driver lets the pair use NVLink; a driver that does not say so is believed to."""
    status = try_to_ask(pynvml.nvmlDeviceGetP2PStatus, one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return status in (None, pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_UNKNOWN)


SAMPLED_US = 1_000_000
"""Of which last time the samples of processes are taken."""

LISTS: tuple[Callable[[Handle], list[Any]], ...] = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)


def use_of(uuid: str, handle: Handle) -> CardUse:
    """Return the use of a card, by all processes together. Raises DriverGone.

    Without the driver's own memory, as in nvidia-smi: NVML's older answer counts it, 480 MiB of an H100 on which
    nothing runs.
    """
    memory = try_to_ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if memory is None:  # an older driver
        memory = try_to_ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = try_to_ask(pynvml.nvmlDeviceGetUtilizationRates, handle)  # not of MIG devices
    return CardUse(
        uuid,
        None if memory is None else int(memory.used) // MIB,
        None if rates is None else int(rates.gpu),
        None if rates is None else int(rates.memory),
    )


def processes_of(uuid: str, handle: Handle, now_us: int) -> list[DeviceProcess]:
    """Return each process once, with the largest amount of memory that a list names for it. Raises DriverGone.

    `now_us` is the Unix time, to which the driver's samples of utilization are relative.
    """
    found: dict[int, int | None] = {}
    for processes in LISTS:
        for process in try_to_ask(processes, handle) or ():
            memory = process.usedGpuMemory
            known = found.get(process.pid)
            memory_mib = known if memory is None else max(int(memory) // MIB, known or 0)
            found[process.pid] = memory_mib
    cores = _cores_percent(handle, now_us) if found else None
    return [
        DeviceProcess(pid, uuid, memory_mib, None if cores is None else cores.get(pid, 0))
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


logger = logging.getLogger(__name__)

SYSFS = Path("/sys")

MIG_FIRST_INDEX = 64
MIG_INDEXES_PER_CARD = 16
"""A MIG device's index follows from its card's and its place there, so it stays when neighbours come and go: card 2,
place 1 is 64 + 2 x 16 + 1. No node has 64 cards, no card 16 MIG devices."""

NUMA_MASK_WORDS = 16
"""64 NUMA nodes each."""

LOOKS_BETWEEN_OPENINGS = 20


@dataclass(frozen=True, slots=True)
class _Card:
    """The constant properties of a physical card while NVML is open."""

    handle: Handle
    uuid: str
    model: str
    bus_id: str
    numa_node: int | None
    pcie_root: str
    reserved_mib: int


class NvmlSource:
    """Implements DeviceSource."""

    def __init__(self, sysfs: Path = SYSFS, groups: GroupTree | None = None, unified_memory_mib: int = 0) -> None:
        """Make one; `unified_memory_mib` is offered of a card without memory of its own, if not 0."""
        self._sysfs, self._unified_memory_mib = sysfs, unified_memory_mib
        self._limits = NvmlLimits(groups)
        self._open = False
        self._worked = False  # NVML could be opened once, so the library that is loaded was the right one
        self._versions = ("", "")  # of the driver, and of CUDA
        self._events: FaultEvents | None = None
        self._cards: dict[int, _Card] = {}  # index -> physical card
        self._listed: dict[int, list[Device]] = {}  # index of the physical card -> what was listed of it last
        # UUID of a card or MIG device on which processes can be -> its handle; a card in MIG mode itself has none
        self._contexts: dict[str, Handle] = {}
        self._mig_uuids: dict[tuple[str, int, int], str] = {}  # card's UUID, GPU and compute instance -> MIG device's
        self._links: tuple[frozenset[str], dict[str, dict[str, int]]] = (frozenset(), {})  # cards, and their scores
        self._seen: set[str] = set()  # UUIDs of all physical cards that were ever read
        self._looks_in_vain = 0  # how many snapshots in a row lacked a card
        self._problems: set[str] = set()  # sentences that are in the log already

    def open(self) -> None:
        """Load the library and connect. Raises DriverGone, or DriverReplaced when only a new process can help."""
        self.close()
        try:
            pynvml.nvmlInit()
            self._open = True
            driver = text(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            self.close()
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH and self._worked:
                raise DriverReplaced("the NVIDIA driver was replaced while its old library was loaded") from error
            raise DriverGone(f"the NVIDIA driver does not respond: {error}") from error
        self._worked = True
        self._versions = (driver, _cuda_version(try_to_ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)))
        self._events = FaultEvents(lambda card, gi, ci: self._mig_uuids.get((card, gi, ci), card))

    def snapshot(self) -> Snapshot:
        """Return all cards, each probed. Raises DriverGone."""
        if self._is_time_to_open_anew():
            self.open()
        self._must_be_open()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise_if_gone(error)
            raise DriverGone(f"the NVIDIA driver does not count its cards: {error}") from error
        self._contexts, self._mig_uuids = {}, {}
        problems: list[str] = []
        present: set[str] = set()
        for index in range(count):
            try:
                self._listed[index] = self._read(index, problems)
                present.add(self._cards[index].uuid)
            except CardError as error:
                self._lose(index, error, problems)
        self._seen |= present
        lacks_one = len(present) < count or present != self._seen
        self._looks_in_vain = self._looks_in_vain + 1 if lacks_one else 0
        devices = [device for index in range(count) for device in self._listed.get(index, ())]
        linked = self._linked(devices, present, problems)
        self._log_new(problems)
        return Snapshot(tuple(sorted(linked, key=lambda device: (device.index, device.uuid))), *self._versions)

    def wait_for_faults(self, timeout_s: float) -> list[Fault]:
        """Wait for events of the cards that the last snapshot had. Raises DriverGone."""
        return self._must_be_open().wait(timeout_s)

    def uses(self) -> DeviceUses:
        """Return the use of the cards of the last snapshot. Raises DriverGone."""
        self._must_be_open()
        now_us = int(time.time() * 1e6)
        return DeviceUses(
            tuple(use_of(uuid, handle) for uuid, handle in self._contexts.items()),
            tuple(found for uuid, handle in self._contexts.items() for found in processes_of(uuid, handle, now_us)),
        )

    def limit_memory(self, limit: MemoryLimit) -> None:
        """Have a control group keep to a limit on a card of the last snapshot. Raises LimitRefused, DriverGone."""
        self._must_be_open()
        handle = next((card.handle for card in self._cards.values() if card.uuid == limit.uuid), None)
        if handle is None:
            raise LimitRefused(f"the memory of card {limit.uuid} can't be limited: the driver no longer lists it")
        self._limits.set(limit, handle, _memory_or_none(handle))

    def close(self) -> None:
        """Let go of NVML, also when the driver is gone."""
        if self._events is not None:
            self._events.close()
        if self._open:
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                logger.debug("NVML: %s", error)
        self._open, self._events = False, None
        self._links = (frozenset(), {})
        self._limits.forget()
        for memory in (self._cards, self._listed, self._contexts, self._mig_uuids):
            memory.clear()

    def _must_be_open(self) -> FaultEvents:
        if self._events is None:
            raise DriverGone("NVML is not open")
        return self._events

    def _is_time_to_open_anew(self) -> bool:
        """Return whether to open NVML again for a card that is missing: an old connection would not see it return.

        At once, and then at longer and longer intervals: opening can take seconds for each card.
        """
        looks = self._looks_in_vain
        return self._open and looks > 0 and (looks & (looks - 1) == 0 or looks % LOOKS_BETWEEN_OPENINGS == 0)

    def _read(self, index: int, problems: list[str]) -> list[Device]:
        """Return the card, or its MIG devices. Raises CardError, DriverGone."""
        card = self._card(index)
        if not _usable(card.uuid, problems):
            return []
        found = probe(card.handle)
        self._must_be_open().watch(card.uuid, card.handle)
        if (ask(pynvml.nvmlDeviceGetMigMode, card.handle) or (0, 0))[0]:
            return self._mig_devices(index, card, found, problems)
        memory_mib, number = _memory_mib(card.handle), None
        if memory_mib is None:
            memory_mib, number = (self._unified_memory_mib, None) if self._unified_memory_mib else (_host_mib(), 1)
            problems.append(
                f"card {card.uuid} ({card.model}) has no memory of its own, by NVML, and shares that of the processor: "
                f"{memory_mib} MiB are offered, {_OFFERED[number]}"
            )
        self._contexts[card.uuid] = card.handle
        return [
            Device(
                uuid=card.uuid,
                index=index,
                model=card.model,
                memory_mib=memory_mib,
                number=number,
                numa_node=card.numa_node,
                pcie_root=card.pcie_root,
                bus_id=card.bus_id,
                fault=found.fault,
                failure=_failure(found.fault_class) if found.fault else None,
                needs_reset=found.needs_reset,
                reserved_mib=card.reserved_mib,
                why_no_limits=self._limits.why_not(card.uuid, card.handle),
            )
        ]

    def _card(self, index: int) -> _Card:
        handle = need(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = text(need(pynvml.nvmlDeviceGetUUID, handle))
        known = self._cards.get(index)
        if known is not None and known.uuid == uuid:
            return replace(known, handle=handle)
        pci = try_to_ask(pynvml.nvmlDeviceGetPciInfo, handle)
        bus_id = pci_address(pci.busId) if pci is not None else ""
        model = text(try_to_ask(pynvml.nvmlDeviceGetName, handle))
        numa_node, root = _numa_node(handle, self._sysfs, bus_id), pcie_root(self._sysfs, bus_id)
        card = _Card(handle, uuid, model, bus_id, numa_node, root, reserved_mib(handle))
        self._cards[index] = card
        return card

    def _mig_devices(self, index: int, card: _Card, found: Probe, problems: list[str]) -> list[Device]:
        devices: list[Device] = []
        for place in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0):
            handle = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, card.handle, place)
            if handle is None:
                continue
            uuid, memory_mib = text(need(pynvml.nvmlDeviceGetUUID, handle)), _memory_mib(handle)
            if memory_mib is None:
                problems.append(f"MIG device {uuid} is left out: NVML does not report its memory")
            if memory_mib is None or not _usable(uuid, problems):
                continue
            self._name_instance(card.uuid, uuid, handle)
            self._contexts[uuid] = handle
            devices.append(
                Device(
                    uuid=uuid,
                    index=MIG_FIRST_INDEX + index * MIG_INDEXES_PER_CARD + place,
                    model=text(try_to_ask(pynvml.nvmlDeviceGetName, handle)) or card.model,
                    memory_mib=memory_mib,
                    numa_node=card.numa_node,
                    pcie_root=card.pcie_root,
                    bus_id=card.bus_id,
                    mode=MIG,
                    parent_uuid=card.uuid,
                    number=1,
                    fault=found.fault,
                    failure=_failure(found.fault_class) if found.fault else None,
                    needs_reset=found.needs_reset,
                )
            )
        if not devices:
            problems.append(f"card {card.uuid} is in MIG mode and has no MIG devices: it takes no pods")
        return devices

    def _name_instance(self, card_uuid: str, uuid: str, handle: Handle) -> None:
        """Remember which MIG device an event of this instance is about."""
        gpu_instance = try_to_ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)
        compute_instance = try_to_ask(pynvml.nvmlDeviceGetComputeInstanceId, handle)
        if gpu_instance is not None and compute_instance is not None:
            self._mig_uuids[card_uuid, gpu_instance, compute_instance] = uuid

    def _lose(self, index: int, error: CardError, problems: list[str]) -> None:
        """Show a card that can't be read as it was before. Indexes stay the same while NVML is open."""
        if not self._listed.get(index):
            problems.append(f"card number {index} is left out because it can't be read: {error}")
        known = self._listed.get(index, [])
        fault, failure = f"does not answer: {error}", _failure(error.fault_class)
        self._listed[index] = [replace(device, fault=fault, failure=failure, needs_reset=None) for device in known]

    def _linked(self, devices: list[Device], present: set[str], problems: list[str]) -> list[Device]:
        """Return the devices with their links. Those are read when cards come: it takes hundreds of calls."""
        whole = frozenset(device.uuid for device in devices if device.uuid in present)
        known, scores = self._links
        if not whole <= known:
            cards = [card for card in self._cards.values() if card.uuid in whole]
            links = read_links(cards)
            scores = {uuid: dict(peers) for uuid, peers in links.scores.items()}
            self._links = (whole, scores)
            problems += links.problems
        return [replace(device, links=scores.get(device.uuid, {})) for device in devices]

    def _log_new(self, problems: Iterable[str]) -> None:
        """Write each sentence to the log once, and again when it was not true in between."""
        found = set(problems)
        for problem in sorted(found - self._problems):
            logger.warning("%s", problem)
        self._problems = found


def _failure(fault_class: FaultClass) -> Failure:
    """Return a failure of which another part will say when it began."""
    return Failure(fault_class, "")


def _usable(uuid: str, problems: list[str]) -> bool:
    if re.match(UUID_PATTERN, uuid):
        return True
    problems.append(f"card {uuid!r} is left out: its UUID is not a valid object name")
    return False


def _memory_mib(handle: Handle) -> int | None:
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return int(memory.total) // MIB or None if memory is not None else None


_OFFERED = {None: "by `unified_memory_mib`", 1: "to one pod at a time; set `unified_memory_mib` to share it"}
"""Slots that are fixed -> how a card is offered that has no memory of its own."""


def _host_mib() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB


def _memory_or_none(handle: Handle) -> int | None:
    try:
        return _memory_mib(handle)
    except CardError:
        return None


def _numa_node(handle: Handle, sysfs: Path, bus_id: str) -> int | None:
    """Return the NUMA node that is closest to the card.

    Not by nvmlDeviceGetNumaNodeId: that is the node which the card's own memory forms on some machines.
    """
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    mask = try_to_ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, NUMA_MASK_WORDS, scope) or ()
    nodes = [word * 64 + bit for word, bits in enumerate(mask) for bit in range(64) if bits >> bit & 1]
    if len(nodes) == 1:
        return nodes[0]
    try:
        node = int((sysfs / "bus" / "pci" / "devices" / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _cuda_version(number: int | None) -> str:
    """Return 12.4 for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""
