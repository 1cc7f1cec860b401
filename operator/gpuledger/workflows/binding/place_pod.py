"""A pod's way onto its cards: hold at Filter, journal and bind at Bind.

A pod is in one of four states. *None*: nothing is known of it. *Held*: Filter chose its cards, in memory. *Binding*:
a task enters its shares into the ledger and binds it; a repeated request gets the same node meanwhile, or waits for the
same task. *Entered*: the ledger has its shares. Any step can be the last before a crash: what it leaves is a share too
many for a while, never one too few.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Generator
from dataclasses import replace

from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.pod import bound_node, created_at, pod_identity, resource_version
from gpuledger.formats.scheduler.extender import BindArguments, FilterArguments
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import PINNED, Ledger
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import BadInput, BindFailed, BindInProgress, GpuledgerError
from gpuledger.model.gang import Gang
from gpuledger.model.json_object import Json
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.placement.choose import Choice, Chooser
from gpuledger.workflows.binding.alternatives import choose_first, choose_first_on
from gpuledger.workflows.binding.bind_failures import BindFailures
from gpuledger.workflows.binding.bind_pod import PodBinder, SeenPod
from gpuledger.workflows.binding.costly_questions import CostlyQuestions
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.binding.entered_shares import EnteredShares
from gpuledger.workflows.binding.filter_responses import FilterResponses
from gpuledger.workflows.binding.filter_result import MAX_POD_BYTES, TOO_LONG, FilterResult
from gpuledger.workflows.binding.nominate_ahead import AheadNominator
from gpuledger.workflows.binding.open_bind_request import Bind, OpenBindRequest
from gpuledger.workflows.binding.placement_settings import PlacementSettings
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.queues.reservations import Reservations
from gpuledger.workflows.quota.namespace_quotas import QuotaGate
from gpuledger.workflows.release.release import PodReleaser
from gpuledger.workflows.resource_claims.claim_requeuer import ClaimRequeuer
from gpuledger.workflows.resource_claims.claims import ClaimAllocationLock
from gpuledger.workflows.resource_claims.writes import ClaimWriter
from gpuledger.workflows.tasks.pauses import Step, nothing, run_cooperatively, run_to_end

logger = logging.getLogger(__name__)

Refusals = dict[str, Refusal]  # by node name


class PodPlacer:
    """Answers the scheduler's questions about pods."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        binder: PodBinder,
        store: KubeStore,
        releaser: PodReleaser,
        waiting: WaitingPods,
        turns: DevicePluginQueue,
        settings: PlacementSettings,
        counts: Counts,
        clock: Clock,
        trail: Trail,
        gangs: Gangs,
        failures: BindFailures,
        quota_gate: QuotaGate,
        reservations: Reservations,
        claims: ClaimWriter,
        claim_waker: ClaimRequeuer,
        ahead: AheadNominator,
        costly: CostlyQuestions,
    ) -> None:
        self._ledger, self._chooser = ledger, chooser
        self._store, self._releaser = store, releaser
        self._waiting, self._turns = waiting, turns
        self._settings = settings
        self._counts = counts
        self._binder = binder
        self._claims = claims
        self._ahead, self._costly = ahead, costly
        self._answers = FilterResponses(ledger, counts, trail, settings.who_preempts, claim_waker)
        self._entered = EnteredShares(ledger)
        self._first_pods = ClaimAllocationLock(lambda uid: uid in self._held or uid in self._binds)
        self._clock = clock
        self._request = settings.request
        self._held: dict[str, SeenPod] = {}  # pod UID -> pod, for the pods with a hold
        self._binds: dict[str, Bind] = {}  # pod UID -> its bind in progress
        self.on_refused = Listeners[[str]]()
        """Called with the UID of a pod that no node could take."""
        self.before_filter: Callable[[str], Awaitable[None]] = nothing
        """Awaited with the UID of a pod before its Filter is answered."""
        self._failures, self._trail = failures, trail
        self._gangs, self._quota_gate = gangs, quota_gate
        self._reservations = reservations

    def is_binding(self, pod_uid: str) -> bool:
        """Return whether a bind of the pod is in progress: then no other part may judge its shares."""
        return pod_uid in self._binds

    def held_pod(self, pod_uid: str) -> Pod | None:
        """Return the pod that has a hold, or is being bound."""
        return self._held[pod_uid].pod if pod_uid in self._held else None

    def known_pending(self) -> set[str]:
        """Return the UIDs of the pods without a node of which something is kept: those that were refused, too."""
        return self._waiting.waiting() | self._held.keys() | self._failures.pod_uids()

    # Filter.

    async def answer(self, arguments: FilterArguments) -> FilterResult:
        """Do what `filter` does, and let others have their turn: while many nodes are looked at, or before all that."""
        await self.before_filter(arguments.pod_uid)
        if self._settings.claims is not None:
            await self._claims.know_claims_of(arguments.pod)
        return await run_cooperatively(self._costly.answered(arguments.pod, self.is_binding, self._filter(arguments)))

    def filter(self, arguments: FilterArguments) -> FilterResult:
        """Choose a node and hold the pod's cards there.

        Raises GpuledgerError when the pod can't be judged now, and should be tried again soon.
        """
        return run_to_end(self._filter(arguments))

    def _filter(self, arguments: FilterArguments) -> Generator[Step, None, FilterResult]:
        """Answer a question. What others do between two steps counts: nothing is decided before the last one."""
        self._counts.filters.inc()
        self.expire_holds()
        arguments = replace(arguments, is_first_look=self._ahead.asked(arguments))
        try:
            pod = pod_identity(arguments.pod)
            request, gang = self._request(arguments.pod), gang_of(arguments.pod)
        except BadInput as error:
            return self._answers.bad_request(arguments, str(error))
        if request is None:
            return FilterResult(arguments.node_names, {})
        if arguments.pod_bytes > MAX_POD_BYTES:
            return self._answers.bad_request(arguments, TOO_LONG)
        if request.joined:
            answer = self._answers.joins(arguments, pod, request)
            if answer is not None:
                return answer
            arguments = replace(arguments, node_names=[request.joined_node])
        try:
            return (yield from self._filter_for(arguments, pod, request, gang))
        except BadInput as error:  # a selector of its claims
            return self._answers.bad_request(arguments, str(error))

    def _filter_for(
        self, arguments: FilterArguments, pod: Pod, request: PodRequest, gang: Gang | None
    ) -> Generator[Step, None, FilterResult]:
        self._first_pods.check(pod, request)
        for each in request.variants:
            yield from self._chooser.look_around(each, arguments.node_names)
        node_name = self._settled_node(pod, request)
        if node_name is not None:
            return self._same_node(pod, node_name, arguments.node_names)
        self._reservations.take(arguments.pod, pod, request, arguments.node_names, gang)
        refusal, found = self._quota_gate.refuses(pod, request), None
        if refusal is not None and gang is None:
            self._drop_hold(pod.uid)
            return self._refuse(arguments, pod, request, dict.fromkeys(arguments.node_names, refusal))
        if gang is not None:
            self._failures.led_nowhere(pod.uid, arguments.node_names)
            found = yield from self._gangs.place(arguments.pod, pod, gang, request, arguments.node_names)
        if found is None:
            self._failures.check(pod)
            return self._place(arguments, pod, request)
        if isinstance(found, Refusal):
            self._held.pop(pod.uid, None)
            return self._answers.refused(pod, dict.fromkeys(arguments.node_names, found))
        self._held[pod.uid] = SeenPod(pod, resource_version(arguments.pod), request, gang=gang)
        self._first_pods.chosen(pod, request)
        self._failures.offered(pod.uid, [found.node_name])
        return FilterResult([found.node_name], {})

    def expire_holds(self) -> None:
        """Give up the holds whose time is over."""
        for uid in self._ledger.expire_holds(self._clock.now_s()):
            self._held.pop(uid, None)

    def next_expiry_s(self) -> float | None:
        """Return before what time of the clock `expire_holds` has nothing to do; None: never, as far as is known."""
        return None if self._ledger.first_deadline_s == PINNED else self._ledger.first_deadline_s

    def look_further(self) -> bool:
        """Do some work that a question has left for a quiet moment; return whether there was any."""
        return self._chooser.look_further()

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker: what is to be known of a pod, kube-scheduler says with its question."""

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod waits no more: it is bound or gone. What is on hold for it is given up."""
        self._waiting.gone(pod_uid)
        # A turn at a device plugin can be minutes away: until then nothing of the pod is under way.
        if not self.is_binding(pod_uid) or self._turns.is_waiting(pod_uid):
            self._failures.forget(pod_uid)
            self._drop_hold(pod_uid)

    def prioritize(self, arguments: FilterArguments) -> list[str]:
        """Return the nodes in the order of preference for this pod, as Filter has found them."""
        hold = self._ledger.hold_of(arguments.pod_uid)
        order = {placement.node_name: place for place, placement in enumerate(hold.placements)} if hold else {}
        return sorted(arguments.node_names, key=lambda name: order.get(name, len(order)))

    def _place(self, arguments: FilterArguments, pod: Pod, request: PodRequest) -> FilterResult:
        self._waiting.give_room()  # to those who were first, before this pod takes it
        reserved = self._entered.reserved(pod.uid, request) or self._reservations.given(pod.uid)
        self._drop_hold(pod.uid)
        if reserved is not None and reserved.node_name in arguments.node_names:
            choice = Choice((reserved,), {})
        else:
            avoided = self._failures.led_nowhere(pod.uid, arguments.node_names)
            request, choice = choose_first(
                self._chooser, request, arguments.node_names, self._settings.nodes_offered, avoided
            )
            if choice.placements and choice.placements[0].node_name in avoided:
                self._failures.start_over(pod.uid)
        for make_room in (self._ledger.take_back_spares, lambda: self._waiting.yield_to(pod)):
            if not choice.placements and not arguments.is_first_look and make_room():
                request, choice = choose_first(self._chooser, request, arguments.node_names, count=1)
        choice = self._quota_gate.within(pod, request, arguments.node_names, choice)
        if choice.placements:
            preferred, *spares = choice.placements
            self._ledger.hold(pod.uid, preferred, self._clock.now_s() + self._settings.hold_ttl_s, spares)
            self._held[pod.uid] = SeenPod(pod, resource_version(arguments.pod), request, choice.ranking)
            self._first_pods.chosen(pod, request)
            self._waiting.forget(pod.uid)
            offered = [placement.node_name for placement in choice.placements]
            self._failures.offered(pod.uid, offered)
            return FilterResult(offered, {})
        return self._refuse(arguments, pod, request, choice.refusals)

    def _refuse(self, arguments: FilterArguments, pod: Pod, request: PodRequest, refusals: Refusals) -> FilterResult:
        if arguments.is_first_look:
            return self._answers.refused(pod, refusals)
        limit = next((each.limit for each in refusals.values() if each.limit), None)
        self._waiting.refused(pod, request, created_at(arguments.pod), arguments.node_names, limit)
        if limit is None:
            self.on_refused(pod.uid)
        return self._answers.refused(pod, refusals)

    def _drop_hold(self, pod_uid: str) -> None:
        self._ledger.drop_hold(pod_uid)
        self._held.pop(pod_uid, None)

    def _settled_node(self, pod: Pod, request: PodRequest) -> str | None:
        """Return the node that an earlier attempt has decided on, if it still stands."""
        if pod.uid in self._binds:
            return self._binds[pod.uid].node_name
        if not self._entered.allocated(pod.uid):
            return None
        placement = self._entered.complete(pod.uid, request)
        if placement is not None:
            return placement.node_name
        self._releaser.recheck(pod.uid)
        raise BindInProgress(f"shares of an earlier attempt to bind pod {pod} are still being released")

    def _same_node(self, pod: Pod, node_name: str, node_names: Collection[str]) -> FilterResult:
        if self.is_binding(pod.uid):
            self._binds[pod.uid].permission.expect_question(node_name in node_names)
        if node_name in node_names:
            return FilterResult([node_name], {})
        if self.is_binding(pod.uid):
            raise BindInProgress(f"pod {pod} is being bound to node {node_name}")
        self._releaser.recheck(pod.uid)
        raise BindInProgress(f"pod {pod} still has shares on node {node_name}, which no longer takes it")

    # Bind.

    async def bind(self, arguments: BindArguments, is_heard: Callable[[], bool] = lambda: True) -> None:
        """Bind a pod to the node, with its cards. Idempotent: asking again joins what is under way.

        Answers before the scheduler gives up, if the API server answers. `is_heard` tells whether it still waits.
        Raises BindFailed if it can't be done, or is not done yet: then nothing is bound before it is asked again.
        """
        if arguments.uid not in self._binds:
            self._binds[arguments.uid] = self._begin(arguments)
        bind = self._binds[arguments.uid]
        if bind.node_name != arguments.node_name:
            raise BindFailed(f"the pod is being bound to node {bind.node_name}")
        with bind.permission.question(is_heard):
            await asyncio.wait({bind.task}, timeout=self._settings.bind_timeout_s)
        await bind.permission.until_known(bind.task)
        if not bind.task.done():
            self._counts.binds.labels("late").inc()
            why = "the API server is slow to answer"
            if self._turns.is_waiting(arguments.uid):
                why = "the node's device plugin has to find another pod first"
            raise BindFailed(f"{why}; the pod is not bound yet, and the next request continues")
        try:
            bind.task.result()
        except GpuledgerError as error:
            self._counts.binds.labels("failed").inc()
            await self._failures.pause_before_answer(arguments.uid)
            raise BindFailed(str(error)) from error
        self._counts.binds.labels("bound").inc()

    def _begin(self, arguments: BindArguments) -> Bind:
        self._failures.bind_begins(arguments.uid)
        permission, name = OpenBindRequest(), f"bind {arguments.namespace}/{arguments.name}"
        task = asyncio.create_task(self._bind(arguments, permission), name=name)
        task.add_done_callback(lambda task: self._bind_ended(arguments, task))
        return Bind(arguments.node_name, permission, task)

    async def _bind(self, arguments: BindArguments, permission: OpenBindRequest) -> None:
        with self._releaser.leaves_alone(arguments.uid):
            try:
                await self._bind_now(arguments, permission)
            finally:  # however it has ended
                self._waiting.forget(arguments.uid)
                self._drop_hold(arguments.uid)
                self._gangs.hold_has_ended(arguments.uid)

    async def _bind_now(self, arguments: BindArguments, permission: OpenBindRequest) -> None:
        seen, placement = self._held_placement(arguments) or await self._placement_without_hold(arguments)
        if placement is not None:  # else it is bound already
            if seen.request is not None and seen.request.brings_claims:
                seen, placement = await self._identified(seen, seen.request, placement)
            version = await self._ahead.version_of(seen.pod.uid, seen.resource_version)
            seen = replace(seen, resource_version=version)
            await self._gangs.bind(seen, placement, permission, self._binder)
            self._ledger.hosts.bound(seen.pod.uid, placement.node_name, placement.host)
            self._trail.assigned(seen.pod, placement, seen.ranking)

    async def _identified(self, seen: SeenPod, request: PodRequest, placement: Placement) -> tuple[SeenPod, Placement]:
        """Return what is to be bound with the pod's ResourceClaims, which exist by now. Raises BindFailed."""
        pod = seen.pod
        version, request, placement = await self._claims.identified(pod, seen.resource_version, request, placement)
        if not self._entered.allocated(pod.uid):  # what was chosen counts on, now in the claims' names
            self._ledger.hold(pod.uid, placement, self._clock.now_s() + self._settings.hold_ttl_s)
            self._ledger.pin_hold(pod.uid)
        return replace(seen, resource_version=version, request=request), placement

    def _bind_ended(self, arguments: BindArguments, task: asyncio.Task[None]) -> None:
        self._binds.pop(arguments.uid, None)
        if task.cancelled() or (error := task.exception()) is None:
            self._failures.forget(arguments.uid)
            return
        logger.info("pod %s/%s is not bound: %s", arguments.namespace, arguments.name, error)
        self._failures.note(arguments.uid, arguments.node_name, error)

    def _held_placement(self, arguments: BindArguments) -> tuple[SeenPod, Placement | None] | None:
        seen = self._held.get(arguments.uid)
        if seen is None or (placement := self._ledger.keep(arguments.uid, arguments.node_name)) is None:
            return None
        self._ledger.pin_hold(arguments.uid)
        return seen, placement

    async def _placement_without_hold(self, arguments: BindArguments) -> tuple[SeenPod, Placement | None]:
        """Choose cards for a pod without a hold on the node: its volumes took long, we restarted, or gave others room.

        Returns no placement for a pod that is bound to the node already.
        """
        found = await self._store.pod(arguments.namespace, arguments.name)
        if self._settings.claims is not None:
            await self._claims.know_claims_of(found)
        pod, request = pod_identity(found), self._request(found)
        seen = SeenPod(pod, resource_version(found), request, gang=gang_of(found) if request else None)
        node_name = bound_node(found)
        if pod.uid != arguments.uid:
            raise BindFailed(f"pod {pod} has been replaced by another of the same name")
        if node_name:
            if node_name == arguments.node_name:
                return seen, None
            raise BindFailed(f"pod {pod} is bound to node {node_name} already")
        if request is None or not request.shape:  # it names our resources with an amount of 0, or uses others' claims
            return seen, Placement(node_name=arguments.node_name, shares=())
        left = self._entered.allocated(pod.uid)
        if left:
            placement = self._entered.complete(pod.uid, request)
            if placement is not None and placement.node_name == arguments.node_name:
                return seen, placement
            await self._releaser.give_back(pod, [holder.share for _, holder in left])
            return await self._placement_without_hold(arguments)  # the pod has changed by that
        self._waiting.forget(pod.uid)
        self._drop_hold(pod.uid)  # room that was kept for it until it came
        chosen: Placement | Refusal | None = self._entered.reserved(pod.uid, request)
        if not isinstance(chosen, Placement) or chosen.node_name != arguments.node_name:
            chosen = choose_first_on(self._chooser, request, arguments.node_name)
        if isinstance(chosen, Refusal) and self._ledger.take_back_spares():
            chosen = choose_first_on(self._chooser, request, arguments.node_name)
        if isinstance(chosen, Refusal):
            raise BindFailed(f"node {arguments.node_name}: {chosen.text}")
        self._ledger.hold(pod.uid, chosen, self._clock.now_s() + self._settings.hold_ttl_s)
        self._ledger.pin_hold(pod.uid)
        return seen, chosen
