"""Seats that objects keep for pods that are to come: stored at the API server, and taken by the pods when they come.

A stored seat is a holder of its cards, and outlives this process. The pod that comes for it takes its place in the
write that enters the pod's share: see `ledger/stored_seats.py` and the journal. What is left of seats is taken back:
of those that were given up, of those of which a crash has left a part, and of those whose object is gone.

A pod takes a seat that is what it would get on that node, if kube-scheduler would let it go there; it gets one, once.
When the first member of a gang comes, all seats of that group become places that are kept for the gang, which is placed
as a whole. Who a pod says to be, users can write, and only of their own namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex

from attrs import define

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.errors import ShareRefused
from gpuledger.model.gang import Gang, GroupSeat, ReservationName, SeatGroup
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import PodRequest
from gpuledger.model.share import (
    SEAT_PREFIX,
    Holder,
    HolderState,
    Placement,
    Pod,
    SeatFor,
    SeatOwner,
    StoredSeat,
    are_shares_of,
)
from gpuledger.model.usage import Charge
from gpuledger.workflows.context import Component, Context
from gpuledger.workflows.tasks import KeyedWorker, gather_all

logger = logging.getLogger(__name__)

CHARGED_AS = {SeatFor.WORKLOAD: "Workload", SeatFor.RESERVATION: "GPUReservation"}
"""What keeps a seat -> its kind, as in the owner of a pod."""

UID_BYTES = 16
"""Random bytes in the UID of a seat: one that was given up and its successor are never taken for each other."""

AT_ONCE = 8
WRITE_TIMEOUT_S = 15.0
SUSPECT_DELAY_S = 10.0
"""How long a seat may be there that another operator has made, before its object is read: one that makes it still
writes it, and what is listed at the start comes in some order."""


def untaken(ledger: Ledger, group: SeatGroup) -> list[Seat]:
    """Return the seats of a group that no pod has taken."""
    return [seat for seat in ledger.seats.of_group(group) if isinstance(seat.key, GroupSeat)]


def drop(ledger: Ledger, group: SeatGroup) -> None:
    """Give up the seats of a group that no pod has taken. Idempotent."""
    for seat in untaken(ledger, group):
        ledger.seats.give_up(seat.key)


StillWanted = Callable[[StoredSeat], Awaitable[bool]]


@define(eq=False, slots=False)
class SeatStore(Component):
    """Writes seats, and removes them."""

    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._owners: dict[SeatFor, StillWanted] = {}
        self._suspects: set[str] = set()  # UIDs of seats of which another part is to say whether it wants them
        self.worker = KeyedWorker(self._bring_up_to_date, AT_ONCE, self._may_write)
        self._ledger.seats.on_vacated.append(self.worker.mark)
        self._ledger.stored_seats.on_learned.append(self._suspect_soon)

    def ask(self, kind: SeatFor, still_wanted: StillWanted) -> None:
        """Have a part asked about seats that it has not made itself. Where nobody is to be asked, they are taken back.

        It reads the object of the seat where it does not know it. Raises ApiError.
        """
        self._owners[kind] = still_wanted

    def became_active(self) -> None:
        """See Follower: who was active before may have left seats behind."""
        self._ledger.stored_seats.learn_again()
        for uid in self._ledger.stored_seats.uids():
            self._suspect_soon(uid)

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    async def store(self, group: SeatGroup, owner: SeatOwner) -> None:
        """Enter the seats of a group that the API server does not have yet.

        After an error it may have some of them: the caller gives up the others, or all, or repeats it. Seats on nodes
        whose cards are only counted stay in memory. Raises ShareRefused where a card has no room, or what the API
        server says.
        """
        holders = []
        for seat in self._ledger.seats.of_group(group):
            place = seat.placement
            if isinstance(seat.key, GroupSeat) and place.shares and not self._is_stored(seat):
                stored = StoredSeat(owner, seat.key.member, len(place.shares), place.host)
                uid = seat.stored_as or SEAT_PREFIX + token_hex(UID_BYTES)
                self._ledger.stored_seats.store(seat.key, uid)
                charge = Charge(f"{CHARGED_AS[owner.kind]}/{owner.name}")
                pod = Pod(uid, owner.namespace, owner.name, seat.priority, charge=charge)
                holders += [Holder(pod, share, HolderState.RESERVED, seat=stored) for share in place.shares]
        await gather_all([self._journal.add(holder, WRITE_TIMEOUT_S) for holder in holders])

    def _is_stored(self, seat: Seat) -> bool:
        """Return whether the API server has all of a seat."""
        there = {entry.card.uuid for entry, _ in self._ledger.stored_seats.on_cards(seat.stored_as)}
        return bool(seat.stored_as) and there.issuperset(share.uuid for share in seat.placement.shares)

    def _suspect_soon(self, uid: str) -> None:
        self._tasks.after(SUSPECT_DELAY_S, self._suspect, uid)

    def _suspect(self, uid: str) -> None:
        if self._may_write():
            self._suspects.add(uid)
            self.worker.mark(uid)
        elif self._is_active():  # not everything has been read yet
            self._suspect_soon(uid)

    async def _bring_up_to_date(self, uid: str) -> None:
        """Take a seat back where it is nobody's any more. Raises ApiError; it is tried again."""
        stored = self._ledger.stored_seats
        if uid in self._suspects:
            await self._look_for_owner(uid)
            self._suspects.discard(uid)
        for entry, holder in stored.on_cards(uid):
            if holder in stored.vacated(entry):
                await self._journal.remove(entry.card.uuid, uid, holder)
        if stored.is_vacated(uid):  # it was entered once more meanwhile
            self.worker.mark(uid)

    async def _look_for_owner(self, uid: str) -> None:
        """Give a seat up that was not written in full, is a second one, or is not wanted any more by its object."""
        listed = self._ledger.stored_seats.on_cards(uid)
        seat = next((holder.seat for _, holder in listed if holder.seat is not None), None)
        if seat is None:
            return
        still_wanted = self._owners.get(seat.owner.kind)
        key = self._ledger.stored_seats.whose(uid)
        is_second = isinstance(key, GroupSeat) and key.member != seat.member
        is_whole = len(listed) == seat.cards and not is_second
        is_wanted = is_whole and still_wanted is not None and await still_wanted(seat)
        if not is_wanted and isinstance(key, GroupSeat) and self._ledger.stored_seats.whose(uid) == key:
            logger.info("%s: what is reserved for %s is given up", seat.owner, seat.member)
            self._ledger.seats.give_up(key)


SeatFinder = Callable[[JsonMapping], Collection[Seat]]
"""Takes a pod, returns the seats that are kept for one like it: those of the first group first."""


@define(eq=False, slots=False)
class SeatTakers(Component):
    """Lets pods have seats. Of those that a pod could have, it takes one on a node where it may go."""

    def __attrs_post_init__(self) -> None:
        self.finders: list[SeatFinder] = []
        """One for each kind of objects that keep seats."""
        self._taken: set[str] = set()  # UIDs of pods that have come for their seat, and have had it

    def are_for(self, found_pod: JsonMapping) -> bool:
        """Return whether there are seats for a pod."""
        return any(find(found_pod) for find in self.finders)

    def take(
        self, found_pod: JsonMapping, pod: Pod, request: PodRequest, node_names: Collection[str], gang: Gang | None
    ) -> None:
        """Let a pod have a seat that is kept for one like it, as its own, or as a place that is kept for its gang.

        A pod gets one seat, once.
        """
        if pod.uid in self._taken:
            return
        seats = (seat for find in self.finders for seat in find(found_pod))
        alike = [seat for seat in seats if isinstance(seat.key, GroupSeat) and self._is_like(seat, request)]
        if not alike:
            return
        if gang is not None:
            if alike[0].group is not None:
                self._become(alike[0].group, gang.name)
            return
        seat = min(alike, key=lambda each: each.placement.node_name not in node_names)
        if seat.placement.node_name in node_names:
            with suppress(ShareRefused):  # the card is gone
                self._taken.add(pod.uid)
                self._ledger.seats.take(replace(seat, key=pod.uid), without={seat.key})
                return
        elif isinstance(seat.group, ReservationName):  # it waits for a pod that may go there
            return
        self._taken.add(pod.uid)  # each seat of a workload is for one of its pods, and this one looks elsewhere
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

    def _become(self, group: SeatGroup, gang: SeatGroup) -> None:
        """Let the seats of a group be those of a gang."""
        seats = {seat.key: seat for seat in untaken(self._ledger, group)}
        given = [
            replace(seat, key=GroupSeat(gang, key.member), group=gang)
            for key, seat in seats.items()
            if isinstance(key, GroupSeat)
        ]
        with suppress(ShareRefused):  # a card is gone; the gang looks for others
            self._ledger.seats.take(*given, without=seats)
        drop(self._ledger, group)

    def _is_like(self, seat: Seat, request: PodRequest) -> bool:
        """Return whether a seat is what a pod with this request would get there."""
        shares, node_name = seat.placement.shares, seat.placement.node_name
        if not shares:  # of a node that only counts its cards
            return seat.placement.host == request.host
        return are_shares_of(shares, request, self._ledger.node_room(node_name).cards)


class KeptSeats:
    """Both."""

    def __init__(self, context: Context, may_write: Callable[[], bool]) -> None:
        self.store, self.takers = SeatStore(context, may_write), SeatTakers(context)
