"""Seats: the only table of places that are kept beside the holders of cards.

Somebody has a placement until a time: a pod, or a pod of a group that does not exist yet. Its *strength* says whether
others may take it. Its *stage* says what the API server knows of it: nothing, as of all `Seats`; that the room is
promised, though pods are still there that are to leave for it (`Promises`, the claims of a card); or that it is
reserved, which makes the pod a holder of the card. What is stored changes only when the API server says so.

Cards, CPU and quotas are sums over seats and holders: see `entry.py`, `hosts.py` and `quotas.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf

from attrs import define, field

from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.hosts import Hosts
from gpuledger.ledger.quotas import Quotas, Tally
from gpuledger.model.card import Card
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import QuotaExceeded, ShareRefused
from gpuledger.model.gang import SeatGroup, SeatKey
from gpuledger.model.share import Claim, Holder, Placement, Share

FOREVER = inf
"""Of a seat that does not expire: its owner gives it up."""

NOBODY: frozenset[SeatKey] = frozenset()


class Strength(IntEnum):
    """Whether others may take a seat: a stronger one displaces a weaker one."""

    OFFER = 1
    """An alternative, or cards chosen before anybody has asked for them: for everybody who needs the room."""
    WAITING = 2
    """Kept for a pod that has not come for it: for pods of higher priority, which take all seats of a group."""
    CHOSEN = 3
    """The answer to a Filter: for nobody else before it expires."""
    BINDING = 4
    """A write in flight decides about it."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A placement that is kept until `until_s`, a time of the caller's clock in seconds."""

    key: SeatKey
    placement: Placement
    until_s: float
    strength: Strength = Strength.CHOSEN
    spares: tuple[Placement, ...] = ()
    """The same on other nodes, the preferred first, while one of them can still be chosen instead: offers."""
    group: SeatGroup | None = None
    """The group of which all seats are kept, or none; None for a pod by itself."""
    priority: int = 0
    """Of its pod or group: decides who may displace it."""
    stored_as: str = ""
    """The UID under which the API server has it as a holder, or is to have it; empty if it is in memory alone. A pod
    that takes a seat over has that, too, until its own share is entered in the same place."""

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All that is kept, the preferred first."""
        return (self.placement, *self.spares)

    @property
    def has_offers(self) -> bool:
        """Whether others get some of it where they need it."""
        return self.strength is Strength.OFFER or bool(self.spares)

    def offers(self, uuid: str) -> bool:
        """Return whether everybody else may take this card's share."""
        return self.strength is Strength.OFFER or all(share.uuid != uuid for share in self.placement.shares)


class Seats:
    """All seats, by key, group and card. `touch` is called with the name of a node whose room has changed."""

    def __init__(self, entries: Mapping[str, CardEntry], hosts: Hosts, touch: Callable[[str], None]) -> None:
        self._entries = entries  # card UUID -> its line
        self._hosts = hosts
        self._touch = touch
        self._seats: dict[SeatKey, Seat] = {}
        self._with_offers: set[SeatKey] = set()
        self._of_group: dict[SeatGroup, dict[SeatKey, None]] = {}
        self._waiting: Counter[int] = Counter()  # priority -> number of seats of strength WAITING
        self.stored_as: dict[str, SeatKey] = {}
        """UID of a seat at the API server -> whose it is. For reading: see `StoredSeats`."""
        self.quotas = Quotas(entries, self._seats)
        self.first_deadline_s = FOREVER
        """Before this time, `expire` has nothing to do."""
        self.on_displaced = Listeners[[Sequence[Seat]]]()
        """Called with the seats of which a pod of higher priority has taken one: of single pods, and whole groups."""
        self.on_vacated = Listeners[[str]]()
        """Called with the UID of a seat that the API server has, or is to have, and that was given up."""

    def of(self, key: SeatKey) -> Seat | None:
        """Return the seat of a pod, or of one that is to come; None if it has none."""
        return self._seats.get(key)

    def of_group(self, group: SeatGroup) -> list[Seat]:
        """Return the seats of a group."""
        return [self._seats[key] for key in self._of_group.get(group, ())]

    # Taking and giving up.

    def take(self, *seats: Seat, without: Collection[SeatKey] = NOBODY) -> None:
        """Keep these seats, each in place of an earlier one of its key, and give up those of `without`.

        What the API server has of the earlier one stays where the new one is. Offers that are in the way are taken
        back, except for another offer. Raises ShareRefused, and changes nothing,
        when a card has no room for a seat or is not there; QuotaExceeded where a namespace would have too much.
        """
        self._check(seats, without)
        before = {seat.key: self._seats[seat.key].stored_as for seat in seats if seat.key in self._seats}
        for key in (*without, *(seat.key for seat in seats)):
            self.give_up(key)
        for seat in seats:
            self._take_back_offers_for(seat)
            self._put(replace(seat, stored_as=seat.stored_as or before[seat.key]) if before.get(seat.key) else seat)

    def settle(self, key: SeatKey, node_name: str) -> Placement | None:
        """Keep of a seat what is on one node, and give up the rest; None, and no change, if that is nothing."""
        seat = self._seats.get(key)
        kept = next((each for each in seat.placements if each.node_name == node_name), None) if seat else None
        if seat is None or kept is None or not self._has_counted(key, kept):
            return None
        if seat.has_offers:
            strength = max(seat.strength, Strength.CHOSEN)
            self._exchange(replace(seat, placement=kept, spares=(), strength=strength))
            self.quotas.seat_changed(key)
            for each in seat.placements:
                if each is not kept:
                    self._take_off(key, each)
            self._hosts.take(key, node_name, kept.host)
        return kept

    def restore(self, seat: Seat) -> None:
        """Keep a seat as the API server has it, in place of an earlier one of its key: the room is there."""
        if seat.key in self._seats:
            self._index(self._seats[seat.key], -1)
        self._put(seat)

    def strengthen(self, key: SeatKey, strength: Strength, until_s: float) -> None:
        """Let a seat that is there be of this strength, until then."""
        self._exchange(replace(self._seats[key], strength=strength, until_s=until_s))
        self.first_deadline_s = min(self.first_deadline_s, until_s)

    def give_up(self, key: SeatKey) -> bool:
        """Give up a seat; return whether there was one. Shares at the API server stay."""
        seat = self._seats.pop(key, None)
        if seat is None:
            return False
        self._index(seat, -1)
        self._hosts.give_up(key)
        for placement in seat.placements:
            self._take_off(key, placement)
        self.quotas.seat_changed(key)
        if seat.stored_as:
            self.on_vacated(seat.stored_as)
        return True

    def expire(self, now_s: float) -> list[Seat]:
        """Give up the seats whose time is over; return them."""
        if now_s < self.first_deadline_s:
            return []
        late = [seat for seat in self._seats.values() if seat.until_s <= now_s]
        for seat in late:
            self.give_up(seat.key)
        self.first_deadline_s = min((seat.until_s for seat in self._seats.values()), default=FOREVER)
        return late

    # Displacing.

    @property
    def are_offered(self) -> bool:
        """Whether there are any offers."""
        return bool(self._with_offers)

    def offered_on(self, entry: CardEntry) -> list[SeatKey]:
        """Return whose shares of a card are only offers."""
        if not self._with_offers:
            return []
        return [key for key in entry.seats if key in self._with_offers and self._seats[key].offers(entry.card.uuid)]

    def given_up_on(self, entry: CardEntry, without: Collection[SeatKey]) -> set[SeatKey]:
        """Return whose shares of a card are only offers, or among these. Costs what is on the card: use a set."""
        return {*self.offered_on(entry), *(key for key in entry.seats if key in without)}

    def offered_nodes(self) -> set[str]:
        """Return the nodes on which something is only offered."""
        placements = (each for key in self._with_offers for each in self._seats[key].placements)
        return {placement.node_name for placement in placements}

    def yielding(self, priority: int) -> set[SeatKey]:
        """Return the seats that a pod of this priority may take over: those that wait, and are of lower priority.

        A group yields as a whole, so only if none of its seats is stronger.
        """
        if not any(lower < priority for lower in self._waiting):
            return set()
        waiting = (seat for seat in self._seats.values() if seat.strength is Strength.WAITING)
        found = {seat.key: seat.group for seat in waiting if seat.priority < priority}
        keys = set(found)
        for group in {group for group in found.values() if group is not None}:
            if not keys.issuperset(self._of_group[group]):
                keys.difference_update(self._of_group[group])
        return keys

    def take_over(self, *seats: Seat, yielding: Collection[SeatKey], without: Collection[SeatKey] = NOBODY) -> None:
        """Keep seats, all or none, and displace as few as possible of those that yield to them: each with its group.

        Those of `without` are given up, too. Raises as `take` does.
        """
        displaced = self._in_the_way(seats, yielding, without) if yielding else {}
        lost = [self._seats[key] for key in displaced]
        self.take(*seats, without={*without, *displaced} if lost else without)
        if lost:
            self.on_displaced(lost)

    def _in_the_way(
        self, seats: Sequence[Seat], yielding: Collection[SeatKey], without: Collection[SeatKey]
    ) -> dict[SeatKey, None]:
        found: dict[SeatKey, None] = {}
        beside: dict[str, list[Share]] = {}  # card UUID -> shares of the seats before
        gone = {*without, *(seat.key for seat in seats)}
        for seat in seats:
            for share in seat.placement.shares:
                entry, others = self._entries.get(share.uuid), beside.setdefault(share.uuid, [])
                if entry is None:
                    continue
                here = (self._seats[key] for key in entry.seats if key in yielding)
                for other in sorted(here, key=lambda each: (each.priority, str(each.key))):
                    if entry.takes(share, seat.key, {*found, *gone, *self.offered_on(entry)}, others):
                        break
                    found.update(self._of_group[other.group] if other.group is not None else {other.key: None})
                others.append(share)
            if not seat.placement.shares:  # of a node that only counts its cards
                node_name = seat.placement.node_name
                found.update(dict.fromkeys(k for k in yielding if self._seats[k].placement.node_name == node_name))
        return found

    def _take_back_offers_for(self, seat: Seat) -> None:
        if not self._with_offers or seat.strength is Strength.OFFER:
            return
        for share in (share for placement in seat.placements for share in placement.shares):
            entry = self._entries[share.uuid]
            for key in self.offered_on(entry):
                if entry.takes(share, seat.key):
                    break
                offering = self._seats[key]
                if offering.strength is Strength.OFFER:
                    self.give_up(key)
                else:
                    self.settle(key, offering.placement.node_name)

    # Cards.

    def on_card(self, uuid: str) -> dict[SeatKey, Share]:
        """Return the shares of a card for which there are seats: of one that is new, or has come back."""
        return {
            seat.key: share
            for seat in self._seats.values()
            for placement in seat.placements
            for share in placement.shares
            if share.uuid == uuid
        }

    # Inside.

    def _put(self, seat: Seat) -> None:
        key = seat.key
        self._seats[key] = seat
        self._index(seat, 1)
        self.quotas.seat_changed(key)
        self.first_deadline_s = min(self.first_deadline_s, seat.until_s)
        for each in seat.placements:
            for share in each.shares:
                entry = self._entries[share.uuid]
                entry.seats[key] = share
                entry.known_room = None
        self._hosts.take(key, seat.placement.node_name, seat.placement.host)
        for each in seat.placements:
            self._touch(each.node_name)

    def _exchange(self, seat: Seat) -> None:
        """Put a seat in place of that of its key, in the table and the indexes."""
        self._index(self._seats[seat.key], -1)
        self._seats[seat.key] = seat
        self._index(seat, 1)

    def _index(self, seat: Seat, number: int) -> None:
        """Put a seat into the indexes, or with -1 take it out."""
        if seat.has_offers:
            (self._with_offers.add if number > 0 else self._with_offers.discard)(seat.key)
        if seat.strength is Strength.WAITING:
            self._waiting[seat.priority] += number
            if not self._waiting[seat.priority]:
                del self._waiting[seat.priority]
        if seat.stored_as:
            if number > 0:
                self.stored_as[seat.stored_as] = seat.key
            elif self.stored_as.get(seat.stored_as) == seat.key:
                del self.stored_as[seat.stored_as]
        if seat.group is None:
            return
        if number > 0:
            self._of_group.setdefault(seat.group, {})[seat.key] = None
        else:
            del self._of_group[seat.group][seat.key]
            if not self._of_group[seat.group]:
                del self._of_group[seat.group]

    def _check(self, seats: Sequence[Seat], without: Collection[SeatKey]) -> None:
        """Raise what `take` raises."""
        leaving = {*without, *(seat.key for seat in seats)} if without or len(seats) > 1 else NOBODY
        beside: dict[str, list[Share]] = {}  # card UUID -> shares of the seats that were checked
        counted: dict[str, int] = {}  # node name -> cards that these seats take there, where they are only counted
        tally = Tally(self.quotas, leaving) if self.quotas.limited() else None
        for seat in seats:
            for each in seat.placements:
                if not each.shares and each.host.cards:
                    taken = counted.get(each.node_name, 0)
                    if not self._has_counted(seat.key, each, leaving, taken):
                        raise ShareRefused(f"node {each.node_name} has fewer than {each.host.cards} GPUs left")
                    counted[each.node_name] = taken + each.host.cards
                for share in each.shares:
                    self._check_share(seat, each.node_name, share, leaving, beside)
            exceeded = tally.add(seat.key, seat.placements) if tally else None
            if exceeded:
                raise QuotaExceeded(exceeded)

    def _check_share(
        self, seat: Seat, node_name: str, share: Share, leaving: Collection[SeatKey], beside: dict[str, list[Share]]
    ) -> None:
        """Raise ShareRefused unless a share of a seat fits; the shares that have to fit with it are in `beside`."""
        entry = self._entries.get(share.uuid)
        if entry is None or entry.card.node_name != node_name:
            raise ShareRefused(f"card {share.uuid} is not on node {node_name}")
        free = leaving
        if (leaving or self._with_offers) and seat.strength is not Strength.OFFER:
            free = self.given_up_on(entry, leaving)
        if not entry.takes(share, seat.key, free, beside.get(share.uuid, ())):
            raise ShareRefused(f"card {share.uuid} has no room for {share.amounts}")
        if leaving and not entry.counts_otherwise(seat.key):  # else there is no other seat
            beside.setdefault(share.uuid, []).append(share)

    def _has_counted(
        self, key: SeatKey, placement: Placement, leaving: Collection[SeatKey] = NOBODY, taken: int = 0
    ) -> bool:
        """Return whether a node that only counts its cards has as many left as the pod would take; others have.

        The seats of `leaving` count as given up, and as many cards more as taken.
        """
        cards, node_name = placement.host.cards, placement.node_name
        if placement.shares or not cards:
            return True
        others = (self._seats.get(other) for other in leaving if other != key)
        freed = sum(other.placement.host.cards for other in others if other and other.placement.node_name == node_name)
        return self._hosts.has_cards(node_name, key, cards + taken - freed)

    def _take_off(self, key: SeatKey, placement: Placement) -> None:
        for share in placement.shares:
            entry = self._entries.get(share.uuid)
            if entry is None:
                continue
            entry.seats.pop(key, None)
            if not entry.counts_otherwise(key):  # else it has arrived, and nothing changes for others
                entry.known_room = None
                self._touch(entry.card.node_name)  # where the card is now: it may have moved since


@define(eq=False, slots=False)
class Promises:
    """Seats that count before they are free: pods are still there that are to leave for them.

    They are in memory until the API server lists them with their cards, as claims; then they change when it says so.
    CPU counts with them as long as the pod is promised anything, or has a share of a card.
    """

    _entries: Mapping[str, CardEntry]
    _hosts: Hosts
    _touch: Callable[[str], None]
    _changed: Callable[[CardEntry, Iterable[str]], None]  # called with a card's line and the pods' UIDs
    _has_shares: Callable[[str], bool]
    _claimed: dict[str, set[str]] = field(factory=dict, init=False)  # pod UID -> UUIDs of cards that list a claim of it
    _placements: dict[str, Placement] = field(factory=dict, init=False)  # pod UID -> what the API server is to get

    def make(self, pod_uid: str, placement: Placement) -> None:
        """Count a placement as taken, even if pods are still there. Replaces an earlier one that is in memory alone."""
        self._take_off(pod_uid)
        self._placements[pod_uid] = placement
        self._hosts.promise(pod_uid, placement.node_name, placement.host)
        for share in placement.shares:
            entry = self._entries.get(share.uuid)
            if entry is not None:
                entry.promises[pod_uid] = share
                self._have_changed(entry, pod_uid)

    def withdraw(self, pod_uid: str) -> None:
        """Forget what was promised to a pod in memory. Its claims at the API server stay. Idempotent."""
        self._take_off(pod_uid)
        self.discount((pod_uid,))

    def _take_off(self, pod_uid: str) -> None:
        placement = self._placements.pop(pod_uid, None)
        for share in placement.shares if placement else ():
            entry = self._entries.get(share.uuid)
            if entry is not None and entry.promises.pop(pod_uid, None) is not None:
                self._have_changed(entry, pod_uid)

    def _have_changed(self, entry: CardEntry, pod_uid: str) -> None:
        entry.known_room = None
        self._changed(entry, (pod_uid,))
        self._touch(entry.card.node_name)  # where the card is now: it may have moved since

    def listed(self, entry: CardEntry, claims: Iterable[Claim]) -> None:
        """Take over the claims that the API server lists on a card."""
        uuid, before = entry.card.uuid, entry.claims
        for uid in before:
            self._claimed[uid].discard(uuid)
            if not self._claimed[uid]:
                del self._claimed[uid]
        entry.claims = {claim.holder.pod.uid: claim for claim in claims}
        for uid in entry.claims:
            self._claimed.setdefault(uid, set()).add(uuid)
        self._changed(entry, {*before, *entry.claims})
        entry.known_room = None

    def discount(self, pod_uids: Iterable[str]) -> None:
        """Count the CPU of those of these pods no more that are promised nothing, and have nothing."""
        for uid in pod_uids:
            if self._hosts.has_promise(uid) and not self.is_made(uid) and not self._has_shares(uid):
                self._hosts.withdraw(uid)

    def card_gone(self, entry: CardEntry) -> None:
        """Record that a card is forgotten, with what is promised of it in memory alone."""
        before, entry.promises = entry.promises, {}
        self._changed(entry, before)

    def claims_of(self, pod_uid: str) -> list[tuple[Card, Claim]]:
        """Return the claims of a pod that the API server lists, by the index of the card."""
        entries = [self._entries[uuid] for uuid in self._claimed.get(pod_uid, ())]
        return [(e.card, e.claims[pod_uid]) for e in sorted(entries, key=lambda e: e.card.place)]

    def pod_uids(self) -> list[str]:
        """Return the UIDs of all pods that have a claim at the API server."""
        return list(self._claimed)

    def is_under_way(self, pod_uid: str) -> bool:
        """Return whether something is promised to the pod in memory, whose claims are being written."""
        return pod_uid in self._placements

    def is_made(self, pod_uid: str) -> bool:
        """Return whether something is promised to the pod, stored or not."""
        return pod_uid in self._placements or pod_uid in self._claimed


def fullest_node(cards: Sequence[Card], reserved: Sequence[Card]) -> str:
    """Return the node with the most promised, then reserved, shares. Deterministic across replicas."""
    promised, kept = Counter(card.node_name for card in cards), Counter(card.node_name for card in reserved)
    return max(promised, key=lambda name: (promised[name], kept[name], name))


def elsewhere(
    node_name: str, claims: Sequence[tuple[Card, Claim]], reserved: Sequence[tuple[Card, Holder]]
) -> tuple[list[tuple[Card, Claim]], list[tuple[Card, Holder]]]:
    """Return those claims and reserved shares that are on other nodes."""
    return [each for each in claims if each[0].node_name != node_name], [
        each for each in reserved if each[0].node_name != node_name
    ]
