"""A pod's way onto its cards: hold at Filter, journal and bind at Bind.

A pod is in one of four states. *None*: nothing is known of it. *Held*: Filter chose its cards, in memory. *Binding*:
a task enters its shares into the ledger and binds it; whoever asks again meanwhile gets the same node, or waits for the
same task. *Entered*: the ledger has its shares. Any step can be the last before a crash: what it leaves is a share too
many for a while, never one too few.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuledger.formats.extender import BindArguments, FilterArguments
from gpuledger.formats.pod import (
    DEVICES_ANNOTATION,
    RequestDefaults,
    ResourceNames,
    bound_node,
    devices_annotation,
    pod_identity,
    pod_request,
)
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import (
    ApiError,
    BadInput,
    BindFailed,
    Conflict,
    DoesNotFit,
    GpuledgerError,
    NotFound,
    Unreachable,
)
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, HolderState, Placement, Pod
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.journal import Journal

logger = logging.getLogger(__name__)

Json = dict[str, Any]

BINDING_ATTEMPTS = 6
"""Bindings sent without a clear answer before the pod's shares are given back, though a GET shows it unbound."""

ENTER_TIMEOUT_S = 15.0
"""How long the API server may take to enter a share. Longer than Bind waits for an answer: when everything is slow,
giving shares back to enter them again would make it slower. The task goes on; the scheduler's next try joins it."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class PodStore(Protocol):
    """The pods at the API server."""

    async def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as it is now."""

    async def bind_pod(self, pod: Pod, node_name: str, annotations: dict[str, str], timeout_s: float) -> None:
        """Bind and annotate a pod in one write."""


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """What a pod's words mean, and how long things may take."""

    names: ResourceNames
    defaults: RequestDefaults
    hold_ttl_s: float
    bind_timeout_s: float
    """Until Bind answers; the task goes on. Less than the scheduler's httpTimeout."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes that a pod can go to, or why each can't take it."""

    node_names: Sequence[str]
    refused: Mapping[str, str]


@dataclass(slots=True)
class _Bind:
    """A bind in progress."""

    node_name: str
    task: asyncio.Task[None]


class PodPlacer:
    """Answers the scheduler's questions about pods."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        journal: Journal,
        store: PodStore,
        settings: PlacementSettings,
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._journal = journal
        self._store = store
        self._settings = settings
        self._counts = counts
        self._clock = clock
        self._held: dict[str, Pod] = {}  # pod UID -> pod, for the pods with a hold
        self._binds: dict[str, _Bind] = {}  # pod UID -> its bind in progress
        self._clean_ups: set[asyncio.Task[None]] = set()

    def is_binding(self, pod_uid: str) -> bool:
        """Tell whether a bind of the pod is in progress: then nobody else may judge its shares."""
        return pod_uid in self._binds

    # Filter.

    def filter(self, arguments: FilterArguments) -> FilterResult:
        """Choose a node and hold the pod's cards there.

        Raises GpuledgerError when the pod can't be judged now, and should be tried again soon.
        """
        self._counts.filters += 1
        for uid in self._ledger.expire_holds(self._clock()):
            self._held.pop(uid, None)
        try:
            pod = pod_identity(arguments.pod)
            request = self._request(arguments.pod)
        except BadInput as error:
            self._counts.bad_input["pod"] += 1
            return self._refuse_all(arguments.node_names, Refusal(Reason.BAD_REQUEST, str(error)))
        if request is None:
            return FilterResult(arguments.node_names, {})
        node_name = self._settled_node(pod, request)
        if node_name is not None:
            return self._same_node(pod, node_name, arguments.node_names)
        return self._place(pod, request, arguments.node_names)

    def prioritize(self, arguments: FilterArguments) -> list[str]:
        """Return the nodes in the order of preference for this pod; those that do not fit come last."""
        request = self._request(arguments.pod)
        if request is None:
            return arguments.node_names
        choice = self._chooser.choose(request, arguments.node_names, len(arguments.node_names))
        fitting = dict.fromkeys(placement.node_name for placement in choice.placements)
        return [*fitting, *(name for name in arguments.node_names if name not in fitting)]

    def _place(self, pod: Pod, request: PodRequest, node_names: list[str]) -> FilterResult:
        self._ledger.drop_hold(pod.uid)
        self._held.pop(pod.uid, None)
        choice = self._chooser.choose(request, node_names, count=1)
        if choice.placements:
            placement = choice.placements[0]
            self._ledger.hold(pod.uid, placement, self._clock() + self._settings.hold_ttl_s)
            self._held[pod.uid] = pod
            return FilterResult([placement.node_name], {})
        if choice.refusals:
            self._counts.refusals[next(iter(choice.refusals.values())).reason] += 1
        return FilterResult([], {name: refusal.text for name, refusal in choice.refusals.items()})

    def _settled_node(self, pod: Pod, request: PodRequest) -> str | None:
        """Return the node that an earlier attempt has decided on, if it still stands."""
        bind = self._binds.get(pod.uid)
        if bind is not None:
            return bind.node_name
        placement = self._entered(pod.uid)
        if placement is None:
            return None
        if _covers(placement, request):
            return placement.node_name
        self._clean_up(pod)
        raise DoesNotFit(f"shares that an earlier attempt has left to pod {pod} are being given back")

    def _same_node(self, pod: Pod, node_name: str, node_names: list[str]) -> FilterResult:
        if node_name in node_names:
            return FilterResult([node_name], {})
        if not self.is_binding(pod.uid):
            self._clean_up(pod)
        raise DoesNotFit(f"pod {pod} still has shares on node {node_name}, which does not take it any more")

    def _clean_up(self, pod: Pod) -> None:
        """Give back what an earlier attempt has left, unless it turns out that the pod is bound there."""
        task = asyncio.create_task(self._give_back_unless_bound(pod), name=f"clean up after pod {pod}")
        self._clean_ups.add(task)
        task.add_done_callback(self._clean_ups.discard)

    async def _give_back_unless_bound(self, pod: Pod) -> None:
        placement = self._entered(pod.uid)
        if placement is None or self.is_binding(pod.uid):
            return
        node_name = await self._bound_to(pod)
        if self.is_binding(pod.uid) or self._entered(pod.uid) != placement:
            return  # a newer attempt has taken over
        if node_name != placement.node_name:
            await self._give_back(pod, placement)

    def _refuse_all(self, node_names: Sequence[str], refusal: Refusal) -> FilterResult:
        self._counts.refusals[refusal.reason] += 1
        return FilterResult([], dict.fromkeys(node_names, refusal.text))

    # Bind.

    async def bind(self, arguments: BindArguments) -> None:
        """Bind a pod to the node, with its cards. Idempotent; answers before the scheduler gives up.

        Raises BindFailed if it can't be done, or is not done yet: then it goes on, and asking again joins it.
        """
        bind = self._binds.get(arguments.uid)
        if bind is None:
            task = asyncio.create_task(self._bind(arguments), name=f"bind {arguments.namespace}/{arguments.name}")
            bind = self._binds[arguments.uid] = _Bind(arguments.node_name, task)
            task.add_done_callback(lambda task: self._bind_ended(arguments, task))
        elif bind.node_name != arguments.node_name:
            raise BindFailed(f"the pod is being bound to node {bind.node_name}")
        try:
            await asyncio.wait_for(asyncio.shield(bind.task), self._settings.bind_timeout_s)
        except TimeoutError:
            self._counts.binds["late"] += 1
            raise BindFailed("the API server is slow to answer; the pod is still being bound") from None
        except GpuledgerError as error:
            self._counts.binds["failed"] += 1
            raise BindFailed(str(error)) from error
        self._counts.binds["bound"] += 1

    async def _bind(self, arguments: BindArguments) -> None:
        pod, placement = self._held_placement(arguments) or await self._placement_without_hold(arguments)
        if placement is None:
            return  # bound already
        try:
            await self._enter(pod, placement)
            await self._send_binding(pod, placement)
        except Exception:
            await self._give_back(pod, placement)
            raise
        self._ledger.drop_hold(pod.uid)
        self._held.pop(pod.uid, None)

    def _bind_ended(self, arguments: BindArguments, task: asyncio.Task[None]) -> None:
        self._binds.pop(arguments.uid, None)
        if not task.cancelled() and task.exception():
            logger.info("pod %s/%s is not bound: %s", arguments.namespace, arguments.name, task.exception())

    def _held_placement(self, arguments: BindArguments) -> tuple[Pod, Placement | None] | None:
        hold, pod = self._ledger.hold_of(arguments.uid), self._held.get(arguments.uid)
        if hold is None or pod is None or hold.placement.node_name != arguments.node_name:
            return None
        self._ledger.pin_hold(pod.uid)
        return pod, hold.placement

    async def _placement_without_hold(self, arguments: BindArguments) -> tuple[Pod, Placement | None]:
        """Choose cards on the node for a pod whose hold is gone: we restarted, or its volumes took long.

        Returns no placement for a pod that is bound to the node already.
        """
        found = await self._store.pod(arguments.namespace, arguments.name)
        pod, request = pod_identity(found), self._request(found)
        node_name = bound_node(found)
        if pod.uid != arguments.uid:
            raise BindFailed(f"pod {pod} is another one by now")
        if node_name:
            if node_name == arguments.node_name:
                return pod, None
            raise BindFailed(f"pod {pod} is bound to node {node_name} already")
        if request is None:  # it names our resources, with an amount of 0
            return pod, Placement(node_name=arguments.node_name, shares=())
        placement = self._entered(pod.uid)
        if placement is not None:
            if placement.node_name == arguments.node_name and _covers(placement, request):
                return pod, placement
            await self._give_back(pod, placement)
        chosen = self._chooser.choose_on(request, arguments.node_name)
        if isinstance(chosen, Refusal):
            raise BindFailed(f"node {arguments.node_name}: {chosen.text}")
        self._ledger.hold(pod.uid, chosen, self._clock() + self._settings.hold_ttl_s)
        self._ledger.pin_hold(pod.uid)
        return pod, chosen

    async def _enter(self, pod: Pod, placement: Placement) -> None:
        """Enter the shares on all cards at once. Raises the first error when every card has answered."""
        entries = [self._journal.add(Holder(pod, share), ENTER_TIMEOUT_S) for share in placement.shares]
        await _all(entries)

    async def _send_binding(self, pod: Pod, placement: Placement) -> None:
        """Bind the pod, until the API server has clearly said yes or no.

        Without an answer the pod is read; if it is not bound, the Binding is sent again rather than given up, for the
        first one may still arrive.
        """
        annotations = {DEVICES_ANNOTATION: devices_annotation(placement.shares)}
        for attempt in range(BINDING_ATTEMPTS):
            try:
                await self._store.bind_pod(pod, placement.node_name, annotations, self._settings.bind_timeout_s)
                return
            except (Conflict, NotFound, Unreachable) as error:
                if await self._bound_to(pod) == placement.node_name:
                    return
                if not isinstance(error, Unreachable) or attempt == BINDING_ATTEMPTS - 1:
                    raise
                await _pause(attempt, error)

    async def _bound_to(self, pod: Pod) -> str | None:
        """Return the node that the pod is bound to, "" if to none, None if the pod is gone. Asks until it knows."""
        attempt = 0
        while True:
            try:
                found = await self._store.pod(pod.namespace, pod.name)
            except NotFound:
                return None
            except ApiError as error:
                await _pause(attempt, error)
                attempt += 1
            else:
                return bound_node(found) if found["metadata"]["uid"] == pod.uid else None

    async def _give_back(self, pod: Pod, placement: Placement) -> None:
        """Take the pod off all cards of the placement; its hold lasts until the API server has done it."""
        try:
            await _all([self._journal.remove(share.uuid, pod.uid) for share in placement.shares])
        finally:
            self._ledger.drop_hold(pod.uid)
            self._held.pop(pod.uid, None)

    # Both.

    def _request(self, pod: Mapping[str, Any]) -> PodRequest | None:
        return pod_request(pod, self._settings.names, self._settings.defaults)

    def _entered(self, pod_uid: str) -> Placement | None:
        """Return what the ledger says the pod holds."""
        holders = self._ledger.holders_of(pod_uid)
        if not holders:
            return None
        allocated = [holder.share for _, holder in holders if holder.state is HolderState.ALLOCATED]
        return Placement(holders[0][0].node_name, tuple(allocated))


def _covers(placement: Placement, request: PodRequest) -> bool:
    """Tell whether every container has the number of cards that it asks for: no card's entry is missing."""
    cards = [container.name for share in placement.shares for container in share.containers]
    return all(cards.count(name) == demand.cards for name, demand in zip(request.names, request.shape, strict=True))


async def _all(steps: Sequence[Awaitable[None]]) -> None:
    """Wait for all, then raise the first error there was."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _pause(attempt: int, error: ApiError) -> None:
    await asyncio.sleep(max(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt), error.retry_after_s))
