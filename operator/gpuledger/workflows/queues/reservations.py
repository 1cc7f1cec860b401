"""Room that is kept for the pods of a workload between its admission and their coming: a seat for each of them.

A pod that comes takes a seat of its set of pods, if kube-scheduler would let it go there. When the first member of a
gang comes, all seats become places that are kept for the gang, which is placed as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from attrs import define

from gpuledger.formats.kubernetes.workload import workload_of
from gpuledger.ledger.seats import Seat
from gpuledger.model.errors import ShareRefused
from gpuledger.model.gang import Gang, GroupSeat, SeatGroup, SeatKey, WorkloadName
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod, are_shares_of
from gpuledger.workflows.context import Component


def seat_key(name: WorkloadName, pod_set: str, number: int) -> GroupSeat:
    """Return the key of the seat of a workload's pod, by its set of pods and its number in it."""
    return GroupSeat(name, f"{pod_set}/{number}")


def pod_set_of(key: SeatKey) -> str:
    """Return the set of pods of such a seat."""
    return key.member.partition("/")[0] if isinstance(key, GroupSeat) else ""


@define(eq=False, slots=False)
class Reservations(Component):
    """Lets pods have the seats of their workloads."""

    def __attrs_post_init__(self) -> None:
        self._taken: set[str] = set()  # UIDs of pods that have come for their seat, and have had it

    def are_for(self, found_pod: JsonMapping) -> bool:
        """Return whether room is kept for the workload of a pod."""
        named = workload_of(found_pod)
        return named is not None and bool(self._ledger.seats.of_group(named[0]))

    def keys_of(self, name: WorkloadName) -> set[SeatKey]:
        """Return the keys of a workload's seats."""
        return {seat.key for seat in self._ledger.seats.of_group(name)}

    def drop(self, name: WorkloadName) -> None:
        """Give up what is kept for a workload. Idempotent."""
        for key in self.keys_of(name):
            if isinstance(key, GroupSeat):  # else a pod has it by now
                self._ledger.seats.give_up(key)

    def extend(self, name: WorkloadName, until_s: float) -> None:
        """Extend the workload's reservation."""
        for seat in self._ledger.seats.of_group(name):
            self._ledger.seats.strengthen(seat.key, seat.strength, until_s)

    def take(
        self, found_pod: JsonMapping, pod: Pod, request: PodRequest, node_names: Collection[str], gang: Gang | None
    ) -> None:
        """Let a pod have a seat that is kept for one like it, as its own, or as a place that is kept for its gang.

        A pod gets one seat, once; if kube-scheduler would not let it go there, nobody has it any more.
        """
        named = workload_of(found_pod)
        if named is None or pod.uid in self._taken:
            return
        name, pod_set = named
        seats = self._ledger.seats.of_group(name)
        alike = [seat for seat in seats if pod_set_of(seat.key) == pod_set and self._is_like(seat, request)]
        if not alike:
            return
        if gang is not None:
            self._become(name, gang.name)
            return
        self._taken.add(pod.uid)
        seat = min(alike, key=lambda each: each.placement.node_name not in node_names)
        if seat.placement.node_name in node_names:
            with suppress(ShareRefused):  # the card is gone
                self._ledger.seats.take(replace(seat, key=pod.uid), without={seat.key})
        self._ledger.seats.give_up(seat.key)

    def given(self, pod_uid: str) -> Placement | None:
        """Return the placement of a seat that a pod has got from its group, None if it has none."""
        seat = self._ledger.seats.of(pod_uid)
        return seat.placement if seat is not None and seat.group is not None else None

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._taken.discard(pod_uid)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return set(self._taken)

    def _become(self, name: WorkloadName, group: SeatGroup) -> None:
        """Let the seats of a workload be those of a gang."""
        seats = {seat.key: seat for seat in self._ledger.seats.of_group(name)}
        given = [
            replace(seat, key=GroupSeat(group, key.member), group=group)
            for key, seat in seats.items()
            if isinstance(key, GroupSeat)
        ]
        with suppress(ShareRefused):  # a card is gone; the gang looks for others
            self._ledger.seats.take(*given, without=seats)
        self.drop(name)

    def _is_like(self, seat: Seat, request: PodRequest) -> bool:
        """Return whether a seat is what a pod with this request would get there."""
        shares, node_name = seat.placement.shares, seat.placement.node_name
        if not shares:  # of a node that only counts its cards
            return seat.placement.host == request.host
        return are_shares_of(shares, request, self._ledger.node_room(node_name).cards)
