"""A pod's way onto its cards: hold at Filter, journal and bind at Bind.

A pod is in one of four states. *None*: nothing is known of it. *Held*: Filter chose its cards, in memory. *Binding*:
a task enters its shares into the ledger and binds it; a repeated request gets the same node meanwhile, or waits for the
same task. *Entered*: the ledger has its shares. Any step can be the last before a crash: what it leaves is a share too
many for a while, never one too few.

A Filter's refusals are counted, remembered, and written in the words that kube-scheduler shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from attrs import define

from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.pod import bound_node, created_at, pod_identity, resource_version
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.formats.scheduler import BindArguments, FilterArguments
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, NOBODY, Seat, Strength
from gpuledger.model.card import Card
from gpuledger.model.errors import (
    BEING_FREED,
    NEEDS_ROOM,
    BadInput,
    BindFailed,
    BindInProgress,
    GpuledgerError,
    Reason,
    Refusal,
)
from gpuledger.model.gang import Gang, GroupSeat, SeatGroup, SeatKey
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, HolderState, Placement, Pod, fitting_variant
from gpuledger.placement.choose import Choice, Chooser
from gpuledger.placement.fit import takes_pods
from gpuledger.placement.sketch import Sketch
from gpuledger.workflows.binding.bind_pod import Bind, OpenBindRequest, PodBinder, SeenPod
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import PodRefused
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.kept_seats import SeatTakers
from gpuledger.workflows.namespace_allowances import CostlyQuestions
from gpuledger.workflows.pending.queue import ClaimRequeuer
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.placing.nominate_ahead import AheadNominator
from gpuledger.workflows.preemption.preempt import Preemption
from gpuledger.workflows.quota import QuotaGate
from gpuledger.workflows.resource_claims.claims import ClaimAllocationLock
from gpuledger.workflows.resource_claims.writes import ResourceClaims
from gpuledger.workflows.tasks import Step, run_cooperatively, run_to_end


def choose_first(
    chooser: Chooser, request: PodRequest, node_names: Collection[str], count: int, avoided: Collection[str] = ()
) -> tuple[PodRequest, Choice]:
    """Return the first of the pod's alternatives for which there is a node, and the nodes.

    If there is none for any of them: the first one, and why.
    """
    choice = chooser.choose(request, node_names, count, avoided)
    for each in () if choice.placements else request.alternatives:
        other = chooser.choose(each, node_names, count, avoided)
        if other.placements:
            return each, other
    return request, choice


def choose_first_on(chooser: Chooser, request: PodRequest, node_name: str) -> Placement | Refusal:
    """Return the cards of the first of the pod's alternatives that the node takes; else why not the first one."""
    refusals: list[Refusal] = []
    for each in request.variants:
        chosen = chooser.choose_on(each, node_name)
        if isinstance(chosen, Placement):
            return chosen
        refusals.append(chosen)
    return refusals[0]


def choose_in_place_of(
    ledger: Ledger, chooser: Chooser, keys: Collection[SeatKey], request: PodRequest, node_names: Collection[str]
) -> tuple[PodRequest, Placement] | None:
    """Return the first of the pod's alternatives that fits once offers and some seats are given up, and where."""
    sketch, names = Sketch(ledger, keys), set(node_names)
    found = ((each, sketch.best(chooser, each, names)) for each in request.variants)
    return next(((each, placement) for each, placement in found if placement is not None), None)


TEXT = attrgetter("text")

MAX_POD_BYTES = 1_000_000
"""Of a pod that gets cards, as JSON. etcd stores 1.5 MiB: where little of that is left, the Binding that tells a pod
its cards may fit in, and the kubelet's word that it runs, or our own that takes the Binding back, does not."""

TOO_LONG = f"the pod is longer than {MAX_POD_BYTES:,} bytes of JSON: move its long fields into a ConfigMap"


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes that a pod can go to, or why each can't take it."""

    node_names: Collection[str]
    refused: Mapping[str, str]
    short_of_room: Mapping[str, str] = field(default_factory=dict)
    """Those nodes among them, apart, on which others could make room; only for a scheduler that asks for it."""


def refused(refusals: dict[str, Refusal], promised_node: str, scheduler_preempts: bool) -> FilterResult:
    """Return the answer for a pod that no node takes, each for its reason.

    On `promised_node`, empty if there is none, others make room for it. `scheduler_preempts`: kube-scheduler asks
    whom to evict.
    """
    if promised_node in refusals:
        refusals[promised_node] = BEING_FREED
    if not scheduler_preempts:
        # That node must not be "unresolvable": kube-scheduler would clear the pod's nomination for it.
        short = {promised_node: refusals.pop(promised_node).text} if promised_node in refusals else {}
        return FilterResult([], dict(zip(refusals, map(TEXT, refusals.values()), strict=True)), short)
    short = {name: refusal.text for name, refusal in refusals.items() if refusal.reason in NEEDS_ROOM}
    return FilterResult([], {n: r.text for n, r in refusals.items() if n not in short}, short)


@define(eq=False, slots=False)
class FilterResponses(Component):
    """Answers for pods that no node takes."""

    _claim_requeuer: ClaimRequeuer

    def refused(self, pod: Pod, refusals: dict[str, Refusal]) -> FilterResult:
        """Return why each node, by its name, does not take a pod."""
        self._trail.refused(pod, refusals)
        if refusals:
            self._counts.refusals.labels(next(iter(refusals.values())).reason).inc()
        return refused(refusals, self._promised_node(pod.uid), self._context.preemption_mode.scheduler)

    def bad_request(self, arguments: FilterArguments, text: str) -> FilterResult:
        """Return the refusal of a malformed pod, for all nodes."""
        self._counts.bad_input.labels("pod").inc()
        self._counts.refusals.labels(Reason.BAD_REQUEST).inc()
        if has_claims(arguments.pod):
            with contextlib.suppress(BadInput):
                self._claim_requeuer.refused(pod_identity(arguments.pod))
        return FilterResult([], dict.fromkeys(arguments.node_names, text))

    def joins(self, arguments: FilterArguments, pod: Pod, request: PodRequest) -> FilterResult | None:
        """Return where a pod goes that uses claims which other pods have; None if it needs cards of its own there."""
        joined = request.joined[0]
        if joined.node_name in arguments.node_names:
            return None if request.shape else FilterResult([joined.node_name], {})
        text = f"claim {joined.name} of the pod is allocated on node {joined.node_name}"
        refusal = Refusal(Reason.CLAIM_ELSEWHERE, text)
        self._claim_requeuer.refused(pod)
        return self.refused(pod, dict.fromkeys(arguments.node_names, refusal))

    def _promised_node(self, pod_uid: str) -> str:
        """Return the node on which others are to make room for the pod, empty if there is none."""
        promised = self._ledger.promises.claims_of(pod_uid) or self._ledger.holders.of(pod_uid)
        return promised[0][0].node_name if promised else ""


class EnteredShares:
    """Reads the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def reserved(self, pod_uid: str, request: PodRequest) -> Placement | None:
        """Return the cards that were kept for the pod until others had left them, if they are all there, and well."""
        holders = self._ledger.holders.of(pod_uid)
        shares = tuple(holder.share for _, holder in holders if holder.state is HolderState.RESERVED)
        if not shares or self._ledger.promises.claims_of(pod_uid):
            return None
        node = self._ledger.node_room(holders[0][0].node_name)
        variant = fitting_variant(shares, request, node.cards)
        if variant is None:
            return None
        if not takes_pods(node, variant.shape) or not node.can_give([share.uuid for share in shares]):
            return None
        return Placement(node.name, shares, request.host)

    def allocated(self, pod_uid: str) -> list[tuple[Card, Holder]]:
        """Return the shares that earlier attempts to bind the pod have left, without those that are only reserved."""
        return [each for each in self._ledger.holders.of(pod_uid) if each[1].state is not HolderState.RESERVED]

    def complete(self, pod_uid: str, request: PodRequest) -> Placement | None:
        """Return the pod's placement, if the ledger has all that it asks for, on one node, and nothing else."""
        holders = self._ledger.holders.of(pod_uid)
        node_name = holders[0][0].node_name
        shares = tuple(holder.share for _, holder in holders)
        cards = self._ledger.node_room(node_name).cards
        whole = fitting_variant(shares, request, cards) is not None and all(
            card.node_name == node_name and holder.state is HolderState.ALLOCATED for card, holder in holders
        )
        return Placement(node_name, shares, request.host) if whole else None


logger = logging.getLogger(__name__)

Refusals = dict[str, Refusal]  # by node name

OTHERS_FIRST = Refusal(Reason.NODE_NOT_STARTING, "other nodes go first: a pod that was bound to it has not started")


@define(eq=False, slots=False)
class PodPlacer(Component):
    """Answers the scheduler's questions about pods."""

    _binder: PodBinder
    _waiting: WaitingPods
    _gangs: Gangs
    _seat_takers: SeatTakers
    _claims: ResourceClaims
    _ahead: AheadNominator
    _preemption: Preemption

    def __attrs_post_init__(self) -> None:
        self._releaser, self._turns, self._binds = self._binder.releaser, self._binder.turns, self._binder.binds
        self._failures, self._quota_gate = (
            self._binder.failures,
            QuotaGate(self._ledger, self._chooser, self._settings.nodes_offered),
        )
        self.costly = CostlyQuestions(self._clock)
        self._answers = FilterResponses(self._context, ClaimRequeuer(self._context, self._claims.book, self._waiting))
        self._entered = EnteredShares(self._ledger)
        self._first_pods = ClaimAllocationLock(lambda uid: uid in self._held or uid in self._binds)
        self._request = self._formats.request
        self._held: dict[str, SeenPod] = {}  # pod UID -> pod, for the pods with a hold

    def held_pod(self, pod_uid: str) -> Pod | None:
        """Return the pod that has a hold, or is being bound."""
        return self._held[pod_uid].pod if pod_uid in self._held else None

    def known_pending(self) -> set[str]:
        """Return the UIDs of the unbound pods of which something is kept, refused ones included."""
        return self._waiting.waiting() | self._held.keys() | self._failures.pod_uids()

    # Filter.

    async def answer(self, arguments: FilterArguments) -> FilterResult:
        """Do what `filter` does, and let others have their turn: while many nodes are looked at, or before all that."""
        await self._preemption.executor.room_comes(arguments.pod_uid)
        if self._settings.resource_claims:
            await self._claims.writer.know_claims_of(arguments.pod)
        return await run_cooperatively(
            self.costly.answered(arguments.pod, self._binder.is_binding, self._filter(arguments))
        )

    def filter(self, arguments: FilterArguments) -> FilterResult:
        """Choose a node and hold the pod's cards there.

        Raises GpuledgerError when the pod can't be judged now, and should be tried again soon.
        """
        return run_to_end(self._filter(arguments))

    def _filter(self, arguments: FilterArguments) -> Generator[Step, None, FilterResult]:
        """Answer a question. Other changes between two steps count: nothing is decided before the last step."""
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
        self._waiting.give_room()  # to those who were first, before this pod takes it
        node_name = self._settled_node(pod, request)
        if node_name is not None:
            return self._same_node(pod, node_name, arguments.node_names)
        self._seat_takers.take(arguments.pod, pod, request, arguments.node_names, gang)
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
        groups = set[SeatGroup]()
        for seat in self._ledger.seats.expire(self._clock.now_s()):
            if isinstance(seat.key, GroupSeat):
                groups.add(seat.key.group)
            else:
                self._held.pop(seat.key, None)
                if seat.strength is Strength.WAITING:  # it was woken, and has not come
                    if (waiting := self._waiting.find(seat.key)) is not None:
                        text = "pod %s was woken, and kube-scheduler has not asked for it since: %s is given to others"
                        logger.info(text, waiting.pod, f"what was kept for it on node {seat.placement.node_name}")
                    self._waiting.forget(seat.key)
        for group in groups:
            logger.info("%s: not all pods have come for whom room was kept, and it is given up", group)

    def next_expiry_s(self) -> float | None:
        """Return before what time of the clock `expire_holds` has nothing to do; None: never, as far as is known."""
        return None if self._ledger.seats.first_deadline_s == FOREVER else self._ledger.seats.first_deadline_s

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone, and give up its hold."""
        self._waiting.gone(pod_uid)
        # A turn at a device plugin can be minutes away: until then nothing of the pod is under way.
        if not self._binder.is_binding(pod_uid) or self._turns.is_waiting(pod_uid):
            self._failures.forget(pod_uid)
            self._drop_hold(pod_uid)

    def prioritize(self, arguments: FilterArguments) -> list[str]:
        """Return the nodes in the order of preference for this pod, as Filter has found them."""
        hold = self._ledger.seats.of(arguments.pod_uid)
        order = {placement.node_name: place for place, placement in enumerate(hold.placements)} if hold else {}
        return sorted(arguments.node_names, key=lambda name: order.get(name, len(order)))

    def _place(self, arguments: FilterArguments, pod: Pod, request: PodRequest) -> FilterResult:
        reserved = self._entered.reserved(pod.uid, request) or self._seat_takers.given(pod.uid)
        seat_before = self._ledger.seats.of(pod.uid)
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
            if arguments.is_first_look and choice.placements and choice.placements[0].node_name in self._ledger.slow:
                choice = Choice((), dict.fromkeys(arguments.node_names, OTHERS_FIRST))
        yielding: Collection[SeatKey] = NOBODY
        if not choice.placements and not arguments.is_first_look:
            for yielding in (NOBODY, self._ledger.seats.yielding(pod.priority)):
                if not yielding and not self._ledger.seats.are_offered:
                    continue
                found = choose_in_place_of(self._ledger, self._chooser, yielding, request, arguments.node_names)
                if found is not None:
                    request, choice = found[0], Choice((found[1],), {})
                    break
        choice = self._quota_gate.within(pod, request, arguments.node_names, choice)
        if choice.placements:
            preferred, *spares = choice.placements
            until_s = self._clock.now_s() + self._settings.hold_ttl_s
            stored_as = seat_before.stored_as if seat_before is not None else ""
            seat = Seat(pod.uid, preferred, until_s, Strength.CHOSEN, tuple(spares), None, pod.priority, stored_as)
            self._ledger.seats.take_over(seat, yielding=yielding)
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
            self._events.tell(PodRefused(pod.uid))
        return self._answers.refused(pod, refusals)

    def _take(self, pod: Pod, placement: Placement) -> None:
        """Keep a placement for a pod that is being bound. Raises ShareRefused."""
        self._ledger.seats.take(Seat(pod.uid, placement, FOREVER, Strength.BINDING, priority=pod.priority))

    def _drop_hold(self, pod_uid: str) -> None:
        if self._ledger.seats.give_up(pod_uid):
            self._waiting.have_lost_room((pod_uid,))  # should this question come to no answer
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
        if self._binder.is_binding(pod.uid):
            self._binds[pod.uid].permission.expect_question(node_name in node_names)
        if node_name in node_names:
            return FilterResult([node_name], {})
        if self._binder.is_binding(pod.uid):
            raise BindInProgress(f"pod {pod} is being bound to node {node_name}")
        self._releaser.recheck(pod.uid)
        raise BindInProgress(f"pod {pod} still has shares on node {node_name}, which no longer takes it")

    # Bind.

    async def bind(self, arguments: BindArguments, is_connected: Callable[[], bool] = lambda: True) -> None:
        """Bind a pod to the node, with its cards. Idempotent: asking again joins what is under way.

        Answers before the scheduler gives up, if the API server answers. `is_connected` tells whether it still waits.
        Raises BindFailed if it can't be done, or is not done yet: then nothing is bound before it is asked again.
        """
        if arguments.uid not in self._binds:
            self._binds[arguments.uid] = self._begin(arguments)
        bind = self._binds[arguments.uid]
        if bind.node_name != arguments.node_name:
            raise BindFailed(f"the pod is being bound to node {bind.node_name}")
        with bind.permission.question(is_connected):
            await asyncio.wait({bind.task}, timeout=self._settings.bind_answer_s)
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
        task = asyncio.create_task(self._bind(arguments, permission), name=name)  # ends by itself, with its writes
        task.add_done_callback(lambda task: self._bind_ended(arguments, task))
        return Bind(arguments.node_name, permission, task)

    async def _bind(self, arguments: BindArguments, permission: OpenBindRequest) -> None:
        with self._releaser.leaves_alone(arguments.uid):
            try:
                await self._bind_now(arguments, permission)
            finally:  # however it has ended
                self._waiting.forget(arguments.uid)
                self._drop_hold(arguments.uid)

    async def _bind_now(self, arguments: BindArguments, permission: OpenBindRequest) -> None:
        seen, placement = self._held_placement(arguments) or await self._placement_without_hold(arguments)
        if placement is not None:  # else it is bound already
            if seen.request is not None and seen.request.brings_claims:
                seen, placement = await self._identified(seen, seen.request, placement)
            version = await self._ahead.version_of(seen.pod.uid, seen.resource_version)
            seen = replace(seen, resource_version=version)
            await self._gangs.binder.bind(seen, placement, permission)
            self._ledger.hosts.bound(seen.pod.uid, placement.node_name, placement.host)
            self._trail.assigned(seen.pod, placement, seen.ranking)

    async def _identified(self, seen: SeenPod, request: PodRequest, placement: Placement) -> tuple[SeenPod, Placement]:
        """Return the pod and placement with the pod's ResourceClaims, which exist by now. Raises BindFailed."""
        pod = seen.pod
        version, request, placement = await self._claims.writer.identified(
            pod, seen.resource_version, request, placement
        )
        if not self._entered.allocated(pod.uid):  # what was chosen counts on, now in the claims' names
            self._take(pod, placement)
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
        if seen is None or (placement := self._ledger.seats.settle(arguments.uid, arguments.node_name)) is None:
            return None
        self._ledger.seats.strengthen(arguments.uid, Strength.BINDING, FOREVER)
        return seen, placement

    async def _placement_without_hold(self, arguments: BindArguments) -> tuple[SeenPod, Placement | None]:
        """Choose cards for a pod without a hold on the node: its volumes took long, we restarted, or gave others room.

        Returns no placement for a pod that is bound to the node already.
        """
        found = await self._store.pod(arguments.namespace, arguments.name)
        if self._settings.resource_claims:
            await self._claims.writer.know_claims_of(found)
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
        if isinstance(chosen, Refusal) and self._ledger.seats.are_offered:
            found_one = choose_in_place_of(self._ledger, self._chooser, NOBODY, request, [arguments.node_name])
            chosen = found_one[1] if found_one else chosen
        if isinstance(chosen, Refusal):
            raise BindFailed(f"node {arguments.node_name}: {chosen.text}")
        self._take(pod, chosen)
        return seen, chosen
