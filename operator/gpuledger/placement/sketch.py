"""What if other pods had these cards, and those had left? An overlay over the ledger that nobody else sees.

It costs what it changes: nodes that are as in the ledger are asked for there. Offers count as free, as they are for
whoever needs the room. The ledger can change meanwhile: `refresh` takes that in, and `commit` keeps the seats.

It can have nodes, too, that do not exist: what if they were there? Whoever sits there can't be committed.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

from gpuledger.ledger.book import ChangeLog, Ledger, Zones
from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.ledger.quotas import Tally
from gpuledger.ledger.seats import NOBODY, Seat, Strength
from gpuledger.model.card import Card
from gpuledger.model.gang import QuotaLimit, SeatGroup, SeatKey
from gpuledger.model.request import NO_HOST, HostAmounts, PodRequest
from gpuledger.model.share import Placement, Share, shares_of
from gpuledger.placement.choose import Chooser, FittingNodes, looked_around
from gpuledger.placement.policy import StepBudget


class Sketch:
    """The ledger as if the seats of `without` were given up, the pods of `gone` had left, and others had sat down.

    Pods of `gone` count no more, whatever they have; those of `without` only lose their seats.
    """

    def __init__(
        self, ledger: Ledger, without: Collection[SeatKey] = NOBODY, gone: Collection[SeatKey] = NOBODY
    ) -> None:
        self._ledger = ledger
        self.without = without
        self._gone = gone
        self.places: dict[SeatKey, Placement] = {}
        """Who has sat down, and where."""
        self._on_node: dict[str, dict[SeatKey, Placement]] = {}  # node name -> those of them that are there
        self._rooms: dict[str, NodeRoom] = {}  # node name -> its room beside them, for nodes that were looked at
        self._differing: dict[str, None] | None = None  # names of the nodes that are, or were, not as in the ledger
        self._freed: dict[str, HostAmounts] | None = None  # see `_freed_hosts`, as of the last look at the ledger
        self._log = ChangeLog()
        self._sets: dict[PodRequest, FittingNodes] = {}
        self._seen = ledger.changes
        self._more: dict[str, NodeRoom] = {}  # name of a node that does not exist -> it, as long as it is empty
        self._more_cards: dict[str, Card] = {}  # UUID -> card of such a node
        self.zones: Zones = ledger.zones
        """Those of the ledger, and of the nodes that do not exist."""
        self._tally = Tally(ledger.quotas, without, self._more_cards)

    # Reading: see `Rooms`.

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        return self._log.changes

    def touched_since(self, change: int) -> Iterator[str]:
        """Return the nodes with a change later than this one, latest first."""
        return (name for _, name in self._log.since(change))

    def known_nodes(self) -> Iterable[str]:
        """Return the nodes that differ from those of the ledger, or have differed."""
        return self._differ()

    def node_room(self, node_name: str) -> NodeRoom:
        """Return a node as placement would see it."""
        room = self._rooms.get(node_name)
        if room is None and node_name not in self._differ():
            return self._ledger.node_room(node_name)
        if room is None:
            room = self._more.get(node_name) or self._ledger.room_if(node_name, self._gone, self.without)
            freed = self._freed_hosts().get(node_name)
            if freed is not None and room.host is not None:
                host = room.host + freed
                room = replace(room, host=host, counted=None if room.counted is None else host.cards)
            for placement in self._on_node.get(node_name, {}).values():
                room = beside(room, placement)
            self._rooms[node_name] = room
        return room

    def _freed_hosts(self) -> Mapping[str, HostAmounts]:
        """Return node name -> the CPU that counts as free there for want of the seats that count as given up."""
        if self._freed is None:
            self._freed = {}
            for seat in filter(None, map(self._ledger.seats.of, self.without)):
                name, host = seat.placement.node_name, seat.placement.host
                self._freed[name] = self._freed.get(name, NO_HOST) + host
        return self._freed

    def entries(self, node_name: str) -> list[CardEntry]:
        """Return the lines of a node's cards, with the shares of those that have sat down."""
        entries = self._ledger.entries_of_node(node_name)
        here = self._on_node.get(node_name, {})
        seats = self._ledger.seats
        if not (here or self._gone or self.without or seats.are_offered):
            return entries
        copies = {entry.card.uuid: entry.as_it_is() for entry in entries}
        for entry in copies.values():
            given_up = seats.given_up_on(entry, self.without) | {key for key in entry.seats if key in self._gone}
            entry.seats = {key: share for key, share in entry.seats.items() if key not in given_up}
        for key, placement in here.items():
            for share in placement.shares:
                if share.uuid in copies:
                    copies[share.uuid].seats[key] = share
        return list(copies.values())

    def best(
        self, chooser: Chooser, request: PodRequest, node_names: Container[str] | None, work: StepBudget | None = None
    ) -> Placement | None:
        """Return the preferred placement on one of these nodes, None if none fits; see `Chooser.best`."""
        chooser.tick()
        known, own, differing = chooser.fitting(request), self._set_of(chooser, request), self._differ()
        if not (looked_around(known, node_names, work) and looked_around(own, node_names, work)):
            return None
        candidates = ((known.first(node_names, differing), known), (own.first(node_names), own))
        found = min(((first, which) for first, which in candidates if first), key=itemgetter(0), default=None)
        if found is None:
            return None
        (_, (_, name)), which = found
        return Placement(name, shares_of(request, which.assignment(name), self.node_room(name).cards), request.host)

    def is_unfinished(self, chooser: Chooser, request: PodRequest) -> bool:
        """Return whether `best` has had no work left to look at all nodes, and goes on where it was."""
        return chooser.is_unfinished(request) or self._set_of(chooser, request).is_unfinished

    def why_it_waits(self, chooser: Chooser, request: PodRequest) -> str:
        """Return why `best` can't look at all nodes now, for people; empty if it can."""
        return chooser.why_it_waits(request) or self._set_of(chooser, request).why_unseen

    def _set_of(self, chooser: Chooser, request: PodRequest) -> FittingNodes:
        known = self._sets.get(request)
        if known is None:
            known = self._sets[request] = chooser.fitting_in(self, request)
        return known

    def _differ(self) -> Mapping[str, None]:
        """Return the nodes whose room may not be that of the ledger."""
        if self._differing is None:
            ledger = self._ledger
            found = dict.fromkeys((*self._more, *self._on_node, *ledger.seats.offered_nodes()))
            for key in (*self.without, *self._gone):
                seat = ledger.seats.of(key)
                found.update(dict.fromkeys(each.node_name for each in seat.placements) if seat else {})
            for uid in self._gone:
                if isinstance(uid, str):
                    claims = [card for card, _ in ledger.promises.claims_of(uid)]
                    cards = [card for card, _ in ledger.holders.of(uid)]
                    found.update(dict.fromkeys(card.node_name for card in (*cards, *claims)))
            self._differing = found
        return self._differing

    # Nodes that do not exist.

    def add_node(self, node: NodeRoom, labels: Mapping[str, str]) -> None:
        """Let there be a node of a name that no other one has; its labels say in which zones it is."""
        self._more[node.name] = node
        self._more_cards.update((card.uuid, card) for card in node.cards)
        if self.zones.labels:
            self.zones = self.zones.with_node(node.name, labels)
        self._touch(node.name)

    def remove_node(self, node_name: str) -> None:
        """Let one of them be gone, on which nobody sits. It leaves its name, and nothing that pods can have."""
        self.add_node(NodeRoom(node_name, offer=None, cards=(), rooms=()), {})

    # Sitting down.

    def sit(self, key: SeatKey, placement: Placement) -> QuotaLimit | None:
        """Let a pod have a placement that `best` has found; return the limit that its namespace would exceed, if any.

        Nothing changes then.
        """
        exceeded = self._tally.add(key, (placement,))
        if exceeded is None:
            self.put(key, placement)
        return exceeded

    def put(self, key: SeatKey, placement: Placement) -> None:
        """Let a pod have a placement, whatever the limits of its namespace."""
        self.places[key] = placement
        self._on_node.setdefault(placement.node_name, {})[key] = placement
        self._touch(placement.node_name)

    def stand(self, keys: Iterable[SeatKey]) -> None:
        """Let pods have nothing that have sat down."""
        for key in list(keys):
            placement = self.places.pop(key)
            del self._on_node[placement.node_name][key]
            self._tally.remove(key)
            self._touch(placement.node_name)

    def refresh(self) -> list[SeatKey]:
        """Take in what has changed in the ledger; return who has lost the place, and stands again."""
        lost: list[SeatKey] = []
        self._freed = None
        for name in self._ledger.touched_since(self._seen):
            if self._rooms.pop(name, None) is None and name not in self._differ():
                continue
            here, self._on_node[name] = self._on_node.get(name, {}), {}
            for key, placement in here.items():
                if _fits(self.node_room(name), placement):
                    self._on_node[name][key] = placement
                else:
                    lost.append(key)
                    self._tally.remove(key)
                    del self.places[key]
                self._rooms.pop(name, None)
            self._touch(name)
        self._seen = self._ledger.changes
        return lost

    @property
    def is_current(self) -> bool:
        """Return whether nothing has changed in the ledger since it was looked at."""
        return self._seen == self._ledger.changes

    def commit(
        self,
        until_s: float,
        strength: Strength,
        group: SeatGroup | None = None,
        priority: int = 0,
        yielding: Collection[SeatKey] = NOBODY,
    ) -> None:
        """Keep all these places, and give up the seats that counted as given up: of those that yield, as few as can be.

        Raises ShareRefused, and changes nothing, if something has changed in the ledger that they need.
        """
        seats = (
            Seat(key, placement, until_s, strength, group=group, priority=priority)
            for key, placement in self.places.items()
        )
        without = {key for key in self.without if key not in yielding}
        self._ledger.seats.take_over(*seats, yielding=yielding, without=without)

    def _touch(self, node_name: str) -> None:
        self._rooms.pop(node_name, None)
        if self._differing is not None:
            self._differing[node_name] = None
        self._log.touch(node_name)


def beside(room: NodeRoom, placement: Placement) -> NodeRoom:
    """Return the room of a node beside a placement there."""
    taken = {share.uuid: share for share in placement.shares}
    rooms = tuple(_beside(taken[each.card.uuid], each) if each.card.uuid in taken else each for each in room.rooms)
    counted = room.counted if room.counted is None else room.counted - placement.host.cards
    host = room.host if room.host is None else room.host - placement.host
    return replace(room, rooms=rooms, counted=counted, host=host)


def _beside(share: Share, room: Room) -> Room:
    return replace(room, free=room.free - share.amounts, idle=False, shut=room.shut or share.exclusive)


def _fits(room: NodeRoom, placement: Placement) -> bool:
    """Return whether a placement that was found there fits still."""
    if room.counted is not None and not placement.shares:
        return placement.host.cards <= room.counted
    rooms = {each.card.uuid: each for each in room.rooms}
    return (room.offer is not None and not room.hangs and not room.arriving) and all(
        share.uuid in rooms
        and not (rooms[share.uuid].shut or (share.exclusive and not rooms[share.uuid].idle))
        and share.amounts.fits_in(rooms[share.uuid].free)
        for share in placement.shares
    )
