"""The verdict on cards' health: which are out, by what class of fault, since when, and until when.

Pure: time is an argument. A card is out while its probe fails, and after a critical fault. What only a reset mends
lasts until the driver was loaded anew or the machine was restarted, until the driver lists the card again or no longer
asks for the reset that it has asked for, or until a person says that the card was repaired; the next agent on the node
remembers it. Other faults are over after a while without one: errors of the hardware come in bursts, and a pod that
starts between two of them is lost. So it is when its probe fails time and again. A card that the driver no longer lists
stays in the list, out, for as long as the agent runs: pods may hold it. One that was cut into MIG devices, or MIG
devices that were put together again, are not lost but replaced.

Sources of the classes: NVIDIA's "Xid errors" and "GPU memory error management", and for the faults of programs its
k8s-device-plugin, `internal/rm/health.go`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpuledger.agent.devices.source import Device, Fault, Snapshot
from gpuledger.model.clock import rfc3339, time_of
from gpuledger.model.failure import Failure, FaultClass

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a faulty program causes on a card that works: graphics engine exception, memory page fault, stopped
processing, preemptive cleanup, video processor exception, context switch timeout."""

DOUBLE_BIT_ECC, CONTAINED_ECC = 48, 94

XID_CLASSES: Mapping[int, FaultClass] = {
    79: FaultClass.LOST,
    DOUBLE_BIT_ECC: FaultClass.RESET,
    62: FaultClass.RESET,  # internal micro-controller halt
    64: FaultClass.RESET,  # failure to remap a row
    74: FaultClass.RESET,  # NVLink error
    95: FaultClass.RESET,  # uncontained memory error
    119: FaultClass.RESET,  # GSP does not answer
    120: FaultClass.RESET,
    63: FaultClass.CONTAINED,  # a row is to be remapped
    CONTAINED_ECC: FaultClass.CONTAINED,
}
"""What is not here is of class `other`."""

NEED_A_RESET = frozenset({FaultClass.RESET, FaultClass.LOST})

LOST = "lost: the driver no longer lists the card"


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The faults that put a card out of service, and for how long."""

    fault_quiet_s: float = 300.0
    """A card comes back this long after its last critical fault, if its probe passes then and it needs no reset."""
    ignored_xids: frozenset[int] = APPLICATION_XIDS
    """Faults that say nothing of the card."""

    def ignoring(self, xids: Iterable[int]) -> HealthPolicy:
        """Return the policy with more faults ignored."""
        return replace(self, ignored_xids=self.ignored_xids | frozenset(xids))


@dataclass(frozen=True, slots=True)
class Remembered:
    """A card's fault, as another agent on the node has to know it."""

    uuid: str
    failure: Failure
    text: str = ""
    """Of a fault that only a reset mends: it lasts, whatever a look shows. Empty: the next look shows what is wrong."""
    was_asked: bool = False
    """The driver has asked for that reset."""


@dataclass(frozen=True, slots=True)
class _Event:
    """What is left of a card's critical faults, or of those of all cards."""

    code: int
    text: str
    failure: Failure
    until_s: float
    """When it is over; infinity for one that only a reset mends."""
    was_asked: bool = False


class CardHealth:
    """The memory of cards between two looks at them."""

    def __init__(self, policy: HealthPolicy, remembered: Iterable[Remembered] = ()) -> None:
        self._policy = policy
        self._known: dict[str, Device] = {}  # UUID -> the card as it was last listed
        self._lost: set[str] = set()  # UUIDs of those that were not listed at the last look
        self._events: dict[str, _Event] = {}  # UUID, or "" for all cards
        self._failing: set[str] = set()  # UUIDs of cards whose probe failed at the last look
        self._returned_s: dict[str, float] = {}  # UUID -> when its probe passed again, after it had failed
        self._failures: dict[str, Failure] = {}  # UUID of a card that is out -> by what, and since when
        for each in remembered:
            self._failures[each.uuid] = each.failure
            if each.text:
                self._events[each.uuid] = _Event(0, each.text, each.failure, math.inf, each.was_asked)

    def remembered(self) -> tuple[Remembered, ...]:
        """Return what another agent on the node has to know."""
        lasting = {uuid: each for uuid, each in self._events.items() if each.until_s == math.inf}
        shown = {uuid: failure for uuid, failure in self._failures.items() if uuid not in lasting}
        return (
            *(Remembered(uuid, each.failure, each.text, each.was_asked) for uuid, each in sorted(lasting.items())),
            *(Remembered(uuid, failure) for uuid, failure in sorted(shown.items())),
        )

    def take(self, fault: Fault, now_s: float, wall: datetime) -> bool:
        """Remember a fault; return whether it counts, which is a reason to look at once."""
        if fault.code in self._policy.ignored_xids:
            return False
        if fault.code:
            self._note(fault, now_s, rfc3339(wall))
        return True

    def judge(self, snapshot: Snapshot, now_s: float, wall: datetime) -> Snapshot:
        """Return the snapshot with the fault of every card that is out, and with those that have vanished."""
        self._forget_old_events(snapshot, now_s)
        self._note_probes(snapshot, now_s, wall)
        listed = {device.uuid for device in snapshot.devices}
        replaced = listed | {device.parent_uuid for device in snapshot.devices}
        self._known = {uuid: device for uuid, device in self._known.items() if _lost(device, replaced)}
        self._lost = set(self._known)
        lost = [replace(device, fault=LOST, failure=Failure(FaultClass.LOST, "")) for device in self._known.values()]
        self._known |= {device.uuid: device for device in snapshot.devices}
        found = [self._dated(device, wall) for device in (*map(self._with_its_event, snapshot.devices), *lost)]
        return replace(snapshot, devices=tuple(sorted(found, key=lambda device: (device.index, device.uuid))))

    def driver_gone(self) -> None:
        """Forget all faults: a driver that comes back has set up every card again, and each is probed then."""
        self._events.clear()

    def repaired(self, at: datetime) -> None:
        """Forget the faults that began before, as a person says: the cards were reset."""
        self._events = {uuid: each for uuid, each in self._events.items() if not _began_by(each.failure, at)}

    def next_return_s(self) -> float | None:
        """Return when the next fault is over, which is a reason to look; None while there is none that ends."""
        return min((each.until_s for each in self._events.values() if each.until_s < math.inf), default=None)

    def _note(self, fault: Fault, now_s: float, since: str) -> None:
        """Keep the worst of a card's faults, since it began; of those that are as bad, the text of the latest."""
        known, quiet_s = self._events.get(fault.uuid), now_s + self._policy.fault_quiet_s
        code, its_class = fault.code, XID_CLASSES.get(fault.code, FaultClass.OTHER)
        if not fault.uuid:  # which card it has hit, and so whose programs, is unknown
            its_class = FaultClass.OTHER
        elif known is not None and {known.code, code} == {DOUBLE_BIT_ECC, CONTAINED_ECC}:
            # A memory error that was contained is one of double-bit ECC, too, and shows as both.
            code, its_class = CONTAINED_ECC, FaultClass.CONTAINED
            known = known if known.failure.fault_class is its_class else None
        until_s = math.inf if its_class in NEED_A_RESET else quiet_s
        if known is None or its_class.severity > known.failure.fault_class.severity:
            self._events[fault.uuid] = _Event(code, fault.text, Failure(its_class, since), until_s)
        elif its_class is known.failure.fault_class:
            self._events[fault.uuid] = replace(known, code=code, text=fault.text, until_s=until_s)

    def _forget_old_events(self, snapshot: Snapshot, now_s: float) -> None:
        """Forget the faults that are over: for a while there was none, or the card was set up anew."""
        needs_reset: dict[str, bool | None] = {}
        for device in snapshot.devices:
            needs_reset[device.uuid] = needs_reset[device.parent_uuid or device.uuid] = device.needs_reset
        for uuid, event in list(self._events.items()):
            asks = needs_reset.get(uuid)
            if asks and not event.was_asked:
                self._events[uuid] = replace(event, was_asked=True)
            was_reset = (event.was_asked and asks is False) or (uuid in self._lost and uuid in needs_reset)
            if now_s >= event.until_s or (event.until_s == math.inf and was_reset):
                del self._events[uuid]

    def _note_probes(self, snapshot: Snapshot, now_s: float, wall: datetime) -> None:
        """Take a probe that fails again soon after it passed for a fault: such a card must not come and go."""
        quiet_s = self._policy.fault_quiet_s
        self._returned_s = {uuid: at for uuid, at in self._returned_s.items() if now_s < at + quiet_s}
        for device in snapshot.devices:
            if device.fault:
                self._failing.add(device.uuid)
                known = self._events.get(device.uuid)
                if device.uuid in self._returned_s and (known is None or known.until_s < math.inf):
                    failure = Failure(_class_of(device), rfc3339(wall))
                    self._events[device.uuid] = _Event(0, device.fault, failure, now_s + quiet_s)
            elif device.uuid in self._failing:
                self._failing.remove(device.uuid)
                self._returned_s[device.uuid] = now_s

    def _with_its_event(self, device: Device) -> Device:
        """Return a card with the worst of what its probe shows and what it has reported."""
        severity = _class_of(device).severity if device.fault else -1
        for uuid in (device.uuid, device.parent_uuid or device.uuid, ""):
            event = self._events.get(uuid)
            if event is not None and event.failure.fault_class.severity > severity:
                severity = event.failure.fault_class.severity
                device = replace(device, fault=event.text, failure=event.failure)
        return device

    def _dated(self, device: Device, wall: datetime) -> Device:
        """Return a card that is out with when that began; another class is another fault."""
        if not device.fault:
            self._failures.pop(device.uuid, None)
            return device
        known, its_class = self._failures.get(device.uuid), _class_of(device)
        if known is None or known.fault_class is not its_class:
            since = device.failure.since if device.failure is not None else ""
            known = self._failures[device.uuid] = Failure(its_class, since or rfc3339(wall))
        return replace(device, failure=known)


def _class_of(device: Device) -> FaultClass:
    return device.failure.fault_class if device.failure is not None else FaultClass.OTHER


def _began_by(failure: Failure, at: datetime) -> bool:
    since = time_of(failure.since)
    return since is None or since <= at


def _lost(device: Device, replaced: set[str]) -> bool:
    """Return whether a known card is gone; `replaced` are all UUIDs that are listed, as cards or as their parents."""
    return device.uuid not in replaced and device.parent_uuid not in replaced - {""}
