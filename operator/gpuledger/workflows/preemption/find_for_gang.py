"""Finds victims for all members that a gang lacks, over all nodes that kube-scheduler would take for each."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from attrs import define

from gpuledger.formats.kubernetes.constraints import where_it_can_go
from gpuledger.model.gang import GangWay, SeatKey
from gpuledger.model.json_object import Json
from gpuledger.model.request import HostAmounts
from gpuledger.model.share import Placement, Pod, shares_of
from gpuledger.placement.policy import StepBudget
from gpuledger.placement.preemption.group import GroupEviction, GroupNode, Kind, Numbers, cheapest_group_eviction
from gpuledger.placement.sketch import Sketch
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import GangState, Member, Members
from gpuledger.workflows.preemption.find_victims import (
    ATTEMPTS,
    NODES_AT_ONCE,
    Budgets,
    GroupVictims,
    VictimFinder,
    Victims,
)
from gpuledger.workflows.tasks import TURN_S, yield_to_loop

GROUP_STEPS = 131_072
"""Steps for one gang, in a thread: some 1.5 to 4 s."""


def kinds_of(members: Collection[Member]) -> list[list[Member]]:
    """Return the members, those together that come to the same for placement."""
    kinds: dict[tuple[object, ...], list[Member]] = {}
    for member in members:
        request = member.request
        key = (request.shape, request.host, request.node_policy, request.card_policy, id(member.node_names))
        kinds.setdefault(key, []).append(member)
    return list(kinds.values())


@define(eq=False, slots=False)
class SimilarMembers(Component):
    """Knows the members of Kubernetes' own groups.

    kube-scheduler, where it tries these as a whole, ends at the first member that finds no card, if too few are left
    then. Others can go where that one can, if everything that decides this is the same for them.
    """

    _members: Members

    def __attrs_post_init__(self) -> None:
        self._terms: dict[str, str] = {}  # pod UID -> what decides where it can go

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        uid = pod["metadata"]["uid"]
        state = self._members.of(uid)
        if state is not None and state.name.way is GangWay.KUBERNETES:
            self._terms[uid] = where_it_can_go(pod)

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        self._terms.pop(pod_uid, None)

    def known_pending(self) -> set[str]:
        """Return the UIDs of the members that are known."""
        return set(self._terms)

    def of(self, asked: Collection[Member], state: GangState) -> list[Member]:
        """Return the members that were not asked for and are like one that was, with the nodes of that one."""
        latest_last = sorted(asked, key=lambda member: member.tried_s or 0.0)
        names = {self._terms.get(member.pod.uid): member.node_names for member in latest_last}
        names.pop(None, None)
        others = (member for member in state.pending.values() if member.node_names is None)
        found = ((member, names.get(self._terms.get(member.pod.uid))) for member in others)
        return [replace(member, node_names=its) for member, its in found if its is not None]


@define(eq=False, slots=False)
class GangVictimFinder(Component):
    """Looks at the ledger of now."""

    _finder: VictimFinder

    async def find(self, members: Sequence[Member], places: Collection[SeatKey]) -> GroupVictims | None:
        """Return the cheapest victims so that all of these members fit, None if there are none.

        `places` are the seats that are kept for them, in place of members that are gone. Only pods of less priority
        than each member leave. True at the moment of returning.
        """
        budgets, attempts = Budgets(), 0
        lowest = min((member.pod for member in members), key=lambda pod: pod.priority)
        groups = kinds_of(members)
        while attempts < ATTEMPTS:
            nodes = await self._nodes(lowest, members, budgets, places)
            others = [node for node in nodes if not node.room.slow]  # a slow one may be dead
            found = await self._cheapest(groups, others, budgets)
            if found is None and len(others) < len(nodes):
                found = await self._cheapest(groups, nodes, budgets)
            if found is None:
                return None
            victims = self._finder.pods_of(found.victims)
            unread = {victim.namespace for victim in victims} - budgets.namespaces
            for namespace in unread:
                await budgets.read(self._store, namespace)
            if unread:
                continue
            attempts += 1
            used = {seat.node_name for seat in found.seats}
            then = [node for node in nodes if node.room.name in used]
            if then == [self._node(lowest, node.room.name, budgets, places) for node in then]:
                return self._victims(lowest, groups, found, victims, budgets)
        return None  # the nodes do not stand still; each change of one is a reason to ask again

    async def _nodes(
        self, lowest: Pod, members: Sequence[Member], budgets: Budgets, places: Collection[SeatKey]
    ) -> list[GroupNode]:
        names = {name for member in members for name in member.node_names or ()}
        since_s, nodes = self._clock.work_s(), []
        for number, name in enumerate(sorted(names.intersection(self._ledger.known_nodes()))):
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1 or self._clock.work_s() > since_s + TURN_S:
                since_s = await yield_to_loop(since_s, self._clock)
            nodes.append(self._node(lowest, name, budgets, places))
        return nodes

    def _node(self, lowest: Pod, node_name: str, budgets: Budgets, places: Collection[SeatKey] = ()) -> GroupNode:
        tenants = self._finder.tenants(lowest, node_name, budgets, None)
        sketch = Sketch(self._ledger, places)
        entries = [entry.as_it_is() for entry in sketch.entries(node_name)]
        return GroupNode(sketch.node_room(node_name), entries, tenants)

    async def _cheapest(
        self, groups: Sequence[Sequence[Member]], nodes: Sequence[GroupNode], budgets: Budgets
    ) -> GroupEviction | None:
        kinds = [
            Kind(
                group[0].request.shape,
                len(group),
                group[0].node_names or (),
                self._finder.preference(group[0].request),
            )
            for group in groups
        ]
        takes = self._hosts_of(groups, nodes)
        arguments = (kinds, nodes, dict(budgets.allowed), StepBudget(GROUP_STEPS), takes)
        return await asyncio.to_thread(cheapest_group_eviction, *arguments)

    def _hosts_of(self, groups: Sequence[Sequence[Member]], nodes: Sequence[GroupNode]) -> _HostTakes:
        hosts = self._ledger.hosts
        free = {node.room.name: hosts.free(node.room.name) for node in nodes}
        promised = {node.room.name for node in nodes if self._finder.has_promises(node.room.name)}
        freed = {uid: hosts.of_pod(uid) for node in nodes for uid in node.tenants}
        return _HostTakes([group[0].request.host for group in groups], free, promised, freed)

    def _victims(
        self,
        lowest: Pod,
        groups: Sequence[Sequence[Member]],
        found: GroupEviction,
        victims: Sequence[Pod],
        budgets: Budgets,
    ) -> GroupVictims:
        cost = self._finder.cost_of(victims, budgets) if len(victims) > len(found.victims) else found.cost
        left = [list(group) for group in groups]
        on_cards: set[str] = set()
        rooms: list[tuple[Pod, Victims]] = []
        leaving = False
        for seat in found.seats:
            member = left[seat.kind].pop(0)
            cards = self._ledger.node_room(seat.node_name).cards
            shares = shares_of(member.request, seat.assignment, cards)
            placement = Placement(seat.node_name, shares, member.request.host)
            entries = [entry for share in shares if (entry := self._ledger.entry(share.uuid)) is not None]
            here = tuple(each for each in victims if any(each.uid in entry.holders for entry in entries))
            on_cards |= {each.uid for each in here}
            displaced = self._finder.displaced(lowest, placement, found.victims)
            rooms.append((member.pod, Victims(placement, here, cost, displaced)))
            leaving = leaving or any(t.leaves for t in self._node(lowest, seat.node_name, budgets).tenants.values())
        first, its = rooms[0]
        also = tuple(each for each in victims if each.uid not in on_cards)
        rooms[0] = first, Victims(its.placement, (*its.pods, *also), cost, its.displaced)
        protected = self._finder.protected_by(victims, budgets) if cost[0] else ()
        return GroupVictims(tuple(rooms), tuple(victims), cost, protected, leaving)


@dataclass(frozen=True, slots=True)
class _HostTakes:
    """Checks whether the members that come to a node have CPU and memory there, as far as is known.

    kube-scheduler has found that for each of them alone, beside the victims; not for several.
    """

    asks: Sequence[HostAmounts]
    """For one pod of each kind."""
    free: dict[str, HostAmounts | None]
    promised: Collection[str]
    """Nodes on which room is promised to others, too."""
    freed: dict[str, HostAmounts]
    """Pod UID -> what becomes free when it leaves."""

    def __call__(self, node_name: str, numbers: Numbers, leaving: Collection[str]) -> bool:
        free = self.free[node_name]
        if free is None or (sum(numbers) == 1 and node_name not in self.promised):
            return True
        asked = HostAmounts()
        for one, number in zip(self.asks, numbers, strict=True):
            for _ in range(number):
                asked += one
        for uid in leaving:
            free += self.freed.get(uid, HostAmounts())
        return asked.fits_in(free)
