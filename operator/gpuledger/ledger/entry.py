"""One card's line in the ledger, and what placement sees of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpuledger.model.card import Amounts, Card, CardPhase, Topology, total
from gpuledger.model.gang import SeatKey
from gpuledger.model.node import NodeOffer
from gpuledger.model.request import HostAmounts
from gpuledger.model.share import MAX_HOLDERS, Claim, Holder, Misfit, Share, StoredCard
from gpuledger.model.usage import EndedShare, Wasted


def why_not(share: Share, others: Sequence[Share], capacity: Amounts) -> str | None:
    """Return the reason why a card can't take a share beside these others, None if it fits: "the card ..."."""
    if others and (share.exclusive or any(other.exclusive for other in others)):
        return "is not free"
    if not (share.amounts + total(other.amounts for other in others)).fits_in(capacity):
        return "has no room for the pod"
    if len(others) >= MAX_HOLDERS:
        return f"has as many pods as it can have, {MAX_HOLDERS}"
    return None


@dataclass(frozen=True, slots=True)
class Room:
    """The room on a card. `free` can be negative, when the card has shrunk."""

    card: Card
    free: Amounts
    idle: bool
    """No pod is on the card, and none has a seat there."""
    shut: bool
    """A pod has the card alone."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node as placement sees it: the cards that are reported, in the order of their index."""

    name: str
    offer: NodeOffer | None
    """The offer of the node's device plugin; None while it does not answer, and no card can be given away."""
    cards: tuple[Card, ...]
    """All reported cards, the unhealthy ones too."""
    rooms: tuple[Room, ...]
    """The cards on which something can be placed."""
    hangs: bool = False
    """Its kubelet does not start the pods that it has."""
    slow: bool = False
    """A pod that was bound to it has not started for some seconds: other nodes go first."""
    arriving: bool = False
    """It has come for pods that wait, and takes none before its stand-in is deleted: see workflows/growth."""
    host: HostAmounts | None = None
    """Its free CPU and memory, as far as they are known."""
    cordoned: frozenset[str] = frozenset()
    """UUIDs of the healthy cards on which a person wants no new pods."""
    unaccounted: frozenset[str] = frozenset()
    """UUIDs of the cards, in order otherwise, that a pod may use without a share in the ledger."""
    unreported: int = 0
    """How many cards more the ledger has of the node, which it does not report any more."""
    replicated: bool = False
    """A device plugin that is not ours gives out each card there several times, so that pods of ours get none."""
    counted: int | None = None
    """How many cards are left of a node whose own device plugin only counts them; None on all others."""
    topology: Topology | None = None
    """How its cards are connected, by their position in `cards`; None if nothing tells them apart by that."""

    def can_give(self, uuids: Collection[str]) -> bool:
        """Return whether all of these cards are there, and take pods if they have room."""
        return {room.card.uuid for room in self.rooms}.issuperset(uuids)


@dataclass(slots=True)
class CardEntry:
    """A card with its holders (stored at the API server) and its seats (in memory).

    A pod that has both counts once, as a holder: its share has arrived. Promised shares count, too, so that no other
    pod gets them; as long as the victims have not left, the card is more than full by that.
    """

    card: Card
    resource_version: int = 0
    as_of_s: float = float("-inf")
    """When the last request was sent, by the operator's clock, whose answer is in memory: memory is not older."""
    stored: bool = False
    """The API server has this card."""
    open: bool = False
    """Its first status is written: holders can be added."""
    reported: bool = True
    """Its node still says that the card is there."""
    sick: bool = False
    """Its node says that it does not work. It takes a write until the API server has it so, and `card` with it."""
    phase: str = ""
    reason: str = ""
    cordoned: str = ""
    """Why a person wants no new pods on the card; empty if it may take some."""
    created: str = ""
    """When the API server's object was created, RFC 3339."""
    listed: dict[str, Holder] = field(default_factory=dict)
    """UID -> what the API server lists as holders, in its order: pods, and stored seats."""
    holders: dict[str, Holder] = field(default_factory=dict)
    """Pod UID -> holder: those of them that are pods."""
    stored_seats: dict[str, Holder] = field(default_factory=dict)
    """UID of a seat -> holder: the others. They count by the seats in memory, whose pod may have them by now."""
    sitting: dict[str, Holder] = field(default_factory=dict)
    """Pod UID -> holder: the pods among them that have taken a stored seat."""
    misfits: tuple[Misfit, ...] = ()
    """Shares that are shown on the card and not counted."""
    ended: tuple[EndedShare, ...] | None = None
    """Shares whose time is over, until their namespaces' records have it; None: no account is kept of this card."""
    account_revision: int | None = None
    """Its resourceVersion before a share was listed as ended last, as the API server has it; None if it has none."""
    wasted: Wasted | None = None
    """What has been wasted of it since it was free, as the API server has it."""
    seats: dict[SeatKey, Share] = field(default_factory=dict)
    """Pod UID, or a pod that is to come -> share that is kept and not stored yet."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """Pod UID -> share that the API server lists as promised."""
    promises: dict[str, Share] = field(default_factory=dict)
    """Pod UID -> share whose claim is on its way to the API server."""
    known_room: Room | None = None
    """What `room` found last; None after a change."""

    def hold(self, listed: Iterable[Holder]) -> None:
        """Take over what the API server lists as holders."""
        self.listed = {holder.pod.uid: holder for holder in listed}
        self.stored_seats = {uid: holder for uid, holder in self.listed.items() if holder.is_seat}
        self.holders = self.listed
        if self.stored_seats:
            self.holders = {uid: holder for uid, holder in self.listed.items() if not holder.is_seat}
        self.sitting = {uid: holder for uid, holder in self.holders.items() if holder.seat is not None}

    @property
    def confirmed(self) -> bool:
        """Return whether all that may be on the card is known: its object is as old as what is on it, or was filled."""
        return self.open and self.phase != CardPhase.PENDING

    @property
    def takes_pods(self) -> bool:
        """Return whether new shares can be entered, if there is room."""
        return self.confirmed and self.card.healthy and not self.sick and not self.cordoned

    def outlook(self) -> tuple[bool, tuple[Misfit, ...], Room]:
        """Return the state that decides on new shares: as long as it is equal, nothing has changed for others."""
        return self.takes_pods, self.misfits, self.room()

    def as_it_is(self) -> CardEntry:
        """Return a copy of the parts that count on the card, for a search that takes a while."""
        return replace(
            self,
            resource_version=0,
            misfits=(),
            holders=dict(self.holders),
            seats=dict(self.seats),
            claims=dict(self.claims),
            promises=dict(self.promises),
            known_room=None,
        )

    def describe(self, stored: StoredCard) -> None:
        """Take over what the API server says of the card itself, its status included; not who is on it."""
        if self.card != stored.card:  # else the object that others know stays, and is found equal at a glance
            self.card = stored.card
        self.resource_version, self.stored, self.cordoned = stored.resource_version, True, stored.cordoned
        self.created = stored.created
        self.phase, self.reason, self.open = stored.phase, stored.reason, stored.holders is not None
        if self.open:
            self.misfits, self.ended, self.wasted = stored.misfits, stored.ended, stored.wasted
            self.account_revision = stored.account_revision

    def counts_otherwise(self, key: SeatKey) -> bool:
        """Return whether a seat's share counts already: its pod, or the one whose place it keeps, is here itself."""
        if isinstance(key, str):
            return key in self.holders
        return key.member in self.holders or key.member in self.seats

    def shares(self, but: Collection[SeatKey] = (), without: Collection[SeatKey] = ()) -> list[Share]:
        """Return every share that counts on the card, leaving out those of some pods, and the seats of others."""
        held = [holder.share for uid, holder in self.holders.items() if uid not in but]
        held += [
            share
            for key, share in self.seats.items()
            if key not in self.holders and key not in but and key not in without and not self.counts_otherwise(key)
        ]
        return held + [share for uid, share in self._promised(without) if uid not in but]

    def shares_by_pod(self) -> Iterator[tuple[SeatKey, Share]]:
        """Yield the same with the UIDs of the pods, or what stands for those that are to come."""
        for uid, holder in self.holders.items():
            yield uid, holder.share
        for key, share in self.seats.items():
            if not self.counts_otherwise(key):
                yield key, share
        yield from self._promised()

    def _promised(self, without: Collection[SeatKey] = ()) -> list[tuple[str, Share]]:
        """Return the promised shares of pods that have nothing of the card yet: they count before they are free."""
        if not self.claims and not self.promises:
            return []
        promised = self.promises | {uid: claim.share for uid, claim in self.claims.items()}
        known = self.holders.keys() | (self.seats.keys() - set(without) if without else self.seats.keys())
        return [(uid, share) for uid, share in promised.items() if uid not in known]

    def used(self) -> Amounts:
        """Return the sum of the taken amounts, holds included."""
        return total(share.amounts for share in self.shares())

    def takes(
        self, share: Share, key: SeatKey = "", without: Collection[SeatKey] = (), beside: Sequence[Share] = ()
    ) -> bool:
        """Return whether a share of a pod fits beside those of others, or is reserved for it already.

        The seats of `without` count as given up, and the shares of `beside` as taken.
        """
        own = self.holders.get(key if isinstance(key, str) else key.member)
        if own is not None and own.share == share:
            return True
        return why_not(share, [*self.shares((key,), without), *beside], self.card.capacity) is None

    def takes_now(self, claim: Claim) -> bool:
        """Return whether what a pod claims is free, beside all that is there and whatever is promised to others."""
        uid = claim.holder.pod.uid
        held = [holder.share for other, holder in self.holders.items() if other != uid]
        held += [share for key, share in self.seats.items() if not self.counts_otherwise(key) and key != uid]
        return why_not(claim.share, held, self.card.capacity) is None

    def could_take(self, claim: Claim, may_leave: Callable[[str, Holder], bool]) -> bool:
        """Return whether the promised share fits once every evictable holder is gone; seats are ignored."""
        uid = claim.holder.pod.uid
        stay = [h.share for other, h in self.holders.items() if other != uid and not may_leave(other, h)]
        return why_not(claim.share, stay, self.card.capacity) is None

    def room(self) -> Room:
        """Return the card's room, for placement."""
        if self.known_room is None:
            self.known_room = self.room_if()
        return self.known_room

    def room_if(self, gone: Collection[SeatKey] = (), without: Collection[SeatKey] = ()) -> Room:
        """Return the room as if some pods had left the card, and waited for it no more, and seats were given up."""
        shares = self.shares(gone, without)
        free = self.card.capacity - total(share.amounts for share in shares)
        if len(shares) >= MAX_HOLDERS:  # no slot is of use to a pod that the card's object can't list
            free = replace(free, number=min(free.number, 0))
        shut = any(share.exclusive for share in shares)
        return Room(self.card, free, idle=not shares, shut=shut)
