"""Rooms that are made for a gang's members: each pod has its own, and none is of use without the others.

Which of them belong together follows from the pending members and from the ledger, so any operator can go on.
"""

from __future__ import annotations

from contextlib import suppress

from attrs import define

from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.errors import ShareRefused
from gpuledger.model.share import HolderState, Placement, fitting_variant
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import GangState, Member


@define(eq=False, slots=False)
class GangRooms(Component):
    """Looks at what is claimed and reserved now."""

    _gangs: Gangs

    def __attrs_post_init__(self) -> None:
        self._members = self._gangs.members

    def gang_of(self, pod_uid: str) -> GangState | None:
        """Return the gang for which a pod waits, None if it waits for none."""
        state = self._members.of(pod_uid)
        return state if state is not None and pod_uid in state.pending and state.missing > 0 else None

    def is_being_claimed(self, pod_uid: str) -> bool:
        """Return whether claims of a pod, or of others of its gang, are on their way to the API server."""
        state = self.gang_of(pod_uid)
        uids = (pod_uid, *(state.pending if state else ()))
        return any(map(self._ledger.promises.is_under_way, uids))

    def why_to_end(self, pod_uid: str) -> str:
        """Return why room for a pod is of no use any more, empty if nothing is wrong with its gang."""
        state = self.gang_of(pod_uid)
        if state is None or self._have_room(state, claimed=True) >= state.missing:
            return ""
        return "others of its gang have no room, or are gone"

    def keep(self, state: GangState) -> bool:
        """Hold the reserved shares of the members once they suffice for all missing ones; return whether they do.

        Refused members are requeued then.
        """
        if self._have_room(state, claimed=False) < state.missing:
            return False
        for member in state.pending.values():
            uid = member.pod.uid
            reserved = [each for each in self._ledger.holders.of(uid) if each[1].state is HolderState.RESERVED]
            if reserved and self._ledger.seats.of(uid) is None and self._has_room(member, claimed=False):
                shares = tuple(holder.share for _, holder in reserved)
                placement = Placement(reserved[0][0].node_name, shares, member.request.host)
                with suppress(ShareRefused):  # the card is gone; the next look shows it
                    seat = Seat(uid, placement, FOREVER, Strength.WAITING, group=state.name, priority=state.priority)
                    self._ledger.seats.take(seat)
        self._gangs.requeue(state)
        return True

    def _have_room(self, state: GangState, claimed: bool) -> int:
        return sum(self._has_room(member, claimed) for member in state.pending.values())

    def _has_room(self, member: Member, claimed: bool) -> bool:
        uid = member.pod.uid
        if self._ledger.seats.of(uid) is not None:
            return True
        shares = [holder.share for _, holder in self._ledger.holders.of(uid)]
        if claimed:
            shares += [claim.share for _, claim in self._ledger.promises.claims_of(uid)]
        return bool(shares) and fitting_variant(shares, member.request) is not None
