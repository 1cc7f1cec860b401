"""Answers why a pod, a gang or a workload of Kueue waits, from the ledger of now, and which pods wait. Writes nothing.

For one pod, when a person asks, the pod, its workload in Kueue, and the reasons of kube-scheduler itself are read. Of a
gang and of a workload, a trial finds out how many pods would find cards at once; why nodes do not take the next one is
explained as for a pod. The list of all pods that wait comes from placement's memory, without looking at nodes; pods for
which kube-scheduler itself has no node are in it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, starmap
from math import ceil
from typing import NamedTuple

from attrs import define

from gpuledger.formats.kubernetes.gang import described
from gpuledger.formats.kubernetes.pod import (
    bound_node,
    created_at,
    is_finished,
    may_be_placed,
    pod_identity,
    scheduler_of,
    scheduler_says,
)
from gpuledger.formats.kubernetes.workload import pod_sets, queue_of
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.formats.scheduler import SchedulerWords, scheduler_words
from gpuledger.ledger.quotas import Excess, asked_of
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import (
    BEING_FREED,
    BadInput,
    NodeVerdict,
    NotFound,
    Reason,
    Refusal,
    WorkLimitExceeded,
)
from gpuledger.model.gang import MOST_MEMBERS, GangName, GangStage, QuotaLimit, WorkloadName
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.model.request import PodRequest, counted_cards
from gpuledger.model.share import Holder, HolderState, Pod
from gpuledger.placement.explain import over_quota
from gpuledger.placement.fit import compiled
from gpuledger.placement.group import Asking, Trial, demand_order
from gpuledger.reports.explanation import (
    Explanation,
    FitsOn,
    GangProgress,
    GangTurn,
    Kind,
    Lacking,
    MemberState,
    State,
    advice,
    asked,
    demand_text,
    divided,
    gang_summary,
    gangs_of,
    held,
    in_short,
    is_named,
    main_reason,
    moment,
    placed_by,
    quota_json,
    quota_text,
    refused_by_scheduler,
    shared,
    workload_explanation,
)
from gpuledger.reports.tables import pods_named
from gpuledger.workflows.context import Component, Context
from gpuledger.workflows.explain.makers import in_the_way, of_older_version, why_gated
from gpuledger.workflows.explain.nodes import REUSED_S, NodeReasons, with_scheduler_reasons
from gpuledger.workflows.gangs.gangs import Gangs, asked_in_sum
from gpuledger.workflows.gangs.members import GangState, Member, Members
from gpuledger.workflows.gangs.turns import Turn
from gpuledger.workflows.growth.demand import gang_seekers, workload_seekers
from gpuledger.workflows.growth.growth import NodeGrowth
from gpuledger.workflows.pending.pod_condition import RefusedByScheduler, WaitingReport
from gpuledger.workflows.pending.waiting_pods import WaitingPod, WaitingPods
from gpuledger.workflows.queues.card_check import CardCheck, Queues
from gpuledger.workflows.queues.reclaim import Reclaimer
from gpuledger.workflows.queues.workloads import QueuedWorkload, hardest_first, pod_set_of
from gpuledger.workflows.tasks import KeyedWorker, Throttle, in_slices, run_cooperatively

GANGS_KEPT = 64
"""Gangs of which it is remembered what was found."""

ALONE, FIRST = "alone", "first"
"""The kinds of a GangTurn."""

MEMBERS_NAMED = 256
"""In an explanation; others are counted."""


HAS_ROOM = Refusal(Reason.QUOTA, "its cards have room: the quota is in the way")
"""Of a node, for a pod that would take more than its namespace may have."""


class GangTrial(NamedTuple):
    """What was found of a gang."""

    state: GangState
    progress: GangProgress
    summary: str
    """How far it has come, in a sentence without the names of other gangs."""
    asked: Sequence[Member]
    """The members that were tried: those without cards that have to start together."""
    trial: Trial
    quota: Json | None
    """The limit of its namespace that is in its way, see `quota_json`."""


@define(eq=False, slots=False)
class GangExplainer(Component):
    """Explains gangs. Takes work in slices, and changes nothing."""

    _gangs: Gangs
    _nodes: NodeReasons

    def __attrs_post_init__(self) -> None:
        self._members, self._kept_places = self._gangs.members, self._gangs.kept_places
        self._node_sets = NodeSets()
        # gang -> when it was tried, and what was found
        self._tried: BoundedMap[GangName, tuple[float, GangTrial]] = BoundedMap(GANGS_KEPT)

    async def explain(self, namespace: str, name: str) -> Explanation:
        """Return all that there is to say of a gang. Raises NotFound if it has no pod."""
        state = self._members.named(namespace, name)
        if state is None:
            raise NotFound(f"no pod of namespace {namespace} is of a gang {name!r}", 404)
        tried = await self._try(state)
        trial, left = tried.trial, {str(each.key) for each in tried.trial.left}
        if tried.quota:  # whatever cards they would find: they may not have them
            trial, left = Trial(self._ledger), set()
        waiting = (self._member_state(member, trial, left) for member in state.pending.values())
        members = sorted([*self._running(state), *waiting], key=lambda member: member.pod)
        progress = replace(
            tried.progress, pods=members[:MEMBERS_NAMED], pods_left_out=max(len(members) - MEMBERS_NAMED, 0)
        )
        first = next((member for member in tried.asked if member.pod.uid in left), None)
        nodes: Sequence[NodeVerdict] = ()
        if first and progress.state is not GangStage.RUNNING:
            nodes = await self._nodes.look(first.pod.uid, first.request.shape, self.offered(first), trial)
        here = {each.node for each in progress.fits_on}
        return Explanation(
            Kind.GANG,
            namespace,
            name,
            progress.state,
            tried.summary,
            priority=state.priority,
            since=state.rank[1] or None,
            gang=name,
            gang_words=self.words(state),
            members=progress,
            quota=tried.quota,
            example=first.pod.name if first else "",
            # That others of the gang leave them is no help.
            nodes=[replace(node, remedy="" if node.name in here else node.remedy) for node in nodes],
        )

    def offered(self, member: Member) -> NodeSet | None:
        """Return the nodes that kube-scheduler would take for a member; None if it has not asked yet."""
        return None if member.node_names is None else self._node_sets.of(member.node_names)

    def words(self, state: GangState) -> str:
        """Return the source of a gang's name, and how many of its pods start together."""
        many = f"{state.minimum} of its pods start together" if state.minimum else "its pods are placed one by one"
        return described(state.name) + ("" if state.problem else f": {many}")

    async def of_member(self, state: GangState, of_now: bool) -> GangTrial:
        """Return what a trial finds of a gang; it can be a few seconds old if it may."""
        found = self._tried.get(state.name)
        if of_now or found is None or found[0] < self._clock.now_s() - REUSED_S or found[1].state is not state:
            found = (self._clock.now_s(), await self._try(state))
            self._tried.note(state.name, found)
        return found[1]

    async def _try(self, state: GangState) -> GangTrial:
        on_hold = [uid for uid in state.pending if self._ledger.seats.of(uid)]
        without = [member for uid, member in state.pending.items() if self._ledger.seats.of(uid) is None]
        need = min(max(state.missing - len(on_hold), 0), MOST_MEMBERS)
        asked = sorted(without, key=lambda member: (member.since, member.pod.name))[:need]
        in_order = sorted(asked, key=lambda member: demand_order(member.request))
        asking = [Asking(member.pod.uid, member.request, self.offered(member)) for member in in_order]
        kept = self._kept_places.kept_for(state.name)
        trial = Trial(self._ledger, [place.key for place in kept])
        await in_slices(trial.steps(asking), self._clock)
        turn, kind = self._turn(state)
        turn_left_s = turn.ends_s - self._clock.now_s() if turn else 0.0
        needed = max(state.minimum - len(state.bound), 0) if state.problem else state.missing
        progress = GangProgress(
            state=self._stage(state, turn, kind),
            minimum=state.minimum,
            running=len(state.bound),
            waiting=len(state.pending),
            needed=needed,
            not_created=max(needed - len(state.pending), 0),
            without_gpus=len(state.without_gpus),
            kept_places=len(kept),
            on_hold=len(on_hold),
            in_bind=self._gangs.binder.standing(state.name),
            fits=len(on_hold) + len(trial.placed),
            more_may_fit=trial.is_cut_short,
            pauses_for_seconds=ceil(self._gangs.pauses.left_s(state, self._clock.now_s())),
            turn=GangTurn(str(turn.name), kind, round(turn_left_s)) if turn else None,
            overtaken_by=self._gangs.precedence.overtaken_by(state),
            fits_on=[FitsOn(*each) for each in trial.nodes().items()],
            missing=_lacking(trial),
        )
        limit, summary = self._gangs.plans.exceeded(state), gang_summary(state.name.name, progress, state.problem)
        quota: Json | None = None
        if limit and progress.state is GangStage.WAITING:
            namespace = state.name.namespace
            excess = self._ledger.quotas.excess(namespace, limit, asked_in_sum(limit, state), state.pending)
            quota = quota_json(excess)
            summary = f"gang {state.name.name} {quota_text(namespace, excess)}"
            progress = replace(progress, fits=None, fits_on=(), missing=())  # cards are not what it lacks
        return GangTrial(state, progress, summary, asked, trial, quota)

    def _stage(self, state: GangState, turn: Turn | None, kind: str) -> GangStage:
        """Return how far a gang has come."""
        if state.missing <= 0:
            return GangStage.RUNNING
        if self._gangs.binder.standing(state.name):
            return GangStage.GATHERING
        if len(state.pending) < state.missing:
            return GangStage.INCOMPLETE
        if sum(self._ledger.seats.of(uid) is not None for uid in state.pending) >= state.missing:
            return GangStage.ROOM_FOUND
        if turn is None or turn.name == state.name:
            return GangStage.WAITING
        return GangStage.HELD_BACK if kind == FIRST else GangStage.OTHERS_TURN

    def _turn(self, state: GangState) -> tuple[Turn | None, str]:
        """Return the turn that holds a gang back, or its own, and of which kind it is."""
        precedence = self._gangs.precedence
        if turn := self._gangs.turn_of(state.name):
            return turn, ALONE
        return precedence.turn_of(state.name) or precedence.holding_back(state), FIRST

    def _running(self, state: GangState) -> Iterator[MemberState]:
        """Yield the running members, as far as the ledger knows them."""
        for uid in state.bound:
            for card, holder in self._ledger.holders.of(uid)[:1]:
                yield MemberState(holder.pod.name, uid, "running", card.node_name)

    def _member_state(self, member: Member, trial: Trial, left: Collection[str]) -> MemberState:
        uid, name = member.pod.uid, member.pod.name
        if found := trial.placed.get(uid):
            return MemberState(name, uid, "fits", found.node_name)
        if hold := self._ledger.seats.of(uid):
            return MemberState(name, uid, "on-hold", hold.placement.node_name)
        return MemberState(name, uid, "no-cards" if uid in left else "waiting", "")


def _lacking(trial: Trial) -> Sequence[Lacking]:
    """Return the demands of the pods that find no room."""
    demands = Counter((demand_text(demand), demand.cards) for left in trial.left for demand in left.request.shape)
    return tuple(Lacking(text, number, number * cards) for (text, cards), number in demands.most_common())


NO_NODES: frozenset[str] = frozenset()
"""The nodes that kube-scheduler offers when it refuses all of them by itself."""

GATES_NAMED = 4

TO_BE_OURS = "Create it anew with the name; the admission policies fill it in where they are installed"


@define(eq=False, slots=False)
class PodExplainer(Component):
    """Explains pods, one at a time and in slices."""

    _waiting: WaitingPods
    _members: Members
    _nodes: NodeReasons
    _gangs: GangExplainer

    async def explain(self, namespace: str, name: str) -> Explanation:
        """Return all that there is to say of a pod. Raises NotFound, and what else the API server says."""
        return await self.explain_object(await self._store.pod(namespace, name))

    async def explain_object(self, pod: Json, of_now: bool = True) -> Explanation:
        """Return the same of a pod that was just read; what is said of nodes can be a few seconds old if it may."""
        found, state = await self._explain(pod, of_now), self._members.of(pod["metadata"]["uid"])
        warnings = [each.text for each in self._formats.warnings(pod)]
        if of_now and found.state is State.WAITING:
            warnings += await self._of_gang(pod)
        return replace(
            found,
            since=created_at(pod),
            warnings=tuple(warnings),
            gang=state.name.name if state else "",
            gang_words=self._gangs.words(state) if state else "",
            queue=queue_of(pod),
        )

    async def _of_gang(self, pod: Json) -> list[str]:
        """Return the reasons that split a pod's gang, which only all pods of its namespace show."""
        for name in gangs_of([pod]):
            pods: list[tuple[str, int]] = []
            async for page in self._store.selected_pods(name.namespace, ""):
                pods += [placed_by(each) for each in gangs_of(page).get(name, ()) if not is_finished(each)]
            texts = [*divided(name, pods, self._settings.scheduler_names), *self._members.other_priority(pod)]
            return [f"gang {name.name}: {text}" for text in texts]
        return []

    async def _explain(self, pod: Json, of_now: bool) -> Explanation:
        identity = pod_identity(pod)
        try:
            request = self._formats.request(pod)
        except BadInput as error:
            if has_claims(pod) and scheduler_of(pod) not in self._settings.scheduler_names:
                text = f"spec.schedulerName is {scheduler_of(pod)}: its claims are not gpuledger's to serve"
                return Explanation.of_pod(identity, State.NOT_OURS, text)
            return Explanation.of_pod(identity, State.BAD_REQUEST, f"can't be placed: {error}")
        if request is None:
            return Explanation.of_pod(identity, State.NO_GPU, "asks for no GPU")
        explained = await self._explain_request(pod, identity, request, of_now)
        pairs = zip(request.names, request.shape, strict=True)
        return replace(
            explained,
            requests=[asked(name, demand) for name, demand in pairs],
            shared_claims=list(map(shared, request.joined)),
            holds=list(starmap(held, self._ledger.holders.of(identity.uid))),
        )

    async def _explain_request(self, pod: Json, identity: Pod, request: PodRequest, of_now: bool) -> Explanation:
        if scheduler_of(pod) not in self._settings.scheduler_names:
            names = " or ".join(self._settings.scheduler_names)
            text = f"spec.schedulerName is {scheduler_of(pod) or 'not set'}, not {names}: gpuledger does not place it"
            return Explanation.of_pod(identity, State.NOT_OURS, f"{text}. {TO_BE_OURS}")
        if is_finished(pod) or bound_node(pod):
            holders, counts = self._ledger.holders.of(identity.uid), self._ledger.only_counts(bound_node(pod))
            state, text = _of_bound(pod, request, holders, counts)
            text += self._of_others(request, bound_node(pod)) if state is State.PLACED else ""
            return Explanation.of_pod(identity, state, text)
        if not may_be_placed(pod):
            kept = ", ".join(pod["metadata"].get("finalizers") or ())
            text = "is being deleted, and gets no cards any more"
            return Explanation.of_pod(identity, State.ENDED, f"{text}; its object stays for {kept}" if kept else text)
        try:
            await run_cooperatively(compiled(request))
        except BadInput as error:
            return Explanation.of_pod(identity, State.BAD_REQUEST, f"can't be placed: {error}")
        except WorkLimitExceeded:  # its cards say so
            pass
        return await self._explain_waiting(pod, identity, request, of_now)

    async def _explain_waiting(self, pod: Json, identity: Pod, request: PodRequest, of_now: bool) -> Explanation:
        uid, words = identity.uid, scheduler_words(pod)
        waiting, state = self._waiting.find(uid), self._members.of(uid)
        member = state.pending.get(uid) if state else None
        known = waiting.node_names if waiting else self._gangs.offered(member) if member else None
        tried_s = waiting.tried_s if waiting else member.tried_s if member else None
        nodes = await self._nodes.of_request(uid, request, NO_NODES if words.refused_all else known, of_now)
        if of_now:
            nodes = await with_scheduler_reasons(self._store, pod, words, nodes)
        advised = advice(request, nodes, self._formats.words(pod, next(iter(request.names), "")))
        waits_for_gang = state is not None and member is not None and state.missing > 0
        gang = await self._gangs.of_member(state, of_now) if state and waits_for_gang else None
        limit = self._waiting.limit_of(uid)
        excess = self._excess(identity, request, limit, nodes) if limit else None
        if excess or (gang and gang.quota):
            nodes = [node if node.refusal else replace(node, refusal=HAS_ROOM) for node in nodes]
        gated = await why_gated(self._store, pod, words) if of_now else ""
        state_now, text = self._state(identity, words, nodes, advised, gang, excess, gated)
        if state_now is State.WAITING:
            text += await of_older_version(self._store, pod, in_the_way(nodes, excess))
        progress = gang.progress if gang and not words.refused_all else None
        is_waiting = state_now is State.WAITING
        return Explanation.of_pod(
            identity,
            state_now,
            text,
            reason=main_reason(nodes, words.refused_all, limit, progress) if is_waiting else "",
            last_tried=moment(tried_s),
            members=progress,
            scheduler_says=scheduler_says(pod),
            scheduler_refused_all=words.refused_all,
            waits_for=self._leaving(uid),
            advice=advised if is_waiting and not limit else "",
            quota=(gang.quota if gang else quota_json(excess) if excess else None) if is_waiting else None,
            nodes=nodes,
        )

    def _excess(self, pod: Pod, request: PodRequest, limit: QuotaLimit, nodes: Sequence[NodeVerdict]) -> Excess:
        """Return why a limit is in the way of a pod: what it needs on the cheapest of the cards that would take it."""
        cards = [verdict.card for node in nodes for verdict in node.cards if verdict.reason is None]
        least = min(asked_of(limit, each.shape, cards) for each in request.variants)
        return self._ledger.quotas.excess(pod.namespace, limit, least, (pod.uid,))

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
        victims = {victim for _, claim in self._ledger.promises.claims_of(uid) for victim in claim.victims}
        return list(map(self._nodes.name_of, sorted(victims)))

    def _state(
        self,
        pod: Pod,
        words: SchedulerWords,
        nodes: Sequence[NodeVerdict],
        advised: str,
        gang: GangTrial | None,
        excess: Excess | None,
        gated: str,
    ) -> tuple[State, str]:
        claims, hold = self._ledger.promises.claims_of(pod.uid), self._ledger.seats.of(pod.uid)
        if claims:
            card, claim = claims[0]
            pods = pods_named(self._leaving(pod.uid)) or "pods that kube-scheduler evicts"
            cards = "1 card" if len(claims) == 1 else f"{len(claims)} cards"
            text = f"waits for {pods} to leave {cards} of {card.node_name}, until {claim.holder.deadline} at the latest"
            return State.BEING_FREED, text
        if hold:
            return State.ROOM_FOUND, f"has room on hold on {hold.placement.node_name}: kube-scheduler is placing it"
        if words.gates:
            gates = ", ".join(words.gates[:GATES_NAMED]) + (", ..." if len(words.gates) > GATES_NAMED else "")
            text = f"kube-scheduler does not look at it before its scheduling gates are gone: {gates}"
            return State.WAITING, f"{text}; {gated}" if gated else text
        if words.refused_all:
            return State.WAITING, refused_by_scheduler(words.in_short, nodes)
        if gang:
            return State.WAITING, gang.summary
        if excess:
            return State.WAITING, quota_text(pod.namespace, excess)
        fitting = next((node for node in nodes if node.reason is None and not node.refused_by_scheduler), None)
        if fitting:
            return State.ROOM_FOUND, f"fits on {fitting.name} now: kube-scheduler retries it in its turn"
        return State.WAITING, in_short(nodes, advised)


def _of_bound(
    pod: Json, request: PodRequest, holders: Sequence[tuple[Card, Holder]], only_counts: bool
) -> tuple[State, str]:
    if is_finished(pod):
        left = "; its cards are being released" if holders else ""
        return State.ENDED, f"has ended{left}"
    node_name = bound_node(pod)
    if not holders and only_counts:
        count = counted_cards(request.shape)
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
        return State.PLACED, f"has {gpus} of {node_name}, whose own device plugin chooses and counts them"
    if not holders and not request.shape:
        return State.PLACED, f"shares cards of {node_name} with other pods, by a claim"
    if not holders:
        return State.UNCOUNTED, f"is bound to {node_name}, and the ledger has no cards for it: see `gpuledger audit`"
    taken = "; its cards are being released" if holders[0][1].state is HolderState.RELEASING else ""
    cards = "1 card" if len(holders) == 1 else f"{len(holders)} cards"
    return State.PLACED, f"has {cards} of {node_name}{taken}"


@define(eq=False, slots=False)
class WorkloadExplainer(Component):
    """Explains workloads, one at a time."""

    _queues: Queues
    _nodes: NodeReasons

    def __attrs_post_init__(self) -> None:
        self._check, self._reader = self._queues.check, self._queues.reader

    async def explain(self, namespace: str, name: str) -> Explanation:
        """Return all that there is to say of a workload, named by itself or by its job.

        Raises NotFound, and what else the API server says.
        """
        found = await self._find(namespace, name)
        explained = workload_explanation(found)
        queued = self._check.find(WorkloadName(namespace, explained.name))
        if queued is not None and self._check.is_waiting(queued):
            explained = replace(explained, state=State.NO_CARDS)
            try:
                explained = await self.with_nodes(explained, await self._reader.seats(queued))
            except BadInput as error:
                explained = replace(explained, summary=f"can't be placed: {error}")
        requests, unreadable = list[Json](), list[str]()
        for each in pod_sets(found):
            try:
                request = self._formats.request(each.pod)
            except BadInput as error:
                unreadable.append(f"the request of pod set {each.name} can't be read: {error}")
            else:
                requests += [asked(each.name, demand, each.count) for demand in (request.shape if request else (None,))]
        return replace(explained, requests=requests, warnings=unreadable)

    async def with_nodes(self, explained: Explanation, seats: Sequence[Asking]) -> Explanation:
        """Return the explanation of a workload with why its pods find no cards at this moment; as it is if they do."""
        trial = Trial(self._ledger)
        await in_slices(trial.steps(hardest_first(seats)), self._clock)
        if not trial.left:
            return explained
        first = trial.left[0]
        nodes = await self._nodes.look(first.key, first.request.shape, first.node_names, trial)
        text = in_short(nodes)
        if len(seats) > 1:
            text = f"{len(trial.placed)} of {len(seats)} pods find cards at once. For the next one, {text}"
        return replace(explained, state=State.NO_CARDS, summary=text, example=pod_set_of(first.key), nodes=nodes)

    async def _find(self, namespace: str, name: str) -> Json:
        try:
            return await self._store.workload(namespace, name)
        except NotFound:
            pass
        try:
            async for page in self._store.workloads(namespace):
                for each in page:
                    if is_named(each, name):
                        return each
        except NotFound as error:
            raise NotFound("this cluster has no workloads of Kueue: it is not installed", 404) from error
        text = f"namespace {namespace} has no workload of Kueue, and no job with one, that is called {name!r}"
        raise NotFound(text, 404)


class Explainer:
    """Explains whatever waits."""

    def __init__(
        self,
        context: Context,
        waiting: WaitingPods,
        gangs: Gangs,
        queues: Queues,
        nodes: NodeReasons,
        growth: NodeGrowth,
    ) -> None:
        self._members, self._growth = gangs.members, growth
        self.gangs = GangExplainer(context, gangs, nodes)
        self.pods = PodExplainer(context, waiting, gangs.members, nodes, self.gangs)
        self.workloads = WorkloadExplainer(context, queues, nodes)

    async def explain(self, kind: Kind, namespace: str, name: str) -> Explanation:
        """Return all that there is to say of it. Raises NotFound if it does not exist, BadInput, ApiError."""
        if kind is Kind.POD:
            found = await self.pods.explain(namespace, name)
        else:
            found = await (self.gangs if kind is Kind.GANG else self.workloads).explain(namespace, name)
        return replace(found, new_nodes=self._growth.said_of(self._seekers(found)))

    def _seekers(self, found: Explanation) -> list[str]:
        """Return by which names it seeks room."""
        match found.kind:
            case Kind.POD:
                state = self._members.of(found.uid)
                return [found.uid, *([gang_seekers(state.name)] if state else [])]
            case Kind.GANG:
                state = self._members.named(found.namespace, found.name)
                return [gang_seekers(state.name)] if state else []
            case Kind.WORKLOAD:
                return [workload_seekers(WorkloadName(found.namespace, found.name))]


WAITS = "It waits for pods that leave."

LOOKS_AT_ONCE = 1
"""How many workloads look for victims at a time: each one sees the evictions of the one before."""


@define(eq=False, slots=False)
class CheckMessages(Component):
    """Tells workloads why they wait, and has others give cards back.

    Each workload has its turn now and then, and of each namespace one at a time.
    """

    _check: CardCheck
    _reclaimer: Reclaimer
    _explainer: WorkloadExplainer

    def __attrs_post_init__(self) -> None:
        self._throttle = Throttle()
        self._check.on_no_room.append(self.found)
        self._latest: dict[
            str, tuple[QueuedWorkload, Sequence[Asking]]
        ] = {}  # UID of a workload -> it, and what it wants
        self.worker = KeyedWorker(self._look_at, LOOKS_AT_ONCE, group_of=self._namespace_of)

    async def stop(self) -> None:
        """Look at no workload any more."""
        await self.worker.stop()

    def found(self, queued: QueuedWorkload, seats: Sequence[Asking]) -> None:
        """Record that a workload finds no room."""
        uid = queued.workload.uid
        self._latest[uid] = queued, seats
        self._throttle.call(uid, self.worker.mark)

    def _namespace_of(self, uid: str) -> str:
        latest = self._latest.get(uid)
        return latest[0].workload.name.namespace if latest else ""

    async def _look_at(self, uid: str) -> None:
        queued, seats = self._latest.pop(uid, (None, ()))
        if queued is None or not self._check.is_waiting(queued):
            return
        waits = await self._reclaimer.consider(queued, seats)
        has_quota = Explanation(Kind.WORKLOAD, *queued.workload.name, State.HAS_QUOTA, "")
        why = await self._explainer.with_nodes(has_quota, seats)
        if why.state is State.NO_CARDS and self._check.is_waiting(queued):
            self._check.say_why(queued, f"{why.summary}. {WAITS}" if waits else why.summary)


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

    def _report(self, waiting: WaitingPod, known: dict[tuple[object, ...], Counter[Refusal]]) -> WaitingReport:
        request, pod = waiting.request, waiting.pod
        reasons: Counter[Refusal] = Counter()
        if self._ledger.promises.claims_of(pod.uid):
            reasons[BEING_FREED] = 1
        elif limit := self._waiting.limit_of(pod.uid):
            reasons[over_quota(limit, min(asked_of(limit, each.shape) for each in request.variants))] = 1
        elif self._waiting.lookup(pod.uid):  # there is no room for it
            alike = (request.shape, request.node_policy, request.card_policy, request.host, id(waiting.node_names))
            if alike not in known:
                known[alike] = self._chooser.reasons(request, waiting.node_names)
            reasons = known[alike]
        report = WaitingReport(pod, request, waiting.created, waiting.tried_s, reasons)
        return self._with_names(report)

    def _with_names(self, report: WaitingReport) -> WaitingReport:
        """Return the report with the gang and the queue of its pod."""
        gang, queue = self._members.name_of(report.pod.uid) or report.gang, self._queue_of(report.pod.uid)
        return replace(report, gang=gang, queue=queue) if gang or queue else report


def _of_member(member: Member) -> WaitingReport:
    refusal = member.refusal or UNKNOWN
    nodes = len(member.node_names) if member.node_names is not None else 1
    reasons = {refusal: max(nodes, 1)}
    return WaitingReport(member.pod, member.request, member.since, member.tried_s, reasons, member.gang.name.name)


def _rank(report: WaitingReport) -> tuple[int, str]:
    return -report.pod.priority, report.created
