"""Seats that the API server has: they outlive the operator, and another one knows of them.

Such a seat is a holder of its cards, under a UID of its own. It counts by the seat in memory, which the pod that comes
for it takes over; its own share then takes the place of the stored one, in the write that enters it. A stored seat that
nobody has in memory any more is *vacated*: it leaves with the next share that is entered on its card, or by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.seats import FOREVER, Seat, Seats, Strength
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.gang import GroupSeat, ReservationName, SeatGroup, SeatKey, WorkloadName
from gpuledger.model.share import Holder, Placement, SeatFor, SeatOwner, StoredSeat

GIVEN_UP_KEPT = 16_384


def group_of(owner: SeatOwner) -> SeatGroup:
    """Return the group of an owner's seats."""
    kind = ReservationName if owner.kind is SeatFor.RESERVATION else WorkloadName
    return kind(owner.namespace, owner.name)


class StoredSeats:
    """Which seats the API server lists, and on which cards."""

    def __init__(self, entries: Mapping[str, CardEntry], seats: Seats) -> None:
        self._entries = entries  # card UUID -> its line
        self._seats = seats
        self._cards: dict[str, set[str]] = {}  # UID of a seat -> UUIDs of the cards that list it
        self._of_owner: dict[str, Counter[str]] = {}  # UID of an owner -> UID of a seat -> cards that list it as its
        self._sitting: dict[str, dict[str, set[tuple[str, str]]]] = {}  # owner UID -> member -> pod and card UUID
        self._given_up: BoundedMap[str, None] = BoundedMap(GIVEN_UP_KEPT)  # UIDs of those that were given up here
        self.on_learned = Listeners[[str]]()
        """Called with the UID of a seat that another operator has made, or this one before it was started again."""
        self.on_sitting = Listeners[[SeatOwner]]()
        """Called with the owner of a seat that a pod's share has taken, or leaves."""
        seats.on_vacated.append(lambda uid: self._given_up.note(uid, None))

    def uids(self) -> list[str]:
        """Return the UIDs of all seats that the API server lists."""
        return list(self._cards)

    def on_cards(self, uid: str) -> list[tuple[CardEntry, Holder]]:
        """Return the cards that list a seat."""
        entries = (self._entries[uuid] for uuid in self._cards.get(uid, ()))
        return [(entry, entry.stored_seats[uid]) for entry in entries]

    def store(self, key: SeatKey, uid: str) -> None:
        """Note under which UID the API server is to have a seat that is there; no other was ever stored under it."""
        seat = self._seats.of(key)
        if seat is not None:
            self._seats.restore(replace(seat, stored_as=uid))

    def members(self, owner_uid: str) -> set[str]:
        """Return the members of an owner whose seats are listed in full, and not given up.

        A pod may have taken them over.
        """
        found = set()
        for uid in self._of_owner.get(owner_uid, ()):
            seats = [seat for _, holder in self.on_cards(uid) if (seat := holder.seat) and seat.owner.uid == owner_uid]
            if seats and len(seats) == seats[0].cards and self.whose(uid) is not None:
                found.add(seats[0].member)
        return found

    def whose(self, uid: str) -> SeatKey | None:
        """Return who has a seat in memory that the API server lists; None if nobody has it any more."""
        return self._seats.stored_as.get(uid)

    def sitting(self, owner_uid: str) -> dict[str, str]:
        """Return the pods that hold shares in the place of an owner's seats: member -> UID of the pod."""
        return {member: next(iter(pods))[0] for member, pods in self._sitting.get(owner_uid, {}).items()}

    def listed(self, entry: CardEntry, before: Mapping[str, Holder], sitting: Mapping[str, Holder]) -> None:
        """Take over which seats the API server lists on a card now, and who has taken some."""
        if sitting or entry.sitting:
            self._sit(entry, sitting)
        now, uuid = entry.stored_seats, entry.card.uuid
        for uid in before.keys() - now.keys():
            self._cards[uid].discard(uuid)
            self._index(uid, before[uid], -1)
            key = self._seats.stored_as.get(uid)
            if isinstance(key, GroupSeat) and key in entry.seats:  # no pod of ours has come for it: it was taken back
                self._seats.give_up(key)
            if not self._cards[uid]:
                del self._cards[uid]
                self._given_up.drop(uid)
        for uid in before.keys() & now.keys():
            if before[uid].seat != now[uid].seat:
                self._index(uid, before[uid], -1)
                self._index(uid, now[uid], 1)
        for uid in now.keys() - before.keys():
            self._cards.setdefault(uid, set()).add(uuid)
            self._index(uid, now[uid], 1)
            self._learn(entry, now[uid])
            if now[uid] in self.vacated(entry):  # it was given up while it was being written
                self._seats.on_vacated(uid)

    def _index(self, uid: str, holder: Holder, number: int) -> None:
        """Count a seat of a card among its owner's, or with -1 no more.

        Its other cards may say another owner: one that was made anew under its name before all were written.
        """
        if holder.seat is None:
            return
        owner_uid = holder.seat.owner.uid
        counted = self._of_owner.setdefault(owner_uid, Counter())
        counted[uid] += number
        if not counted[uid]:
            del counted[uid]
        if not counted:
            del self._of_owner[owner_uid]

    def _sit(self, entry: CardEntry, before: Mapping[str, Holder]) -> None:
        uuid = entry.card.uuid
        for uid, seat in _seats_of(before, entry.sitting):
            of_owner = self._sitting[seat.owner.uid]
            of_owner[seat.member].discard((uid, uuid))
            if not of_owner[seat.member]:
                del of_owner[seat.member]
            if not of_owner:
                del self._sitting[seat.owner.uid]
            self.on_sitting(seat.owner)
        for uid, seat in _seats_of(entry.sitting, before):
            self._sitting.setdefault(seat.owner.uid, {}).setdefault(seat.member, set()).add((uid, uuid))
            self.on_sitting(seat.owner)

    def learn_again(self) -> None:
        """Keep all that the API server lists, whatever was given up here: another operator may have made it since."""
        self._given_up.clear()
        for uid in self._cards:
            for entry, holder in self.on_cards(uid):
                self._learn(entry, holder)

    def vacated(self, entry: CardEntry, taking: Collection[str] = ()) -> list[Holder]:
        """Return the stored seats that may leave a card when the shares of these pods are entered there.

        They were given up here, or are of one of the pods. Those of another operator are its own.
        """
        found = []
        for uid, holder in entry.stored_seats.items():
            key = self.whose(uid)
            is_given_up = key is None and (uid in self._given_up or holder.seat is None)
            if is_given_up or (key is not None and (key in taking or key not in entry.seats)):
                found.append(holder)
        return found

    def is_vacated(self, uid: str) -> bool:
        """Return whether a seat that the API server lists is nobody's any more, on one of its cards at least."""
        return any(holder in self.vacated(entry) for entry, holder in self.on_cards(uid))

    def _learn(self, entry: CardEntry, holder: Holder) -> None:
        uid, stored = holder.pod.uid, holder.seat
        if stored is None:
            return
        group = group_of(stored.owner)
        key = self._seats.stored_as.get(uid)
        if key is None:
            key = GroupSeat(group, stored.member)
            if self._seats.of(key) is not None:  # two operators have made one, or it is of an earlier object
                key = GroupSeat(group, f"{stored.member} {uid}")
            if uid not in self._given_up:
                placement = Placement(entry.card.node_name, (holder.share,), stored.host)
                seat = Seat(key, placement, FOREVER, Strength.WAITING, (), group, holder.pod.priority, uid)
                self._seats.restore(seat)
                self.on_learned(uid)
            return
        known = self._seats.of(key)
        if known is None or not isinstance(key, GroupSeat):
            return
        place = known.placement
        if place.node_name == entry.card.node_name and len(place.shares) < stored.cards and key not in entry.seats:
            shares = sorted((*place.shares, holder.share), key=lambda share: self._entries[share.uuid].card.place)
            self._seats.restore(replace(known, placement=replace(place, shares=tuple(shares))))


def _seats_of(holders: Mapping[str, Holder], others: Mapping[str, Holder]) -> list[tuple[str, StoredSeat]]:
    """Return the seats of holders that are not among others: UID of the pod, and its seat."""
    return [(uid, each.seat) for uid, each in holders.items() if uid not in others and each.seat is not None]
