"""The ledger in memory: pure, single-threaded, without a clock.

Two kinds of entries count on a card. *Holders* are what the API server stores; they change only when it says so, by
`load`. *Seats* are shares that are kept in memory until a time: see `seats.py`.

Derived from these, and updated with each change: holders by pod, the topology of each node's cards, the nodes of each
zone (a rack, an NVLink domain: values of node labels), and a numbered log of changed nodes, by which a reader looks
again only at those that have changed since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.ledger.hosts import Hosts, MarkedNodes
from gpuledger.ledger.seats import Promises, Seats
from gpuledger.ledger.stored_seats import StoredSeats
from gpuledger.ledger.unaccounted import UnaccountedPods
from gpuledger.model.card import Card, Topology, topology_of
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.gang import SeatKey
from gpuledger.model.node import NodeOffer
from gpuledger.model.share import LOWEST_PRIORITY, Holder, StoredCard

NO_PRIORITY = 2**31


class HoldersByPod:
    """Follows the holders of all lines of the ledger."""

    def __init__(self, entries: Mapping[str, CardEntry]) -> None:
        self._entries = entries
        self._cards: dict[str, set[str]] = {}  # pod UID -> UUIDs of the cards it is a holder of
        self._lowest: int | None = None  # the lowest priority of a holder, if none has changed since it was looked for
        self.yielding: set[str] = set()
        """UIDs of pods that leave their cards for any other, whatever their priority: these are idle."""

    def replace(self, entry: CardEntry, holders: Iterable[Holder]) -> Mapping[str, Holder]:
        """Give a card these holders; return the pods before, by the pod's UID."""
        uuid, before = entry.card.uuid, entry.holders
        entry.hold(holders)
        for uid in before:
            self._cards[uid].discard(uuid)
            if not self._cards[uid]:
                del self._cards[uid]
        for uid in entry.holders:
            self._cards.setdefault(uid, set()).add(uuid)
        self._lowest = None
        return before

    def of(self, pod_uid: str) -> list[tuple[Card, Holder]]:
        """Return the cards that the API server says a pod holds, by index."""
        entries = [self._entries[uuid] for uuid in self._cards.get(pod_uid, ())]
        return [(e.card, e.holders[pod_uid]) for e in sorted(entries, key=lambda e: e.card.place)]

    def uids(self) -> list[str]:
        """Return the UIDs of all pods that hold something at the API server."""
        return list(self._cards)

    def lowest_priority(self) -> int:
        """Return the priority of the least important holder; a very high one if there is none.

        That of a pod that yields to any other is lower than all that there are.
        """
        if self.yielding:
            return LOWEST_PRIORITY - 1
        if self._lowest is None:
            priorities = (holder.pod.priority for entry in self._entries.values() for holder in entry.holders.values())
            self._lowest = min(priorities, default=NO_PRIORITY)
        return self._lowest


class Topologies:
    """Remembers the last answer for each node."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Card, ...], Topology | None]] = {}  # node name -> cards, and what they form

    def of(self, node_name: str, cards: tuple[Card, ...]) -> Topology | None:
        """Return how these cards of a node are connected. Costs next to nothing while they are the same objects."""
        known = self._known.get(node_name)
        if known is None or known[0] != cards:
            known = self._known[node_name] = (cards, topology_of(cards))
        return known[1]

    def forget(self, node_name: str) -> None:
        """Drop what is known of a node."""
        self._known.pop(node_name, None)


NodeChange = tuple[int, str]
"""The number of a change and the name of its node."""


class ChangeLog:
    """The last change of each node."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes so far."""
        self._last: OrderedDict[str, int] = OrderedDict()  # node name -> number of its last change, oldest first

    def touch(self, node_name: str) -> None:
        """Note a change of a node."""
        self.changes += 1
        self._last[node_name] = self.changes
        self._last.move_to_end(node_name)

    def names(self) -> Iterator[str]:
        """Yield every node that has ever changed, the latest first."""
        return reversed(self._last)

    def since(self, change: int) -> Iterator[NodeChange]:
        """Yield the last change of each node that has one later than this, latest first. Costs what it yields."""
        for node_name in reversed(self._last):
            if self._last[node_name] <= change:
                return
            yield self._last[node_name], node_name


class Zones:
    """The values that nodes have of some labels, the narrowest label first."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels = tuple(labels)
        self._values: dict[str, tuple[str, ...]] = {}  # node name -> its value of each label, empty if it has none

    def observe(self, node_name: str, labels: Mapping[str, str]) -> None:
        """Note a node's labels."""
        values = tuple(str(labels.get(label) or "") for label in self.labels)
        if any(values):
            self._values[node_name] = values
        else:
            self.forget(node_name)

    def forget(self, node_name: str) -> None:
        """Record that a node is gone."""
        self._values.pop(node_name, None)

    def with_node(self, node_name: str, labels: Mapping[str, str]) -> Zones:
        """Return the same zones, and one node more, or with other labels."""
        found = Zones(self.labels)
        found._values = {**self._values}
        found.observe(node_name, labels)
        return found

    def of(self, node_name: str, label: int) -> str:
        """Return a node's zone by one of the labels, given by its position; empty if it has none."""
        values = self._values.get(node_name)
        return values[label] if values else ""

    def nodes_by_zone(self, label: int) -> dict[str, set[str]]:
        """Return the names of the nodes of each zone."""
        found: dict[str, set[str]] = {}
        for name, values in self._values.items():
            if values[label]:
                found.setdefault(values[label], set()).add(name)
        return found


LOST_KEPT = 16_384
"""Deleted cards of which is remembered when: answers that are older than so many deletions are none."""


class Ledger:
    """All cards, holders and seats of the cluster."""

    def __init__(self, zone_labels: Sequence[str] = ()) -> None:
        self._entries: dict[str, CardEntry] = {}  # card UUID -> its line
        self._lost: BoundedMap[str, int] = BoundedMap(LOST_KEPT)  # card UUID -> version that answers must exceed
        self._with_misfits: set[str] = set()  # UUIDs of cards that list a share that does not fit
        self._by_node: dict[str, dict[str, CardEntry]] = {}  # node name -> card UUID -> line, by index
        self.holders = HoldersByPod(self._entries)
        self._offers: dict[str, NodeOffer] = {}  # node name -> what its device plugin serves, while it answers
        self._hanging: set[str] = set()  # names of nodes whose kubelet starts no pods
        self.slow = MarkedNodes(self._touch)
        """The nodes that all others go before: see `NodeRoom.slow`."""
        self.arriving = MarkedNodes(self._touch)
        """New nodes that take no pods yet: see `NodeRoom.arriving`."""
        self._topologies = Topologies()
        self._rooms: dict[str, NodeRoom] = {}  # node name -> view, dropped when the node is touched
        self.changes = 0
        """Number of changes so far; compare with `touched_since`."""
        self.touches = ChangeLog()
        self.hosts = Hosts(self._touch)
        self.seats = Seats(self._entries, self.hosts, self._touch)
        self.stored_seats = StoredSeats(self._entries, self.seats)
        self.quotas = self.seats.quotas
        self.promises = Promises(
            self._entries, self.hosts, self._touch, self.quotas.promises_changed, lambda uid: bool(self.holders.of(uid))
        )
        self.strangers = UnaccountedPods(self, self.holders.of, self._touch)
        self.zones = Zones(zone_labels)
        self.on_change = Listeners[[]]()
        """Called after each change of the room on a node."""
        self.on_stored = Listeners[[str]]()
        """Called with a node's name when the API server has stored something of its cards, whatever it changes."""
        self.on_opened = Listeners[[str]]()
        """Called with a node's name when holders can be added to one of its cards that took none before."""
        self.on_described = Listeners[[CardEntry, str]]()
        """Called with a card after each of its versions, and with why it was cordoned before it."""

    # Reading.

    def entry(self, uuid: str) -> CardEntry | None:
        """Return a card's line, for reading."""
        return self._entries.get(uuid)

    def entries(self) -> Iterable[CardEntry]:
        """Return all lines, for reading."""
        return self._entries.values()

    def entries_with_misfits(self) -> list[CardEntry]:
        """Return the lines of the cards that list shares that do not fit, for reading."""
        return [self._entries[uuid] for uuid in self._with_misfits]

    def entries_of_node(self, node_name: str) -> list[CardEntry]:
        """Return the lines of one node's cards, by index."""
        return list(self._by_node.get(node_name, {}).values())

    def node_names(self) -> Collection[str]:
        """Return the nodes that have a card in the ledger."""
        return self._by_node.keys()

    def known_nodes(self) -> Iterable[str]:
        """Return the nodes of which anything is known, the latest changed first; others have been here and are gone."""
        known = self._by_node.keys() | self._offers.keys() | self.hosts.node_names()
        return (name for name in self.touches.names() if name in known)

    def offer(self, node_name: str) -> NodeOffer | None:
        """Return the offer of the node's device plugin, None while it does not answer."""
        return self._offers.get(node_name)

    def hangs(self, node_name: str) -> bool:
        """Return whether the node's kubelet leaves the pods that it has unstarted."""
        return node_name in self._hanging

    def only_counts(self, node_name: str) -> bool:
        """Return whether a node's cards are not in the ledger: its own device plugin counts them, and chooses."""
        return node_name not in self._by_node and self.hosts.counts_cards(node_name)

    def counting_nodes(self) -> list[str]:
        """Return the nodes of which only the number of cards is known."""
        return [name for name in self.hosts.node_names() if self.only_counts(name)]

    def node_room(self, node_name: str) -> NodeRoom:
        """Return the node as placement sees it. A node that the ledger does not know has no cards."""
        if (room := self._rooms.get(node_name)) is None:
            room = self._view(node_name, CardEntry.room)
            if room.cards or room.offer or room.host:  # of names that are no node's, nothing is kept
                self._rooms[node_name] = room
        return room

    def room_if(self, node_name: str, gone: Collection[SeatKey] = (), without: Collection[SeatKey] = ()) -> NodeRoom:
        """Return the node as placement would see it with all offers taken back.

        The pods of `gone` count as if they had left it, and the seats of `without` as if they were given up.
        """
        if not gone and not without and not self.seats.are_offered:
            return self.node_room(node_name)
        return self._view(node_name, lambda entry: entry.room_if(gone, self.seats.given_up_on(entry, without)))

    def has_place(self, pod_uid: str) -> bool:
        """Return whether a pod holds something, has a seat, or is promised something by the API server."""
        return bool(self.seats.of(pod_uid) or self.holders.of(pod_uid) or self.promises.claims_of(pod_uid))

    def touched_since(self, change: int) -> Iterator[str]:
        """Return the nodes with a change later than this one, latest first. Costs what it returns."""
        return (node_name for _, node_name in self.touches.since(change))

    # The API server's content.

    def load(self, stored: StoredCard, is_found: bool = False) -> bool:
        """Take over a card as it is stored; return False if something newer is known already.

        One that `is_found` was read after the API server had answered that there is none. If it is still in the version
        that was known then, the answer was wrong. Should it have been deleted since, its version has grown by that.
        """
        uuid, node_name, version = stored.card.uuid, stored.card.node_name, stored.resource_version
        entry, before = self._entries.get(uuid), None
        if is_found and self._lost.get(uuid) == version:
            self._lost.drop(uuid)
            if entry is not None and not entry.stored:
                entry.resource_version = version - 1
        if version <= self._lost.get(uuid, 0):
            return False
        if entry is None:
            entry = self._entries[uuid] = CardEntry(stored.card, seats=self.seats.on_card(uuid))
        elif version <= entry.resource_version:
            return False
        elif entry.card.node_name != node_name:
            self._leave_node(entry)
        else:
            before = entry.outlook()
        was_open, held, claimed, place = entry.open, entry.holders, entry.claims, entry.card.place
        cordoned = entry.cordoned if entry.stored else stored.cordoned
        entry.describe(stored)
        if before is None or entry.card.place != place:
            self._join_node(entry)
        (self._with_misfits.add if entry.misfits else self._with_misfits.discard)(uuid)
        if stored.holders is not None:  # a status can't be removed: without one this is a new object, to be restored
            self.promises.listed(entry, stored.claims)
            seats, sitting = entry.stored_seats, entry.sitting
            self.holders.replace(entry, stored.holders)
            self.stored_seats.listed(entry, seats, sitting)
        self.quotas.holders_changed(entry, held)
        self.promises.discount({*held, *claimed})
        entry.known_room = None
        if entry.outlook() != before:  # a seat that has become a holder changes nothing for others
            self._touch(node_name)
        self.on_stored(node_name)
        if entry.open and not was_open:
            self.on_opened(node_name)
        self.on_described(entry, cordoned)
        return True

    def unload(self, uuid: str, resource_version: int) -> bool:
        """Record that the API server has lost a card; return False if something newer is known already.

        Its holders stay, so that they can be restored: no other pod gets the card meanwhile. A card without holders
        is forgotten.
        """
        entry = self._entries.get(uuid)
        if entry is None or resource_version < entry.resource_version:
            return False
        entry.stored = entry.open = False
        claimed = entry.claims.keys()
        self.promises.listed(entry, ())  # with the object they are gone; the preemption is given up
        self.promises.discount(claimed)
        entry.resource_version = resource_version
        self._lost.note(uuid, resource_version)
        self._forget_if_unheld(entry)
        self._touch(entry.card.node_name)
        return True

    def change_unstored(self, uuid: str, pod_uid: str, holder: Holder | None) -> None:
        """Change a holder of a card that the API server has lost, so that it is restored so; None takes it off."""
        entry = self._entries.get(uuid)
        if entry is not None and not entry.stored:
            changed, seats, sitting = entry.listed | {pod_uid: holder}, entry.stored_seats, entry.sitting
            before = self.holders.replace(entry, [holder for holder in changed.values() if holder is not None])
            self.stored_seats.listed(entry, seats, sitting)
            self.quotas.holders_changed(entry, before)
            self.promises.discount(before)
            entry.known_room = None
            self._forget_if_unheld(entry)
            self._touch(entry.card.node_name)

    def set_reported(self, uuid: str, reported: bool, sick: bool = False) -> None:
        """Note whether the card's node still says that it is there, and whether it says that it does not work."""
        entry = self._entries.get(uuid)
        if entry is not None and (entry.reported, entry.sick) != (reported, sick):
            entry.reported, entry.sick = reported, sick
            self._touch(entry.card.node_name)

    def set_offer(self, node_name: str, offer: NodeOffer | None, hangs: bool = False) -> None:
        """Note what a node's device plugin serves, None while it does not answer; and whether its kubelet `hangs`."""
        if (offer, hangs) == (self.offer(node_name), self.hangs(node_name)):
            return
        self._offers.pop(node_name, None)
        if offer is not None:
            self._offers[node_name] = offer
        (self._hanging.add if hangs else self._hanging.discard)(node_name)
        self._touch(node_name)

    # Inside.

    def _view(self, node_name: str, room: Callable[[CardEntry], Room]) -> NodeRoom:
        entries = self.entries_of_node(node_name)
        reported = [entry for entry in entries if entry.reported]
        cards, takes = tuple(entry.card for entry in reported), [entry for entry in reported if entry.takes_pods]
        closed, host = self.strangers.closed(node_name), self.hosts.free(node_name)
        return NodeRoom(
            name=node_name,
            offer=self._offers.get(node_name),
            cards=cards,
            rooms=tuple(room(entry) for entry in takes if entry.card.uuid not in closed),
            hangs=node_name in self._hanging,
            slow=node_name in self.slow,
            arriving=node_name in self.arriving,
            host=host,
            counted=host.cards if host and self.only_counts(node_name) else None,
            cordoned=frozenset(entry.card.uuid for entry in reported if entry.cordoned and entry.card.healthy),
            unaccounted=frozenset(
                entry.card.uuid
                for entry in reported
                if entry.card.uuid in closed and (entry.takes_pods or not entry.confirmed)
            ),
            unreported=len(entries) - len(reported),
            replicated=self.hosts.is_replicated(node_name),
            topology=self._topologies.of(node_name, cards) if len(cards) > 1 else None,
        )

    def _forget_if_unheld(self, entry: CardEntry) -> None:
        if not entry.listed:
            self._leave_node(entry)
            del self._entries[entry.card.uuid]
            self._with_misfits.discard(entry.card.uuid)
            self.promises.card_gone(entry)
            for key in entry.seats:
                self.quotas.seat_changed(key)

    def _join_node(self, entry: CardEntry) -> None:
        cards = self._by_node.get(entry.card.node_name, {}) | {entry.card.uuid: entry}
        in_order = sorted(cards.items(), key=lambda item: item[1].card.place)
        self._by_node[entry.card.node_name] = dict(in_order)

    def _leave_node(self, entry: CardEntry) -> None:
        node_name = entry.card.node_name
        cards = self._by_node[node_name]
        del cards[entry.card.uuid]
        if not cards:
            del self._by_node[node_name]
            self._topologies.forget(node_name)
        self._touch(node_name)

    def _touch(self, node_name: str) -> None:
        self._rooms.pop(node_name, None)
        self.touches.touch(node_name)
        self.changes = self.touches.changes
        self.on_change()
