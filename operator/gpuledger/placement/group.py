"""Places for the members of a gang, or the pods of a workload: for all of them at once, in as few zones as possible.

One pod is placed after the other on a sketch, the most demanding first, as a pod is placed that comes alone. So there
are places for pods that are alike, with one container, if and only if this finds them. Pods that differ could fit in
another order where they do not in this one.

Zones are values of node labels, from the narrowest label to the widest. All members go to one zone of the narrowest
label by which one has room for all. If there is none, they go to as few zones of the widest label as have room
together, and to as few of the next label among these. For members that are alike, these are the fewest: those with room
for the most come first. Else, of up to `FEW_ZONES` zones all sets are tried, the small ones first; of more, the same as
for members that are alike. If there is no room in zones, nodes without the labels are used, too, as if there were none.

A trial finds out how many pods fit, on the first node that takes each, for those who only ask.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import NOBODY
from gpuledger.model.errors import Refusal, WorkLimitExceeded
from gpuledger.model.gang import QuotaLimit, SeatKey
from gpuledger.model.request import HostAmounts, PodRequest, Shape
from gpuledger.model.share import Placement, shares_of
from gpuledger.placement.choose import STEPS_OF_A_LOOK, Chooser
from gpuledger.placement.decide import hard_steps
from gpuledger.placement.fit import WORK_LIMIT, choose_cards
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.sketch import Sketch

MEMBERS_AT_ONCE = 8
"""For which a place is looked for before others have their turn."""

FEW_ZONES = 6
"""Of so many zones, all sets are tried."""

ZONE_LOOKS = 1_024
"""Looks for a place of one member in some zones, before the members go where there is room: some 50 ms."""

Places = dict[SeatKey, Placement]
"""Pod -> its place."""


class Plan(NamedTuple):
    """The result of a search."""

    sketch: Sketch
    """With all pods, if there is room for all; it can be committed as long as nothing else has its turn."""
    lacking: int
    """For how many pods there is no room."""
    exceeded: QuotaLimit | None = None
    """The limit of their namespace that was in the way of one, if any."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A pod that is to be placed."""

    key: SeatKey
    request: PodRequest
    node_names: Collection[str] | None = None
    """The nodes to which it can go; None stands for any."""
    preferred: Collection[str] = ()
    """Nodes that it gets if one of them fits."""
    avoided: Collection[str] = ()
    """Nodes that it gets only if no other one fits."""


class GroupPlanner:
    """Plans places for all pods of a group or for none, without a change to the ledger.

    `needs_host`: no kube-scheduler looks whether nodes have the CPU and memory for all of them.
    """

    def __init__(self, ledger: Ledger, chooser: Chooser, needs_host: bool = False) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._needs_host = needs_host

    def plan(
        self,
        asking: Sequence[Asking],
        without: Collection[SeatKey] = NOBODY,
        beside: Collection[str] = (),
        sketch: Sketch | None = None,
    ) -> Generator[None, None, Plan]:
        """Look for places for all, in a ledger without the seats of some; or on a sketch, beside those that sit there.

        `beside` are the names of nodes on which other members are already: zones of these come first. Others can have
        their turn between two steps. Raises WorkLimitExceeded.
        """
        in_order = sorted(asking, key=_most_demanding_first)
        search = _Search(
            self._ledger, self._chooser, in_order, sketch or Sketch(self._ledger, without), self._needs_host
        )
        found = yield from search.place(None)
        if found < len(asking) and any(map(_shares_several, asking)):
            search.asking = [_spread(each) for each in search.asking]
            found = max(found, (yield from search.place(None)))
        if found == len(asking) and search.sketch.zones.labels:
            found = yield from self._in_few_zones(search, beside)
        return Plan(search.sketch, len(asking) - found, search.exceeded if found < len(asking) else None)

    def _in_few_zones(self, search: _Search, beside: Collection[str]) -> Generator[None, None, int]:
        """Place the pods in fewer zones, or else where they were; return how many are placed: all, or too few."""
        search.looks_left = ZONE_LOOKS
        number = len(search.asking)
        for zone in self._single_zones(search, beside):
            if (yield from search.place(zone)) == number:
                return number
            if search.looks_left <= 0:
                break
        names: Collection[str] | None = None
        for label in reversed(range(len(search.sketch.zones.labels))):
            fewer = (yield from self._fewest_zones(search, label, names)) if search.looks_left > 0 else None
            names = fewer if fewer is not None else names
        if names is not None and search.looks_left > 0 and (yield from search.place(names)) == number:
            return number
        return (yield from search.place(None))

    def _single_zones(self, search: _Search, beside: Collection[str]) -> Iterator[set[str]]:
        """Yield the nodes of each zone that may have room for all: by the narrowest label first, the fullest first."""
        zones, need_mib = search.sketch.zones, sum(map(_least_memory_mib, search.asking))
        for label in range(len(zones.labels)):
            preferred = {zones.of(name, label) for name in beside}
            search.stand()
            free = {zone: (names, search.free_mib(names)) for zone, names in zones.nodes_by_zone(label).items()}
            enough = {zone: found for zone, found in free.items() if found[1] >= need_mib}
            for zone in sorted(enough, key=lambda zone: (zone not in preferred, enough[zone][1], zone)):
                yield enough[zone][0]

    def _fewest_zones(
        self, search: _Search, label: int, within: Collection[str] | None
    ) -> Generator[None, None, set[str] | None]:
        """Return the nodes of the fewest zones that have room for all, of those `within`; None if none were found."""
        zones = search.sketch.zones.nodes_by_zone(label)
        inside = {zone: names if within is None else names & set(within) for zone, names in zones.items()}
        room: dict[str, int] = {}
        for zone, names in sorted(inside.items()):
            room[zone] = (yield from search.place(names, count=True)) if names else 0
            if search.looks_left <= 0:
                return None
        useful = sorted((zone for zone in room if room[zone]), key=lambda zone: (-room[zone], zone))
        for chosen in _sets(useful, room, len(search.asking), alike=search.are_alike):
            names = set[str]().union(*(inside[zone] for zone in chosen))
            if (yield from search.place(names)) == len(search.asking):
                return names
            if search.looks_left <= 0:
                return None
        return None


def _sets(useful: Sequence[str], room: dict[str, int], need: int, alike: bool) -> Iterator[tuple[str, ...]]:
    """Yield sets of zones that may have room for all together, the small ones first."""
    few = not alike and len(useful) <= FEW_ZONES
    for number in range(1, len(useful) + 1):
        for chosen in combinations(useful, number) if few else (tuple(useful[:number]),):
            if sum(room[zone] for zone in chosen) >= need:
                yield chosen


class _Search:
    """Looks for places for the same pods, in one set of nodes after the other."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        asking: Sequence[Asking],
        sketch: Sketch,
        needs_host: bool,
    ) -> None:
        self.asking = asking
        self.are_alike = len({(each.request.shape, id(each.node_names)) for each in asking}) == 1
        self.sketch = sketch
        self.looks_left = 0
        self.exceeded: QuotaLimit | None = None
        self._ledger = ledger
        self._chooser = chooser
        self._needs_host = needs_host

    def place(self, within: Collection[str] | None, count: bool = False) -> Generator[None, None, int]:
        """Place all pods on these nodes, in place of where they were; return for how many there is room.

        It ends at the first that finds none, and returns for how many there was room before; with `count`, and where no
        nodes are named, it goes on with those that ask for something else.
        """
        self.stand()
        waiting, failed = list(self.asking), set[tuple[object, ...]]()
        for number in range(1, len(self.asking) * len(self.asking) + 1):
            if not waiting:
                break
            each = waiting.pop(0)
            kind = (each.request.shape, id(each.node_names))
            if kind not in failed and not self._sit(each, within):
                failed.add(kind)
                if within is not None and not count:
                    break
            if number % MEMBERS_AT_ONCE == 0:
                yield None
                lost = set(self.sketch.refresh())  # others have taken their places meanwhile
                waiting += [each for each in self.asking if each.key in lost]
        return len(self._seated())

    def stand(self) -> None:
        """Let none of the pods have a place."""
        self.sketch.stand(self._seated())

    def free_mib(self, node_names: Collection[str]) -> int:
        """Return the memory that is free on the cards of some nodes, in MiB."""
        return sum(room.free.memory_mib for name in node_names for room in self.sketch.node_room(name).rooms)

    def _seated(self) -> list[SeatKey]:
        return [each.key for each in self.asking if each.key in self.sketch.places]

    def _sit(self, each: Asking, within: Collection[str] | None) -> bool:
        self.looks_left -= 1
        names = both(each.node_names, within)
        if self._needs_host:
            names = both(WithHost(self.sketch, each.request.host), names)
        placement = self._look(each, names)
        if placement is not None:
            exceeded = self.sketch.sit(each.key, placement)
            self.exceeded = exceeded or self.exceeded
            return exceeded is None
        if why := self.sketch.why_it_waits(self._chooser, each.request):
            raise WorkLimitExceeded(why)
        if self.sketch.is_unfinished(self._chooser, each.request):
            raise WorkLimitExceeded("the search for the gang takes long; it continues at the next request")
        return False

    def _look(self, each: Asking, names: Container[str] | None) -> Placement | None:
        placement = None
        if each.preferred:
            placement = self.sketch.best(self._chooser, each.request, both(names, each.preferred))
        if placement is None and each.avoided:
            others = self._ledger.node_names() if names is None else names
            placement = self.sketch.best(self._chooser, each.request, _but(others, each.avoided))
        return placement or self.sketch.best(self._chooser, each.request, names)


class WithHost:
    """The nodes that have CPU and memory for a pod in a sketch; what is not known is enough."""

    def __init__(self, sketch: Sketch, host: HostAmounts) -> None:
        self._sketch = sketch
        self._host = host

    def __contains__(self, name: object) -> bool:
        free = self._sketch.node_room(str(name)).host
        return free is None or self._host.fits_in(free)


class _Names:
    """Names that are in one collection, and in another one, or not in it."""

    def __init__(self, names: Container[str], others: Container[str], wanted: bool) -> None:
        self._names = names
        self._others = others
        self._wanted = wanted

    def __contains__(self, name: object) -> bool:
        return name in self._names and (name in self._others) is self._wanted


def both(one: Container[str] | None, other: Container[str] | None) -> Container[str] | None:
    """Return the names that are in both; None stands for any."""
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


def _most_demanding_first(each: Asking) -> tuple[tuple[int, ...], float]:
    """Sort key: the most demanding, then who has fewer nodes to go to."""
    return demand_order(each.request), math.inf if each.node_names is None else len(each.node_names)


def _shares_several(each: Asking) -> bool:
    """Return whether it asks for parts of several cards: then it matters which ones others have got."""
    return any(demand.cards > 1 and not demand.exclusive for demand in each.request.shape)


def _spread(each: Asking) -> Asking:
    """Return a pod that gets the cards with the most room: taken so, equal parts of several cards fit most often."""
    return replace(each, request=replace(each.request, card_policy=Preference.SPREAD))


def _least_memory_mib(each: Asking) -> int:
    """Return the least card memory that a pod takes, in MiB; 0 where that depends on the card."""
    demands = each.request.shape
    return max((d.cards * d.memory_mib for d in demands if d.memory_mib and not d.at_most_card), default=0)


STEPS = 16 * WORK_LIMIT
"""Steps in all, some 10 microseconds each. Placements that were not found by then count as not found."""


class Trial:
    """Places pods one after the other, each beside those before it, on the first node that takes it."""

    def __init__(self, ledger: Ledger, gone: Collection[SeatKey] = NOBODY) -> None:
        """Take the pods that count as if they had left."""
        self.sketch = Sketch(ledger, gone=gone)
        self._order: list[str] = [*ledger.node_names(), *ledger.counting_nodes()]
        # (shape, identity of the nodes allowed) -> how many nodes, in their order, have refused such pods
        self._refused: dict[tuple[Shape, int], int] = {}
        self._work = StepBudget(STEPS)
        self.left: list[Asking] = []
        """Those that find no room."""

    @property
    def placed(self) -> Places:
        """Return where pods fit."""
        return self.sketch.places

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

    def _try(self, pod: Asking) -> Iterator[None]:
        shape, key = pod.request.shape, (pod.request.shape, id(pod.node_names))
        for place in range(self._refused.get(key, 0), len(self._order)):
            name = self._order[place]
            if pod.node_names is None or name in pod.node_names:
                yield None
                searched, node = StepBudget(WORK_LIMIT), self.sketch.node_room(name)
                found = choose_cards(shape, node, Preference.BINPACK, searched)
                if not self._work.spend(STEPS_OF_A_LOOK + hard_steps(shape, searched)):
                    break
                if not isinstance(found, Refusal):
                    shares = shares_of(pod.request, found, node.cards)
                    self.sketch.put(pod.key, Placement(name, shares, pod.request.host))
                    return
            self._refused[key] = place + 1  # what is left of it only becomes less
        self.left.append(pod)
