"""Calls of NVML with its errors turned into ours, its reports of faults, and its memory limits for control groups.

Faults are events while they happen, and findings of a look at one card. The driver itself keeps limits from version 615
on. Source: NVML's nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryInfo_v2, and NVIDIA's "MPS v3 Memory
Partitioning". A group's limit is never read back: some drivers can't tell that a group has none.

Drivers and cards differ in what they can answer, and NVML says so in several ways. Where an answer can be missing,
these functions return None.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pynvml

from gpuledger.agent.devices.source import NOT_ASKED, DriverGone, Fault, LimitRefused, MemoryLimit
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.failure import FaultClass

Handle = Any
"""A card or a MIG device, as pynvml hands it out; good until NVML is shut down."""

Answer = TypeVar("Answer")

DRIVER_IS_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

HAS_NO_ANSWER = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""The card may work all the same: it, the driver or the account has no such thing."""


class CardError(GpuledgerError):
    """A card does not answer a question that each has an answer to."""

    def __init__(self, error: pynvml.NVMLError) -> None:
        super().__init__(str(error))
        self.fault_class = _CLASSES.get(error.value, FaultClass.OTHER)


_CLASSES: Mapping[int, FaultClass] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: FaultClass.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: FaultClass.RESET,
}
"""What an error means for the programs on the card; others can pass."""


def need(call: Callable[..., Answer], *arguments: object) -> Answer:
    """Return the answer. Raises CardError, DriverGone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise_if_gone(error)
        raise CardError(error) from error


def ask(call: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return the answer, or None where there is no such thing. Raises CardError, DriverGone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise_if_gone(error)
        if error.value in HAS_NO_ANSWER:
            return None
        raise CardError(error) from error


def try_to_ask(call: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return the answer, or None where the card has none, for whatever reason. Raises DriverGone."""
    try:
        return ask(call, *arguments)
    except CardError:
        return None


def raise_if_gone(error: pynvml.NVMLError) -> None:
    """Raise DriverGone when the error says that no card can be talked to."""
    if error.value in DRIVER_IS_GONE:
        raise DriverGone(f"the NVIDIA driver does not respond: {error}") from error


def text(answer: str | bytes | None) -> str:
    """Return text, whichever way this version of pynvml spells it."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""


def pci_address(bus_id: str | bytes) -> str:
    """Return a PCI address as Linux writes it, `0000:07:00.0`; NVML has it as `00000000:07:00.0`, in upper case."""
    domain, _, rest = text(bus_id).lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else ""
    except ValueError:
        return ""


logger = logging.getLogger(__name__)

WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

DOUBLE_BIT_ECC_XID = 48
"""The Xid of the same thing: an ECC event carries no Xid."""

XID_NAMES: Mapping[int, str] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    63: "a row is to be remapped, or a page to be retired",
    64: "failure to remap a row or retire a page",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}
"""Xids that people meet, as NVIDIA's list of Xid errors names them; the others are shown by number."""

MAX_EVENTS = 64
"""Events that are taken at once; what is left comes with the next wait."""

NO_INSTANCE = 0xFFFFFFFF

MigNames = Callable[[str, int, int], str]
"""Card's UUID, GPU instance, compute instance -> UUID of the MIG device, or the card's."""


class FaultEvents:
    """The cards whose events are waited for."""

    def __init__(self, mig_name: MigNames) -> None:
        self._mig_name = mig_name
        self._events = try_to_ask(pynvml.nvmlEventSetCreate)
        self._watched: dict[str, Handle] = {}  # card's UUID -> its handle
        self._refused: set[str] = set()  # UUIDs of cards that have no events

    def watch(self, uuid: str, handle: Handle) -> None:
        """Wait for a card's faults, too. Raises DriverGone; a card that has no events is only probed."""
        if self._events is None or uuid in self._watched or uuid in self._refused:
            return
        types = WANTED & (try_to_ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0)
        try:
            if types:
                need(pynvml.nvmlDeviceRegisterEvents, handle, types, self._events)
                self._watched[uuid] = handle
                return
            reason = "it has none"
        except CardError as error:
            reason = str(error)
        self._refused.add(uuid)
        logger.info("card %s reports no faults by itself (%s): they are found when it is probed", uuid, reason)

    def wait(self, timeout_s: float) -> list[Fault]:
        """Return faults as soon as there are any; nothing after the timeout. Raises DriverGone."""
        until_s = time.monotonic() + timeout_s
        faults: list[Fault] = []
        while len(faults) < MAX_EVENTS:
            left_s = 0.0 if faults else max(0.0, until_s - time.monotonic())
            try:
                found = self._next(left_s)
            except CardError as error:
                # Asking again at once would only keep a core busy.
                faults += self._lost_cards()
                if not faults:
                    logger.warning("no events from the cards: %s; they are probed", error)
                    time.sleep(left_s)
                break
            if found is None:
                if not faults:
                    time.sleep(max(0.0, until_s - time.monotonic()))  # a driver that does not wait must not cost a core
                break
            faults.append(found)
        return faults

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._events is not None:
            try:
                pynvml.nvmlEventSetFree(self._events)
            except pynvml.NVMLError as error:
                logger.debug("events: %s", error)
        self._events = None
        self._watched.clear()

    def _next(self, timeout_s: float) -> Fault | None:
        if not self._watched:
            time.sleep(timeout_s)
            return None
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise_if_gone(error)
            raise CardError(error) from error
        return self._fault(event)

    def _fault(self, event: pynvml.c_nvmlEventData_t) -> Fault:
        uuid = text(try_to_ask(pynvml.nvmlDeviceGetUUID, event.device))
        is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
        xid = int(event.eventData) if is_xid else DOUBLE_BIT_ECC_XID
        if uuid and NO_INSTANCE not in (event.gpuInstanceId, event.computeInstanceId):
            uuid = self._mig_name(uuid, event.gpuInstanceId, event.computeInstanceId)
        name = XID_NAMES.get(xid)
        return Fault(uuid, xid, f"Xid {xid}: {name}" if name else f"Xid {xid}")

    def _lost_cards(self) -> list[Fault]:
        """Return a fault for each card that does not answer, and wait for the others from now on."""
        lost = {uuid: reason for uuid, handle in self._watched.items() if (reason := _silence(handle))}
        if lost:
            others = {uuid: handle for uuid, handle in self._watched.items() if uuid not in lost}
            self.close()
            self._events = try_to_ask(pynvml.nvmlEventSetCreate)
            for uuid, handle in others.items():
                self.watch(uuid, handle)
        return [Fault(uuid, 0, f"does not answer: {reason}") for uuid, reason in lost.items()]


def _silence(handle: Handle) -> str:
    """Return why a card does not answer; empty: it does."""
    try:
        ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    except CardError as error:
        return str(error)
    return ""


RESETS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "a reset of the card",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a restart of the machine",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "a reset of its bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "a restart of the machine",
}
"""What the driver can ask for before programs can use the card again. Source: NVML's nvmlDeviceGpuRecoveryAction_t."""

DRAINS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "that no program reach it from other cards",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "a reset once its programs have ended",
}
"""What it can ask for of a card on which programs go on."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a look at a card that answers has found."""

    fault: str = ""
    """Why it should take no pods; empty: nothing."""
    fault_class: FaultClass = FaultClass.OTHER
    needs_reset: bool | None = None
    """Whether the driver asks for a reset; None for a driver or a card that does not tell."""


def probe(handle: Handle) -> Probe:
    """Look for what stays until a card is reset, so the text has no numbers that grow meanwhile. Raises DriverGone."""
    action = _recovery_action(handle)
    if action in RESETS:
        return Probe(f"the driver asks for {RESETS[action]}", FaultClass.RESET, needs_reset=True)
    needs_reset = None if action is None else False
    _, _, pending, failed = try_to_ask(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    if failed:
        return Probe("remapping a row of its memory failed: it needs service", FaultClass.RESET, needs_reset)
    if pending:
        text = "a row of its memory is to be remapped: it needs a reset"
        return Probe(text, FaultClass.CONTAINED, needs_reset)
    if try_to_ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        text = "pages of its memory are to be retired: it needs a reset"
        return Probe(text, FaultClass.CONTAINED, needs_reset)
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    if try_to_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile):
        text = "uncorrectable ECC errors since the driver was loaded: it needs a reset"
        return Probe(text, FaultClass.CONTAINED, needs_reset)
    if action in DRAINS:
        return Probe(f"the driver asks for {DRAINS[action]}", FaultClass.CONTAINED, needs_reset)
    return Probe(needs_reset=needs_reset)


def _recovery_action(handle: Handle) -> int | None:
    """Return what the driver asks for, an NVML_GPU_RECOVERY_ACTION; None where it does not tell."""
    fields = try_to_ask(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not fields or fields[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(fields[0].value.uiVal)


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
    """The state of a node's cards while NVML is open."""

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
