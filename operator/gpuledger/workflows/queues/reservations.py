"""Room that is kept for the pods of a workload between its admission and their coming: a seat for each of them.

A seat is held in the ledger under a name of its own, as there is no pod yet, and has a deadline like every hold. A pod
that comes takes the seat of one like it, if kube-scheduler would let it go there. When the first member of a gang
comes, all seats become places that are kept for the gang, which is placed as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gpuledger.formats.kubernetes.workload import WorkloadName, workload_of
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import ShareRefused
from gpuledger.model.gang import Gang, GangName
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.node import NodeSet
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod

SEAT = " (seat)"


@dataclass(slots=True)
class Seat:
    """The request of one pod of a workload, and the placement reserved for it."""

    key: str
    """The key under which it is held, in place of a pod's UID."""
    pod_set: str
    request: PodRequest
    node_names: NodeSet


@dataclass(slots=True)
class Reservation:
    """The seats of a workload, by their keys; those that pods have taken are gone."""

    name: WorkloadName
    deadline_s: float
    seats: dict[str, Seat] = field(default_factory=dict)


class Reservations:
    """Keeps them. Nothing of it is known to the API server."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of: dict[WorkloadName, Reservation] = {}
        self._given: dict[str, Placement | None] = {}  # UID of a pod that has taken a seat -> its place, if it got it
        self._names: dict[str, WorkloadName] = {}  # key of a seat -> its workload
        self.for_gang = Listeners[[GangName, Mapping[str, Placement], float]]()
        """Called with what was kept until a member of a gang has come, and until when: it is dropped just before."""

    def of(self, name: WorkloadName) -> Reservation | None:
        """Return the workload's reservation, or None."""
        return self._of.get(name)

    def are_for(self, found_pod: JsonMapping) -> bool:
        """Return whether room is kept for the workload of a pod."""
        named = workload_of(found_pod) if self._of else None
        return named is not None and named[0] in self._of

    def keep(self, name: WorkloadName, seats: Iterable[Seat], deadline_s: float) -> None:
        """Record that these seats are held in the ledger."""
        found = Reservation(name, deadline_s, {seat.key: seat for seat in seats})
        if found.seats:
            self._of[name] = found
        self._names.update(dict.fromkeys(found.seats, name))

    def knows(self, seats: Iterable[Seat], namespace: str) -> None:
        """Let seats count for the quota of their namespace."""
        for seat in seats:
            self._ledger.quotas.knows(seat.key, namespace)

    def drop(self, name: WorkloadName) -> None:
        """Give up what is kept for a workload. Idempotent."""
        found = self._of.pop(name, None)
        if found is not None:
            self.forget(found.seats.values())

    def forget(self, seats: Iterable[Seat]) -> None:
        """Hold none of these seats."""
        for seat in seats:
            self._ledger.drop_hold(seat.key)
            self._ledger.quotas.forget(seat.key)
            self._names.pop(seat.key, None)

    def extend(self, name: WorkloadName, deadline_s: float) -> None:
        """Extend the workload's reservation."""
        found = self._of.get(name)
        if found is None:
            return
        found.deadline_s = deadline_s
        for key in found.seats:
            hold = self._ledger.hold_of(key)
            if hold is not None:
                with suppress(ShareRefused):  # its card is gone meanwhile
                    self._ledger.hold(key, hold.placement, deadline_s)

    def expire(self, now_s: float) -> list[WorkloadName]:
        """Drop expired reservations and return their workloads."""
        late = [name for name, found in self._of.items() if found.deadline_s <= now_s]
        for name in late:
            self.drop(name)
        return late

    def first_deadline_s(self) -> float | None:
        """Return when the next deadline is over."""
        return min((found.deadline_s for found in self._of.values()), default=None)

    def take(
        self, found_pod: JsonMapping, pod: Pod, request: PodRequest, node_names: Collection[str], gang: Gang | None
    ) -> None:
        """Let a pod have the room that is kept for one like it: on hold for the pod itself, or kept for its gang."""
        named = workload_of(found_pod) if self._of else None
        if named is None:
            return
        name, pod_set = named
        found = self._of.get(name)
        if found is None or pod.uid in self._given:
            return
        alike = [
            seat for seat in found.seats.values() if (seat.pod_set, seat.request.shape) == (pod_set, request.shape)
        ]
        if not alike:
            return
        if gang is not None:
            reserved = {key: hold.placement for key in found.seats if (hold := self._ledger.hold_of(key))}
            self.drop(name)
            self.for_gang(gang.name, reserved, found.deadline_s)
            return
        seat, placement = min(
            ((seat, self._placement(seat)) for seat in alike),
            key=lambda each: (each[1] is None, each[1] is not None and each[1].node_name not in node_names),
        )
        del found.seats[seat.key]
        hold = self._ledger.hold_of(seat.key)
        self.forget([seat])
        if not found.seats:
            del self._of[name]
        self._given[pod.uid] = None  # it asks again, and must not take the seat of another one then
        if hold is not None and placement is not None and placement.node_name in node_names:
            with suppress(ShareRefused):
                self._ledger.hold(pod.uid, placement, hold.deadline_s)
                self._given[pod.uid] = placement

    def given(self, pod_uid: str) -> Placement | None:
        """Return the place that a pod has taken over, if it is still on hold for it."""
        placement, hold = self._given.get(pod_uid), self._ledger.hold_of(pod_uid)
        return placement if placement is not None and hold is not None and hold.placement == placement else None

    def observe_pending(self, pod: JsonMapping) -> None:
        """See PendingPodTracker: what is to be known of a pod, kube-scheduler says with its question."""

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._given.pop(pod_uid, None)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return set(self._given)

    def name_of(self, key: str) -> str:
        """Return the name to show for a seat; empty for anything else."""
        name = self._names.get(key)
        return f"{name} (reserved for a pod of this workload)" if name else ""

    def _placement(self, seat: Seat) -> Placement | None:
        hold = self._ledger.hold_of(seat.key)
        return hold.placement if hold else None
