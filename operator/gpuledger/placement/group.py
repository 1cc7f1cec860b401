"""Places for the members of a gang: for all of them at once, in as few zones as possible.

One member is placed after the other, the most demanding first, as a pod is placed that comes alone; what is found for
one is held, so that the next one sees it. So there are places for a gang whose members are alike, with one container,
if and only if this finds them. Members that differ could fit in another order where they do not in this one.

Zones are values of node labels, from the narrowest label to the widest. All members go to one zone of the narrowest
label by which one has room for all. If there is none, they go to as few zones of the widest label as have room
together, and to as few of the next label among these. For members that are alike, these are the fewest: those with room
for the most come first. Else, of up to `FEW_ZONES` zones all sets are tried, the small ones first; of more, the same as
for members that are alike. If there is no room in zones, nodes without the labels are used, too, as if there were none.

How many pods find room at once, and where: a trial that counts in its own copies, and leaves nothing in the ledger.

A plan that is carried out keeps room in the ledger, where each change makes others look again. Somebody who only asks
must not cause that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry, NodeRoom, Room
from gpuledger.model.errors import QuotaExceeded, Refusal, ShareRefused, WorkLimitExceeded
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.request import PodRequest, Shape, counted_cards
from gpuledger.model.share import Holder, Placement, Pod, Share, shares_of
from gpuledger.placement.choose import STEPS_OF_A_LOOK, Chooser
from gpuledger.placement.decide import hard_steps
from gpuledger.placement.fit import WORK_LIMIT, choose_cards
from gpuledger.placement.policy import Preference, StepBudget

MEMBERS_AT_ONCE = 8
"""For which a place is looked for before others have their turn."""

FEW_ZONES = 6
"""Of so many zones, all sets are tried."""

ZONE_LOOKS = 1_024
"""Looks for a place of one member in some zones, before the members go where there is room: some 50 ms."""

Places = dict[str, Placement]
"""Pod UID -> its place."""


class Found(NamedTuple):
    """The result of a search."""

    number: int
    """For how many members there is room."""
    is_current: bool = True
    """Nothing else has changed in the ledger meanwhile."""
    exceeded: QuotaLimit | None = None
    """The limit of their namespace that was in the way of one, if any."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A member that is to be placed."""

    pod_uid: str
    request: PodRequest
    node_names: Collection[str] | None = None
    """The nodes to which it can go; None stands for any."""
    preferred: Collection[str] = ()
    """Nodes that it gets if one of them fits."""
    avoided: Collection[str] = ()
    """Nodes that it gets only if no other one fits."""


class GangPlanner:
    """Holds room in the ledger, for all members or for none."""

    def __init__(self, ledger: Ledger, chooser: Chooser) -> None:
        self._ledger = ledger
        self._chooser = chooser

    def hold(
        self, seats: Sequence[Seat], deadline_s: float, beside: Collection[str] = ()
    ) -> Generator[None, None, Found]:
        """Hold room for all until the deadline. If there is room for fewer, nothing is held.

        `beside` are the names of nodes on which other members are already: zones of these come first. Others can have
        their turn between two steps. Raises WorkLimitExceeded, and holds nothing then.
        """
        seats = sorted(seats, key=_most_demanding_first)
        trial = _Trial(self._ledger, self._chooser, seats, deadline_s)
        try:
            found = yield from trial.hold(None)
            if found < len(seats) and any(map(_shares_several, seats)):
                trial.seats = [_spread(seat) for seat in seats]
                found = max(found, (yield from trial.hold(None)))
            if found == len(seats) and self._ledger.zones.labels:
                anywhere = trial.places
                if not (yield from self._in_few_zones(trial, beside)) and not trial.restore(anywhere):
                    found = 0
            return Found(found, trial.is_current, trial.exceeded if found < len(seats) else None)
        except WorkLimitExceeded:
            trial.drop()
            raise

    def _in_few_zones(self, trial: _Trial, beside: Collection[str]) -> Generator[None, None, bool]:
        """Hold the same in fewer zones; return whether that is done. If not, nothing is held."""
        trial.looks_left = ZONE_LOOKS
        trial.drop()
        for zone in self._single_zones(trial, beside):
            if (yield from trial.hold(zone)) == len(trial.seats):
                return True
            if trial.looks_left <= 0:
                return False
        names: Collection[str] | None = None
        for label in reversed(range(len(self._ledger.zones.labels))):
            fewer = yield from self._fewest_zones(trial, label, names)
            names = fewer if fewer is not None else names
        if names is None or trial.looks_left <= 0:
            trial.drop()
            return False
        return (yield from trial.hold(names)) == len(trial.seats)

    def _single_zones(self, trial: _Trial, beside: Collection[str]) -> Iterator[set[str]]:
        """Yield the nodes of each zone that may have room for all: by the narrowest label first, the fullest first."""
        zones, need_mib = self._ledger.zones, sum(map(_least_memory_mib, trial.seats))
        for label in range(len(zones.labels)):
            preferred = {zones.of(name, label) for name in beside}
            free = {zone: (names, self._free_mib(names)) for zone, names in zones.nodes_by_zone(label).items()}
            enough = {zone: found for zone, found in free.items() if found[1] >= need_mib}
            for zone in sorted(enough, key=lambda zone: (zone not in preferred, enough[zone][1], zone)):
                yield enough[zone][0]

    def _fewest_zones(
        self, trial: _Trial, label: int, within: Collection[str] | None
    ) -> Generator[None, None, set[str] | None]:
        """Return the nodes of the fewest zones that have room for all, of those `within`; None if none were found."""
        zones = self._ledger.zones.nodes_by_zone(label)
        inside = {zone: names if within is None else names & set(within) for zone, names in zones.items()}
        room: dict[str, int] = {}
        for zone, names in sorted(inside.items()):
            room[zone] = (yield from trial.hold(names, count=True)) if names else 0
            trial.drop()
            if trial.looks_left <= 0:
                return None
        useful = sorted((zone for zone in room if room[zone]), key=lambda zone: (-room[zone], zone))
        for chosen in _sets(useful, room, len(trial.seats), alike=trial.are_alike):
            names = set[str]().union(*(inside[zone] for zone in chosen))
            fits = (yield from trial.hold(names)) == len(trial.seats)
            trial.drop()
            if fits:
                return names
            if trial.looks_left <= 0:
                return None
        return None

    def _free_mib(self, node_names: Collection[str]) -> int:
        return sum(room.free.memory_mib for name in node_names for room in self._ledger.node_room(name).rooms)


def _sets(useful: Sequence[str], room: dict[str, int], need: int, alike: bool) -> Iterator[tuple[str, ...]]:
    """Yield sets of zones that may have room for all together, the small ones first."""
    few = not alike and len(useful) <= FEW_ZONES
    for number in range(1, len(useful) + 1):
        for chosen in combinations(useful, number) if few else (tuple(useful[:number]),):
            if sum(room[zone] for zone in chosen) >= need:
                yield chosen


class _Trial:
    """Looks for places for the same members, in one set of nodes after the other."""

    def __init__(self, ledger: Ledger, chooser: Chooser, seats: Sequence[Seat], deadline_s: float) -> None:
        self.seats = seats
        self.are_alike = len({(seat.request.shape, id(seat.node_names)) for seat in seats}) == 1
        self.places: Places = {}
        self.looks_left = 0
        self.is_current = True
        self.exceeded: QuotaLimit | None = None
        self._ledger = ledger
        self._chooser = chooser
        self._deadline_s = deadline_s

    def hold(self, within: Collection[str] | None, count: bool = False) -> Generator[None, None, int]:
        """Hold places for all on these nodes, and drop what was held before; return for how many there is room.

        For fewer than all, nothing is held. It ends at the first that finds none, and returns for how many there was
        room before; with `count`, and where no nodes are named, it goes on with those that ask for something else.
        """
        self.drop()
        failed: set[tuple[object, ...]] = set()
        for number, seat in enumerate(self.seats, 1):
            if number % MEMBERS_AT_ONCE == 0:
                change = self._ledger.changes
                yield None
                self.is_current = self.is_current and change == self._ledger.changes
            kind = (seat.request.shape, id(seat.node_names))
            if kind in failed or self._sit(seat, within):
                continue
            failed.add(kind)
            if within is not None and not count:
                break
        found = len(self.places)
        if found < len(self.seats):
            self.drop()
        return found

    def restore(self, places: Places) -> bool:
        """Hold these places again, all or none; return whether they are still there."""
        self.drop()
        try:
            for uid, placement in places.items():
                self._ledger.hold(uid, placement, self._deadline_s)
                self.places[uid] = placement
        except ShareRefused:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """Hold nothing."""
        for uid, placement in self.places.items():
            hold = self._ledger.hold_of(uid)
            if hold is not None and hold.placement == placement:
                self._ledger.drop_hold(uid)
        self.places = {}

    def _sit(self, seat: Seat, within: Collection[str] | None) -> bool:
        self.looks_left -= 1
        names = _both(seat.node_names, within)
        placement = None
        if seat.preferred:
            placement = self._chooser.best(seat.request, _both(names, seat.preferred))
        if placement is None and seat.avoided:
            others = self._ledger.node_names() if names is None else names
            placement = self._chooser.best(seat.request, _but(others, seat.avoided))
        if placement is None:
            placement = self._chooser.best(seat.request, names)
        if placement is None:
            if why := self._chooser.why_it_waits(seat.request):
                raise WorkLimitExceeded(why)
            if self._chooser.is_unfinished(seat.request):
                raise WorkLimitExceeded("the search for the gang takes long; it continues at the next request")
            return False
        try:
            self._ledger.hold(seat.pod_uid, placement, self._deadline_s)
        except QuotaExceeded as error:
            self.exceeded = error.limit
            return False
        except ShareRefused:
            return False
        self.places[seat.pod_uid] = placement
        return True


class _Names:
    """Names that are in one collection, and in another one, or not in it."""

    def __init__(self, names: Container[str], others: Container[str], wanted: bool) -> None:
        self._names = names
        self._others = others
        self._wanted = wanted

    def __contains__(self, name: object) -> bool:
        return name in self._names and (name in self._others) is self._wanted


def _both(one: Container[str] | None, other: Container[str] | None) -> Container[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return _Names(one, other, wanted=True)


def _but(names: Container[str], avoided: Container[str]) -> Container[str]:
    return _Names(names, avoided, wanted=False)


def demand_order(request: PodRequest) -> tuple[int, ...]:
    """Return a sort key, the most demanding first: all cards, more cards, then cards alone, then more of each."""
    every_card = any(demand.every_card for demand in request.shape)
    whole = any(demand.exclusive for demand in request.shape)
    memory_mib = max((demand.memory_mib or 0 for demand in request.shape), default=0)
    percent = max((demand.memory_percent or 0 for demand in request.shape), default=0)
    cores = max((demand.cores for demand in request.shape), default=0)
    return -every_card, -request.cards, -whole, -memory_mib, -percent, -cores


def _most_demanding_first(seat: Seat) -> tuple[tuple[int, ...], float]:
    """Sort key: the most demanding, then who has fewer nodes to go to."""
    return demand_order(seat.request), math.inf if seat.node_names is None else len(seat.node_names)


def _shares_several(seat: Seat) -> bool:
    """Return whether it asks for parts of several cards: then it matters which ones others have got."""
    return any(demand.cards > 1 and not demand.exclusive for demand in seat.request.shape)


def _spread(seat: Seat) -> Seat:
    """Return a seat on the cards with the most room: taken so, equal parts of several cards fit most often."""
    return replace(seat, request=replace(seat.request, card_policy=Preference.SPREAD))


def _least_memory_mib(seat: Seat) -> int:
    """Return the least card memory that a member takes, in MiB; 0 where that depends on the card."""
    demands = seat.request.shape
    return max((d.cards * d.memory_mib for d in demands if d.memory_mib and not d.at_most_card), default=0)


STEPS = 16 * WORK_LIMIT
"""Steps in all, some 10 microseconds each. Placements that were not found by then count as not found."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A pod that has nothing yet."""

    pod: Pod
    request: PodRequest
    node_names: Collection[str] | None
    """The nodes that it may go to; None stands for any."""


class Trial:
    """Places pods one after the other, each beside those before it, on the first node that takes it."""

    def __init__(self, ledger: Ledger, but: Collection[str] = ()) -> None:
        """Take the UIDs under which something is on hold that counts as free for these pods."""
        self._ledger = ledger
        self._but = but
        self._nodes: dict[str, NodeRoom] = {}  # node name -> what is left of it, for the nodes that were looked at
        self._order: list[str] = [*ledger.node_names(), *ledger.counting_nodes()]
        # (shape, identity of the nodes allowed) -> how many nodes, in their order, have refused such pods
        self._refused: dict[tuple[Shape, int], int] = {}
        self._work = StepBudget(STEPS)
        self._taken: list[Pod] = []  # those that were placed
        self.placed: dict[str, Placement] = {}
        """Pod UID -> where it fits."""
        self.left: list[Asking] = []
        """Those that find no room."""

    @property
    def is_cut_short(self) -> bool:
        """Return whether it was given up before all was looked at: more may fit."""
        return self._work.is_spent

    def steps(self, pods: Collection[Asking]) -> Iterator[None]:
        """Try all of them. Others can have their turn between two steps."""
        for pod in pods:
            yield from self._try(pod)

    def nodes(self) -> Counter[str]:
        """Return on which nodes pods fit, and how many on each."""
        return Counter(placement.node_name for placement in self.placed.values())

    def room(self, node_name: str) -> NodeRoom:
        """Return the room of a node beside the placed pods."""
        room = self._nodes.get(node_name)
        if room is None:
            ledger, but = self._ledger, self._but
            found = ledger.room_without(node_name, but) if but else ledger.room_without_spares(node_name)
            room = self._nodes[node_name] = found
        return room

    def entries(self, node_name: str) -> list[CardEntry]:
        """Return the lines of a node's cards, with the shares of those that were placed."""
        entries = self._ledger.entries_of_node(node_name)
        here = [pod for pod in self._taken if self.placed[pod.uid].node_name == node_name]
        if not here and not self._but:
            return list(entries)
        copies = {entry.card.uuid: entry.as_it_is() for entry in entries}
        for entry in copies.values():
            entry.holds = {uid: share for uid, share in entry.holds.items() if uid not in self._but}
        for pod in here:
            for share in self.placed[pod.uid].shares:
                if share.uuid in copies:
                    copies[share.uuid].holders[pod.uid] = Holder(pod, share)
        return list(copies.values())

    def _try(self, pod: Asking) -> Iterator[None]:
        shape, key = pod.request.shape, (pod.request.shape, id(pod.node_names))
        for place in range(self._refused.get(key, 0), len(self._order)):
            name = self._order[place]
            if pod.node_names is None or name in pod.node_names:
                yield None
                searched, node = StepBudget(WORK_LIMIT), self.room(name)
                found = choose_cards(shape, node, Preference.BINPACK, searched)
                if not self._work.spend(STEPS_OF_A_LOOK + hard_steps(shape, searched)):
                    break
                if not isinstance(found, Refusal):
                    self._take(pod, Placement(name, shares_of(pod.request, found, node.cards), pod.request.host))
                    return
            self._refused[key] = place + 1  # what is left of it only becomes less
        self.left.append(pod)

    def _take(self, pod: Asking, placement: Placement) -> None:
        self.placed[pod.pod.uid] = placement
        self._taken.append(pod.pod)
        node, taken = self.room(placement.node_name), {share.uuid: share for share in placement.shares}
        rooms = tuple(_beside(taken[room.card.uuid], room) if room.card.uuid in taken else room for room in node.rooms)
        counted = None if node.counted is None else node.counted - counted_cards(pod.request.shape)
        self._nodes[placement.node_name] = replace(node, rooms=rooms, counted=counted)


def _beside(share: Share, room: Room) -> Room:
    """Return the room of a card beside a share."""
    return replace(room, free=room.free - share.amounts, idle=False, shut=room.shut or share.exclusive)
