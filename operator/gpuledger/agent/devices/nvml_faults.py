"""Faults as NVML tells them: events while they happen, and what a look at one card finds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import pynvml

from gpuledger.agent.devices.nvml_calls import CardError, Handle, ask, need, raise_if_gone, text, try_to_ask
from gpuledger.agent.devices.source import Fault

logger = logging.getLogger(__name__)

WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

DOUBLE_BIT_ECC_XID = 48
"""The Xid of the same thing: an ECC event carries no Xid."""

XID_NAMES: Mapping[int, str] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
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
            raise CardError(str(error)) from error
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


def probe(handle: Handle) -> str:
    """Return why a card that answers should take no pods; empty: nothing. Raises DriverGone.

    All of this stays until the card is reset, so the text has no numbers that grow meanwhile.
    """
    _, _, pending, failed = try_to_ask(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    if failed:
        return "remapping a row of its memory failed: it needs service"
    if pending:
        return "a row of its memory is to be remapped: it needs a reset"
    if try_to_ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return "pages of its memory are to be retired: it needs a reset"
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    if try_to_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile):
        return "uncorrectable ECC errors since the driver was loaded: it needs a reset"
    return ""
