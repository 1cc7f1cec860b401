"""Has the API server know of seats that have to outlive this process, and takes back those that nobody needs any more.

A stored seat is a holder of its cards. The pod that comes for it takes its place in the write that enters the pod's
share: see `ledger/stored_seats.py` and the journal. What is left of seats is taken back here: of those that were given
up, of those of which a crash has left a part, and of those whose object is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from attrs import define

from gpuledger.model.gang import GroupSeat, SeatGroup
from gpuledger.model.share import Holder, HolderState, Pod, SeatFor, SeatOwner, StoredSeat
from gpuledger.workflows.context import Component
from gpuledger.workflows.tasks import KeyedWorker, gather_all

logger = logging.getLogger(__name__)

AT_ONCE = 8
WRITE_TIMEOUT_S = 15.0
SUSPECT_DELAY_S = 10.0
"""How long a seat may be there that another operator has made, before its object is read: one that makes it still
writes it, and what is listed at the start comes in some order."""

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
        """Enter the seats of a group. After an error some may be there: the caller gives up the seats, or repeats it.

        Seats on nodes whose cards are only counted stay in memory. Raises ShareRefused where a card has no room, or
        what the API server says.
        """
        holders = []
        for seat in self._ledger.seats.of_group(group):
            place = seat.placement
            if isinstance(seat.key, GroupSeat) and place.shares:
                stored = StoredSeat(owner, seat.key.member, len(place.shares), place.host)
                self._ledger.stored_seats.store(seat.key, stored.uid)
                pod = Pod(stored.uid, owner.namespace, owner.name, seat.priority)
                holders += [Holder(pod, share, HolderState.RESERVED, seat=stored) for share in place.shares]
        await gather_all([self._journal.add(holder, WRITE_TIMEOUT_S) for holder in holders])

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

    async def _look_for_owner(self, uid: str) -> None:
        """Give a seat up that was not written in full, or whose object does not want it any more."""
        listed = self._ledger.stored_seats.on_cards(uid)
        seat = next((holder.seat for _, holder in listed if holder.seat is not None), None)
        if seat is None:
            return
        still_wanted = self._owners.get(seat.owner.kind)
        is_wanted = len(listed) == seat.cards and still_wanted is not None and await still_wanted(seat)
        key = self._ledger.stored_seats.whose(uid)
        if not is_wanted and isinstance(key, GroupSeat):
            logger.info("%s: what is reserved for %s is given up", seat.owner, seat.member)
            self._ledger.seats.give_up(key)
