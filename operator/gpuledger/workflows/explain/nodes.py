"""Why nodes do not take a pod: card by card from the ledger of now, and the reasons of kube-scheduler itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from attrs import define

from gpuledger.formats.kubernetes.constraints import against_rules, lacking, taken_of
from gpuledger.formats.scheduler import SchedulerWords
from gpuledger.kube_api.writes import KubeStore
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, NodeVerdict, SchedulerReason, Unreachable
from gpuledger.model.gang import SeatKey
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Pod
from gpuledger.placement.explain import explain_node
from gpuledger.placement.fit import WORK_LIMIT
from gpuledger.placement.group import Trial
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.preemption.victims import WORK_LIMIT as EVICTION_WORK_LIMIT
from gpuledger.placement.preemption.victims import Question, Tenant
from gpuledger.reports.explanation import elsewhere, nearness
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.find_victims import answered
from gpuledger.workflows.tasks import TURN_S, yield_to_loop

NODES_READ = 24
"""Nodes, the nearest ones, that are looked up for one pod; each is a request to the API server."""

NODES_SUMMED = 8
"""Of these, nodes whose pods are read as well: a node can have some hundred, of 10 kB each."""


async def with_scheduler_reasons(
    store: KubeStore, pod: Json, words: SchedulerWords, nodes: Sequence[NodeVerdict]
) -> list[NodeVerdict]:
    """Return the nodes, the nearest of those that kube-scheduler refuses with its reason where the objects show that.

    Nodes that can't be read have none: kube-scheduler's own message is shown beside it.
    """
    found: dict[str, SchedulerReason] = {}
    sums_left = NODES_SUMMED
    for name in [node.name for node in nodes if node.refused_by_scheduler][:NODES_READ]:
        try:
            node = await store.node(name)
            why = against_rules(pod, node)
            if why is None and sums_left:
                sums_left -= 1
                there = await store.pods_of_node(name, partial(taken_of, short_of=words.short_of))
                why = lacking(pod, node, [each for each in there if each], words.short_of)
        except Unreachable:  # nobody waits for as many time-outs as there are nodes
            break
        except ApiError:
            continue
        if why is not None:
            found[name] = SchedulerReason(*why)
    return [replace(node, scheduler=found.get(node.name)) for node in nodes]


NODES_AT_ONCE = 8
"""Nodes that are looked at before others have a turn."""

NODES_IN_DETAIL = 50
"""Nodes, the nearest ones, whose cards are shown one by one."""

NODES_WITH_LEAVERS = 8
"""Nodes, the nearest ones, for which it is looked for who would have to leave: it can take milliseconds for each."""

SEARCH_STEPS = 8 * WORK_LIMIT
"""Steps, over all nodes, to find places for a pod of several containers: some 0.1 s. Where they are spent, and no
container would be refused alone, the pod counts as one whose containers do not fit together."""

LEAVER_STEPS = 2 * EVICTION_WORK_LIMIT
"""The same to find out who would have to leave for such a pod."""

REUSED_S = 10.0
"""How long what was found for one pod counts for others that ask alike, where it need not be of this moment: pods wait
in hundreds, and they come from few templates."""

ASKS_KEPT = 4


@define(eq=False, slots=False)
class NodeReasons(Component):
    """Looks at all nodes, in slices: the scheduler's questions go first."""

    _waiting: WaitingPods
    _members: Members
    _lives: PodLifecycles
    _held_pod: Callable[[str], Pod | None]

    def __attrs_post_init__(self) -> None:
        # (shape, identity of the nodes offered) -> when it was found, these nodes, and what was found
        self._found: BoundedMap[tuple[Shape, int], tuple[float, object, list[NodeVerdict]]] = BoundedMap(ASKS_KEPT)

    async def of_request(
        self, uid: str, request: PodRequest, offered: Collection[str] | None, of_now: bool
    ) -> list[NodeVerdict]:
        """Return why nodes do not take a pod, the nearest first; it can be a few seconds old if it may.

        It is about the first variant of the request that some node fits; if none does, about the preferred one.
        """
        first: list[NodeVerdict] | None = None
        for variant in request.variants:
            found = await self._nodes(uid, variant.shape, offered, of_now)
            if request.joined:
                found = sorted((elsewhere(node, request) for node in found), key=nearness)
            if any(node.reason is None and not node.refused_by_scheduler for node in found):
                return found
            first = found if first is None else first
        return first or []

    async def _nodes(self, uid: str, shape: Shape, offered: Collection[str] | None, of_now: bool) -> list[NodeVerdict]:
        key = (shape, id(offered))
        if self._ledger.has_place(uid):
            return await self.look(uid, shape, offered)
        known = self._found.get(key)
        if of_now or known is None or known[0] < self._clock.now_s() - REUSED_S:
            known = (self._clock.now_s(), offered, await self.look(uid, shape, offered))
            self._found.note(key, known)
        return known[2]

    async def look(
        self, uid: SeatKey, shape: Shape, offered: Collection[str] | None, beside: Trial | None = None
    ) -> list[NodeVerdict]:
        """Return why nodes do not take such a pod now, beside those of a trial if there is one; the nearest first."""
        found = []
        since_s, searching = self._clock.work_s(), StepBudget(SEARCH_STEPS)
        for number, name in enumerate([*self._ledger.node_names(), *self._ledger.counting_nodes()]):
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1 or self._clock.work_s() > since_s + TURN_S:
                since_s = await yield_to_loop(since_s, self._clock)
            verdict = self._verdict(uid, shape, name, searching, beside)
            cards = tuple(replace(each, by=tuple(map(self.name_of, each.by))) for each in verdict.cards)
            found.append(replace(verdict, cards=cards, offered=None if offered is None else name in offered))
        found.sort(key=nearness)
        near = []
        leaving = StepBudget(-1 if beside else LEAVER_STEPS)
        for node in found[:NODES_WITH_LEAVERS]:
            since_s = await yield_to_loop(since_s, self._clock)
            near.append(await self._with_leavers(node, shape, leaving))
        far = [replace(node, cards=()) for node in found[NODES_IN_DETAIL:]]
        return [*near, *found[NODES_WITH_LEAVERS:NODES_IN_DETAIL], *far]

    def _verdict(
        self, uid: SeatKey, shape: Shape, name: str, searching: StepBudget, beside: Trial | None
    ) -> NodeVerdict:
        """Return the node's verdict, ignoring this pod's own reservation and other pods' alternatives."""
        gone = (uid,) if isinstance(uid, str) and self._ledger.has_place(uid) else ()
        room = self._ledger.room_if(name, gone)
        work = StepBudget(min(WORK_LIMIT, max(searching.left, 0)) if len(shape) > 1 else WORK_LIMIT)
        allowed = work.left
        closed = self._ledger.strangers.closed(name)
        entries = self._ledger.entries_of_node(name)
        if beside:
            room, entries = beside.sketch.node_room(name), beside.sketch.entries(name)
        verdict = explain_node(shape, room, entries, work, closed)
        searching.spend(allowed - work.left)
        return verdict

    async def _with_leavers(self, node: NodeVerdict, shape: Shape, leaving: StepBudget) -> NodeVerdict:
        if node.reason is None or leaving.is_spent:
            return node
        entries = self._ledger.entries_of_node(node.name)
        pods = {uid: holder.pod for entry in entries for uid, holder in entry.holders.items()}
        tenants = {uid: Tenant(uid, pod.priority, self._lives.started_s(uid)) for uid, pod in pods.items()}
        room, work = self._ledger.node_room(node.name), StepBudget(EVICTION_WORK_LIMIT)
        question = Question(shape, room, entries, tenants, {}, Preference.BINPACK).kept()
        eviction = await answered(question, None, work)
        if question.is_hard:
            leaving.spend(EVICTION_WORK_LIMIT - work.left)
        leavers = tuple(str(pods[uid]) for uid in eviction.victims) if eviction else ()
        return replace(node, would_have_to_leave=leavers)

    def name_of(self, uid: str) -> str:
        """Return namespace/name of a pod that has, or is to have, part of a card; its UID if the name is unknown."""
        holders = self._ledger.holders.of(uid)
        pod = holders[0][1].pod if holders else self._held_pod(uid)
        if pod is None:
            gang = self._members.of(uid)
            waiting = self._waiting.find(uid) or (gang.pending.get(uid) if gang else None)
            pod = waiting.pod if waiting else None
        return str(pod) if pod else uid
