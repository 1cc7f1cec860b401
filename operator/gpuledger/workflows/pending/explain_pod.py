"""Answers why a pod waits, from the ledger of now, and which pods wait. Writes nothing.

For one pod, when a person asks, the pod, its workload in Kueue, and the reasons of kube-scheduler itself are read. The
list of all comes from placement's memory, without looking at nodes; pods for which kube-scheduler itself has no node
are in it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import chain

from attrs import define

from gpuledger.formats.kubernetes.constraints import against_rules, lacking, taken_of
from gpuledger.formats.kubernetes.pod import (
    bound_node,
    created_at,
    is_finished,
    pod_identity,
    scheduler_of,
    scheduler_says,
)
from gpuledger.formats.kubernetes.workload import GATE, GROUP_LABEL, queue_of, why_not_admitted, workload_of
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.formats.scheduler import SchedulerWords, scheduler_words
from gpuledger.kube_api.writes import KubeStore
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import BEING_FREED, ApiError, BadInput, Reason, Refusal, Unreachable, WorkLimitExceeded
from gpuledger.model.gang import SeatKey
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest, Shape, counted_cards
from gpuledger.model.share import Holder, HolderState, Pod
from gpuledger.placement.explain import NodeVerdict, explain_node
from gpuledger.placement.fit import WORK_LIMIT, compiled
from gpuledger.placement.group import Trial
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.preemption.victims import WORK_LIMIT as EVICTION_WORK_LIMIT
from gpuledger.placement.preemption.victims import Question, Tenant
from gpuledger.reports.explanation import (
    CardReason,
    Explanation,
    NodeReason,
    PodState,
    SchedulerReason,
    WaitingReport,
    advice,
    elsewhere,
    in_short,
    moment,
    nearness,
    quota_text,
    refused_by_scheduler,
)
from gpuledger.reports.gang import divided, gangs_of, placed_by
from gpuledger.reports.tables import pods_named
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import Member, Members
from gpuledger.workflows.gangs.report import GangTrials, GangView
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.pending.pod_condition import RefusedByScheduler
from gpuledger.workflows.pending.waiting_pods import WaitingPod, WaitingPods
from gpuledger.workflows.preemption.find_victims import answered
from gpuledger.workflows.quota import over_quota
from gpuledger.workflows.tasks import TURN_S, run_cooperatively, yield_to_loop


async def why_gated(store: KubeStore, pod: Json, words: SchedulerWords) -> str:
    """Return why a gated pod's Kueue workload waits; empty without Kueue's gate, or if no reason is stated."""
    if GATE not in words.gates:
        return ""
    try:
        found = await _workload(store, pod)
    except ApiError:  # the settings do not say `kueue`, and the operator may not read them; or it is gone
        return ""
    why = why_not_admitted(found) if found else ""
    return f"its workload {found['metadata']['name']} {why}" if found and why else ""


async def _workload(store: KubeStore, pod: Json) -> Json | None:
    metadata = pod["metadata"]
    named = workload_of(pod)
    group = (metadata.get("labels") or {}).get(GROUP_LABEL)  # its workload has the same name
    name = named[0].name if named else group
    if name:
        return await store.workload(metadata["namespace"], name)
    async for page in store.workloads(metadata["namespace"], metadata["uid"]):
        for each in page:
            return each
    return None


NODES_READ = 24
"""Nodes, the nearest ones, that are looked up for one pod; each is a request to the API server."""

NODES_SUMMED = 8
"""Of these, nodes whose pods are read as well: a node can have some hundred, of 10 kB each."""


async def why_refused(
    store: KubeStore, pod: Json, words: SchedulerWords, node_names: Sequence[str]
) -> dict[str, SchedulerReason]:
    """Return node name -> why kube-scheduler does not take it, where the objects show that.

    Nodes that can't be read are left out: kube-scheduler's own message is shown beside it.
    """
    found: dict[str, SchedulerReason] = {}
    sums_left = NODES_SUMMED
    for name in node_names[:NODES_READ]:
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
    return found


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


NO_NODES: frozenset[str] = frozenset()
"""The nodes that kube-scheduler offers when it refuses all of them by itself."""

GATES_NAMED = 4

TO_BE_OURS = "Create it anew with the name; the admission policies fill it in where they are installed"

REUSED_S = 10.0
"""How long what was found for one pod counts for others that ask alike, where it need not be of this moment: pods wait
in hundreds, and they come from few templates."""

ASKS_KEPT = 4


@define(eq=False, slots=False)
class PodExplainer(Component):
    """Explains pods, one at a time and in slices: the scheduler's questions go first."""

    _waiting: WaitingPods
    _held_pod: Callable[[str], Pod | None]
    _gangs: GangTrials
    _members: Members
    _lives: PodLifecycles

    def __attrs_post_init__(self) -> None:
        # (shape, identity of the nodes offered) -> when it was found, these nodes, and what was found
        self._found: BoundedMap[tuple[Shape, int], tuple[float, object, list[NodeReason]]] = BoundedMap(ASKS_KEPT)

    async def explain(self, namespace: str, name: str) -> Explanation:
        """Return all that there is to say of a pod. Raises NotFound, and what else the API server says."""
        return await self.explain_object(await self._store.pod(namespace, name))

    async def explain_object(self, pod: Json, of_now: bool = True) -> Explanation:
        """Return the same of a pod that was just read; what is said of nodes can be a few seconds old if it may."""
        found = await self._explain(pod, of_now)
        warnings = [each.text for each in self._formats.warnings(pod)]
        if of_now and found.state is PodState.WAITING:
            warnings += await self._of_gang(pod)
        gang, words = self._members.name_of(found.pod.uid), self._members.described(found.pod.uid)
        return replace(found, warnings=tuple(warnings), gang=gang, gang_words=words, queue=queue_of(pod))

    async def _of_gang(self, pod: Json) -> list[str]:
        """Return the reasons that split a pod's gang, which only all pods of its namespace show."""
        for name in gangs_of([pod]):
            pods: list[tuple[str, int]] = []
            async for page in self._store.selected_pods(name.namespace, ""):
                pods += [placed_by(each) for each in gangs_of(page).get(name, ()) if not is_finished(each)]
            texts = [*divided(name, pods, self._settings.scheduler_names), *self._members.other_priority(pod)]
            return [f"gang {name.name}: {text}" for text in texts]
        return []

    async def nodes_beside(
        self, uid: SeatKey, shape: Shape, offered: Collection[str] | None, trial: Trial
    ) -> list[NodeReason]:
        """Return why nodes do not take a pod beside those of a trial, the nearest first."""
        return await self._look(uid, shape, offered, trial)

    async def _explain(self, pod: Json, of_now: bool) -> Explanation:
        identity, since = pod_identity(pod), created_at(pod)
        try:
            request = self._formats.request(pod)
        except BadInput as error:
            if has_claims(pod) and scheduler_of(pod) not in self._settings.scheduler_names:
                text = f"spec.schedulerName is {scheduler_of(pod)}: its claims are not gpuledger's to serve"
                return Explanation(identity, PodState.NOT_OURS, text, since)
            return Explanation(identity, PodState.BAD_REQUEST, f"can't be placed: {error}", since)
        if request is None:
            return Explanation(identity, PodState.NO_GPU, "asks for no GPU", since)
        if scheduler_of(pod) not in self._settings.scheduler_names:
            names = " or ".join(self._settings.scheduler_names)
            text = f"spec.schedulerName is {scheduler_of(pod) or 'not set'}, not {names}: gpuledger does not place it"
            return Explanation(identity, PodState.NOT_OURS, f"{text}. {TO_BE_OURS}", since, request=request)
        holders = self._ledger.holders_of(identity.uid)
        if is_finished(pod) or bound_node(pod):
            state, text = _of_bound(pod, request, holders, self._ledger.only_counts(bound_node(pod)))
            text += self._of_others(request, bound_node(pod)) if state is PodState.PLACED else ""
            return Explanation(identity, state, text, since, request=request, holders=holders)
        try:
            await run_cooperatively(compiled(request))
        except BadInput as error:
            return Explanation(identity, PodState.BAD_REQUEST, f"can't be placed: {error}", since)
        except WorkLimitExceeded:  # its cards say so
            pass
        return await self._explain_waiting(pod, identity, request, of_now)

    async def _explain_waiting(self, pod: Json, identity: Pod, request: PodRequest, of_now: bool) -> Explanation:
        waiting, words = self._waiting.find(identity.uid), scheduler_words(pod)
        member = self._gangs.member(identity.uid)
        known = waiting.node_names if waiting else self._gangs.offered(member) if member else None
        offered = NO_NODES if words.refused_all else known
        tried_s = waiting.tried_s if waiting else member.tried_s if member else None
        nodes = await self._nodes_for(identity.uid, request, offered, of_now)
        if of_now:
            nodes = await self._with_scheduler_reasons(pod, words, nodes)
        advised = advice(request, nodes, self._formats.words(pod, next(iter(request.names), "")))
        gang = await self._gangs.view_of(identity.uid, of_now)
        over_quota = self._over_quota(identity)
        gated = await why_gated(self._store, pod, words) if of_now else ""
        state, text = self._state(identity.uid, words, nodes, advised, gang, over_quota, gated)
        return Explanation(
            pod=identity,
            state=state,
            summary=text,
            since=created_at(pod),
            tried=moment(tried_s),
            request=request,
            scheduler_says=scheduler_says(pod),
            refused_by_scheduler=words.refused_all,
            nodes=nodes,
            holders=self._ledger.holders_of(identity.uid),
            waits_for=self._leaving(identity.uid),
            advice=advised if state is PodState.WAITING and not over_quota else "",
            over_quota=bool(over_quota),
            gang_stage=gang.stage if gang and not words.refused_all else None,
        )

    def _of_others(self, request: PodRequest, node_name: str) -> str:
        """Name the pods that hold in the ledger what a pod shares by claims."""
        entries = self._ledger.entries_of_node(node_name)
        holders = [holder for entry in entries for holder in entry.holders.values()]
        of = {part.claim.uid: h.pod for h in holders for part in h.share.containers if part.claim is not None}
        unknown = "no pod: see `gpuledger audit`"
        shared = request.joined
        return "".join(f"; ResourceClaim {each.object_name} counts for {of.get(each.uid, unknown)}" for each in shared)

    def _leaving(self, uid: str) -> list[str]:
        """Return the names of the pods that leave cards for a pod."""
        claims = self._ledger.promises.claims_of(uid)
        return [self._name(victim) for victim in sorted({victim for _, each in claims for victim in each.victims})]

    async def _with_scheduler_reasons(
        self, pod: Json, words: SchedulerWords, nodes: Sequence[NodeReason]
    ) -> list[NodeReason]:
        """Return the nodes, with the reasons of kube-scheduler's own for the nearest of those that it refuses."""
        refused = [node.name for node in nodes if node.refused_by_scheduler]
        reasons = await why_refused(self._store, pod, words, refused)
        return [replace(node, scheduler=reasons.get(node.name)) for node in nodes]

    def _over_quota(self, pod: Pod) -> str:
        """Return how far its namespace is with its quota, if that is why a pod waits; else nothing."""
        limit, namespace = self._waiting.limit_of(pod.uid), pod.namespace
        return quota_text(namespace, limit, self._ledger.quotas.used(namespace, limit)) if limit else ""

    def _state(
        self,
        uid: str,
        words: SchedulerWords,
        nodes: Sequence[NodeReason],
        advised: str,
        gang: GangView | None,
        over_quota: str,
        gated: str,
    ) -> tuple[PodState, str]:
        claims, hold = self._ledger.promises.claims_of(uid), self._ledger.seats.of(uid)
        if claims:
            card, claim = claims[0]
            pods = pods_named(self._leaving(uid)) or "pods that kube-scheduler evicts"
            cards = "1 card" if len(claims) == 1 else f"{len(claims)} cards"
            text = f"waits for {pods} to leave {cards} of {card.node_name}, until {claim.holder.deadline} at the latest"
            return PodState.BEING_FREED, text
        if hold:
            return PodState.ROOM_FOUND, f"has room on hold on {hold.placement.node_name}: kube-scheduler is placing it"
        if words.gates:
            gates = ", ".join(words.gates[:GATES_NAMED]) + (", ..." if len(words.gates) > GATES_NAMED else "")
            text = f"kube-scheduler does not look at it before its scheduling gates are gone: {gates}"
            return PodState.WAITING, f"{text}; {gated}" if gated else text
        if words.refused_all:
            return PodState.WAITING, refused_by_scheduler(words.in_short, nodes)
        if gang:
            return PodState.WAITING, gang.summary
        if over_quota:
            return PodState.WAITING, over_quota
        fitting = next((node for node in nodes if node.reason is None and not node.refused_by_scheduler), None)
        if fitting:
            return PodState.ROOM_FOUND, f"fits on {fitting.name} now: kube-scheduler retries it in its turn"
        return PodState.WAITING, in_short(nodes, advised)

    async def _nodes_for(
        self, uid: str, request: PodRequest, offered: Collection[str] | None, of_now: bool
    ) -> list[NodeReason]:
        """Return the verdicts for the first variant that some node fits; if none does, for the preferred one."""
        first: list[NodeReason] | None = None
        for variant in request.variants:
            found = await self._nodes(uid, variant.shape, offered, of_now)
            if request.joined:
                found = sorted((elsewhere(node, request) for node in found), key=nearness)
            if any(node.reason is None and not node.refused_by_scheduler for node in found):
                return found
            first = found if first is None else first
        return first or []

    async def _nodes(self, uid: str, shape: Shape, offered: Collection[str] | None, of_now: bool) -> list[NodeReason]:
        key = (shape, id(offered))
        if self._ledger.has_place(uid):
            return await self._look(uid, shape, offered)
        known = self._found.get(key)
        if of_now or known is None or known[0] < self._clock.now_s() - REUSED_S:
            known = (self._clock.now_s(), offered, await self._look(uid, shape, offered))
            self._found.note(key, known)
        return known[2]

    async def _look(
        self, uid: SeatKey, shape: Shape, offered: Collection[str] | None, beside: Trial | None = None
    ) -> list[NodeReason]:
        found = []
        since_s, searching = self._clock.work_s(), StepBudget(SEARCH_STEPS)
        for number, name in enumerate([*self._ledger.node_names(), *self._ledger.counting_nodes()]):
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1 or self._clock.work_s() > since_s + TURN_S:
                since_s = await yield_to_loop(since_s, self._clock)
            verdict = self._verdict(uid, shape, name, searching, beside)
            found.append(self._reason(verdict, None if offered is None else name in offered))
        found.sort(key=nearness)
        near = []
        leaving = StepBudget(-1 if beside else LEAVER_STEPS)
        for node in found[:NODES_WITH_LEAVERS]:
            since_s = await yield_to_loop(since_s, self._clock)
            near.append(await self._with_leavers(node, shape, leaving))
        far = [_without_cards(node) for node in found[NODES_IN_DETAIL:]]
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

    def _reason(self, verdict: NodeVerdict, offered: bool | None) -> NodeReason:
        refusal = verdict.refusal
        cards = tuple(
            CardReason(each.card, each.reason, each.text, each.short, tuple(map(self._name, each.by)))
            for each in verdict.cards
        )
        text = refusal.text if refusal else "takes it"
        return NodeReason(verdict.name, offered, refusal.reason if refusal else None, text, verdict.remedy, cards)

    async def _with_leavers(self, node: NodeReason, shape: Shape, leaving: StepBudget) -> NodeReason:
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

    def _name(self, uid: str) -> str:
        """Return namespace/name of a pod that has, or is to have, part of a card; its UID if the name is unknown."""
        holders = self._ledger.holders_of(uid)
        pod = holders[0][1].pod if holders else self._held_pod(uid)
        if pod is None:
            waiting = self._waiting.find(uid) or self._gangs.member(uid)
            pod = waiting.pod if waiting else None
        return str(pod) if pod else uid


def _of_bound(
    pod: Json, request: PodRequest, holders: Sequence[tuple[Card, Holder]], only_counts: bool
) -> tuple[PodState, str]:
    if is_finished(pod):
        left = "; its cards are being released" if holders else ""
        return PodState.ENDED, f"has ended{left}"
    node_name = bound_node(pod)
    if not holders and only_counts:
        count = counted_cards(request.shape)
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
        return PodState.PLACED, f"has {gpus} of {node_name}, whose own device plugin chooses and counts them"
    if not holders and not request.shape:
        return PodState.PLACED, f"shares cards of {node_name} with other pods, by a claim"
    if not holders:
        return PodState.UNCOUNTED, f"is bound to {node_name}, and the ledger has no cards for it: see `gpuledger audit`"
    taken = "; its cards are being released" if holders[0][1].state is HolderState.RELEASING else ""
    cards = "1 card" if len(holders) == 1 else f"{len(holders)} cards"
    return PodState.PLACED, f"has {cards} of {node_name}{taken}"


def _without_cards(node: NodeReason) -> NodeReason:
    return replace(node, cards=())


UNKNOWN = Refusal(Reason.GANG, "the pod waits for its gang")
"""Of a member that was refused before this operator has started."""


@define(eq=False, slots=False)
class WhyWaiting(Component):
    """Reports on the pods that wait."""

    _waiting: WaitingPods
    _members: Members
    _refused_by_scheduler: RefusedByScheduler
    _queue_of: Callable[[str], str] = lambda uid: ""

    @property
    def edition(self) -> tuple[int, int, int]:
        """Return a value that changes whenever the reports may have changed."""
        return self._waiting.changes, self._refused_by_scheduler.changes, self._ledger.changes

    def reports(self) -> Iterator[WaitingReport]:
        """Yield a report for each pending pod, in scheduling order. Pods with equal demands cost as much as one.

        Pods that kube-scheduler itself refuses come last: no room helps them.
        """
        known: dict[tuple[object, ...], Counter[Refusal]] = {}
        refused = {uid: self._with_names(each) for uid, each in self._refused_by_scheduler.reports().items()}
        asked = (self._report(waiting, known) for waiting in self._waiting.all() if waiting.pod.uid not in refused)
        gangs = (
            self._with_names(_of_member(member)) for member in self._members.refused() if member.pod.uid not in refused
        )
        in_order = merge(asked, sorted(gangs, key=_rank), key=_rank)
        return chain(in_order, sorted(refused.values(), key=_rank))

    def pods_by_reason(self) -> Counter[str]:
        """Return how many pods wait for each main reason."""
        return Counter(report.main_reason for report in self.reports())

    def _report(self, waiting: WaitingPod, known: dict[tuple[object, ...], Counter[Refusal]]) -> WaitingReport:
        request, pod = waiting.request, waiting.pod
        reasons: Counter[Refusal] = Counter()
        if self._ledger.promises.claims_of(pod.uid):
            reasons[BEING_FREED] = 1
        elif limit := self._waiting.limit_of(pod.uid):
            reasons[over_quota(limit)] = 1
        elif self._waiting.lookup(pod.uid):  # there is no room for it
            alike = (request.shape, request.node_policy, request.card_policy, request.host, id(waiting.node_names))
            if alike not in known:
                known[alike] = self._chooser.reasons(request, waiting.node_names)
            reasons = known[alike]
        report = WaitingReport(pod, request, waiting.created, waiting.tried_s, reasons)
        return self._with_names(report)

    def _with_names(self, report: WaitingReport) -> WaitingReport:
        """Return the report with the gang and the queue of its pod."""
        state, queue = self._members.of(report.pod.uid), self._queue_of(report.pod.uid)
        if state is None and not queue:
            return report
        return replace(report, gang=state.name.name if state else report.gang, queue=queue)


def _of_member(member: Member) -> WaitingReport:
    refusal = member.refusal or UNKNOWN
    nodes = len(member.node_names) if member.node_names is not None else 1
    reasons = {refusal: max(nodes, 1)}
    return WaitingReport(member.pod, member.request, member.since, member.tried_s, reasons, member.gang.name.name)


def _rank(report: WaitingReport) -> tuple[int, str]:
    return -report.pod.priority, report.created
