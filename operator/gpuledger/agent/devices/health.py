"""Decides which cards are out of service, why, and when they come back. Pure: time is an argument.

A card is out while its probe fails, and for a while after its last critical fault: errors of the hardware come in
bursts, and a pod that starts between two of them is lost. So is it when its probe fails time and again. A card that the
driver no longer lists stays in the list, out, for as long as the agent runs: pods may hold it. One that was cut into
MIG devices, or MIG devices that were put together again, are not lost but replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuledger.agent.devices.source import Device, Fault, Snapshot

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a faulty program causes on a card that works: graphics engine exception, memory page fault, stopped
processing, preemptive cleanup, video processor exception, context switch timeout. Source: NVIDIA's k8s-device-plugin,
`internal/rm/health.go`."""

LOST = "lost: the driver no longer lists the card"


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The faults that put a card out of service, and for how long."""

    fault_quiet_s: float = 300.0
    """A card comes back this long after its last critical fault, if its probe passes then."""
    ignored_xids: frozenset[int] = APPLICATION_XIDS
    """Faults that say nothing of the card."""

    def ignoring(self, xids: Iterable[int]) -> HealthPolicy:
        """Return the policy with more faults ignored."""
        return replace(self, ignored_xids=self.ignored_xids | frozenset(xids))


class CardHealth:
    """The memory of cards between two looks at them."""

    def __init__(self, policy: HealthPolicy) -> None:
        self._policy = policy
        self._known: dict[str, Device] = {}  # UUID -> the card as it was last listed
        self._faults: dict[str, tuple[float, str]] = {}  # UUID, or "" for all cards -> time and text of the last fault
        self._failing: set[str] = set()  # UUIDs of cards whose probe failed at the last look
        self._returned_s: dict[str, float] = {}  # UUID -> when its probe passed again, after it had failed

    def take(self, fault: Fault, now_s: float) -> bool:
        """Remember a fault; tell whether it counts, which is a reason to look at once."""
        if fault.code in self._policy.ignored_xids:
            return False
        if fault.code:
            self._faults[fault.uuid] = (now_s, fault.text)
        return True

    def judge(self, snapshot: Snapshot, now_s: float) -> Snapshot:
        """Return the snapshot with the reason of every card that is out, and with those that have vanished."""
        self._forget_old_faults(now_s)
        self._note_probes(snapshot, now_s)
        listed = {device.uuid for device in snapshot.devices}
        replaced = listed | {device.parent_uuid for device in snapshot.devices}
        self._known = {uuid: device for uuid, device in self._known.items() if _lost(device, replaced)}
        lost = [replace(device, fault=LOST) for device in self._known.values()]
        self._known |= {device.uuid: device for device in snapshot.devices}
        judged = [replace(device, fault=device.fault or self._fault_of(device)) for device in snapshot.devices]
        devices = sorted([*judged, *lost], key=lambda device: (device.index, device.uuid))
        return replace(snapshot, devices=tuple(devices))

    def driver_gone(self) -> None:
        """Forget all faults: a driver that comes back has set up every card again, and each is probed then."""
        self._faults.clear()

    def next_return_s(self) -> float | None:
        """Return when the next fault is over, which is a reason to look; None while there is none."""
        return min((at + self._policy.fault_quiet_s for at, _ in self._faults.values()), default=None)

    def _forget_old_faults(self, now_s: float) -> None:
        quiet_s = self._policy.fault_quiet_s
        self._faults = {uuid: (at, text) for uuid, (at, text) in self._faults.items() if now_s < at + quiet_s}

    def _note_probes(self, snapshot: Snapshot, now_s: float) -> None:
        """Take a probe that fails again soon after it passed for a fault: such a card must not come and go."""
        quiet_s = self._policy.fault_quiet_s
        self._returned_s = {uuid: at for uuid, at in self._returned_s.items() if now_s < at + quiet_s}
        for device in snapshot.devices:
            if device.fault:
                self._failing.add(device.uuid)
                if device.uuid in self._returned_s:
                    self._faults[device.uuid] = (now_s, device.fault)
            elif device.uuid in self._failing:
                self._failing.remove(device.uuid)
                self._returned_s[device.uuid] = now_s

    def _fault_of(self, device: Device) -> str:
        for uuid in (device.uuid, device.parent_uuid or device.uuid, ""):
            if uuid in self._faults:
                return self._faults[uuid][1]
        return ""


def _lost(device: Device, replaced: set[str]) -> bool:
    """Tell whether a known card is gone; `replaced` are all UUIDs that are listed, as cards or as their parents."""
    return device.uuid not in replaced and device.parent_uuid not in replaced - {""}
