"""The two writes of a bind: the shares into the ledger, then the Binding.

The Binding carries the pod's resourceVersion, read before the API server has shown all of the shares in the ledger. So
it is refused if anybody has begun to take them back in between; release_pod.py has the other half of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

from gpuledger.formats.kubernetes.devices import DEVICES_ANNOTATION
from gpuledger.formats.kubernetes.pod import bound_node, is_being_deleted, is_finished, resource_version
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, Conflict, NotFound, Unreachable
from gpuledger.model.gang import Gang
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, Placement, Pod
from gpuledger.placement.choose import Ranking
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.binding.open_bind_request import OpenBindRequest
from gpuledger.workflows.journal.journal import Entered, Journal
from gpuledger.workflows.quota.quota_fence import QuotaFence
from gpuledger.workflows.release.release import PodReleaser
from gpuledger.workflows.resource_claims.writes import ClaimWriter
from gpuledger.workflows.tasks.pauses import gather_all, sleep_backoff

BINDING_ATTEMPTS = 6
"""Bindings sent without success before the pod's shares are given back, though a GET shows it unbound."""

MANY_CARDS_AT_ONCE = 16
"""Pods with several cards that are entered at once. Each takes as many writes, and all of one's have to be there before
it can be bound: hundreds at once would all be late, and give back what they have."""

BINDING_TIMEOUT_S = 5.0
"""How long the API server may take for a Binding, at most. What has become of it is asked then."""

KNOWN_S = 5.0
"""How long what was entered needs no other look: others of the gang are entered in the meantime."""

ENTER_TIMEOUT_S = 15.0
"""How long the API server may take to enter a share. When everything is slow, giving shares back to enter them again
would make it slower. If Bind has been answered meanwhile, the scheduler's next try goes on from there."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod in the state in which it was read."""

    pod: Pod
    resource_version: str
    request: PodRequest | None = None
    ranking: Ranking | None = None
    """How its node compared with others."""
    gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class EnteredAhead:
    """What was entered for a pod ahead of its Binding, which waits for others."""

    steps: Sequence[Entered] = ()
    known_until_s: float = float("-inf")
    """Until when, by the clock, its shares count as being there without another look at the ledger."""


NOTHING = EnteredAhead()


class PodBinder:
    """Binds pods with their shares, or leaves nothing of them in the ledger."""

    def __init__(
        self,
        journal: Journal,
        store: KubeStore,
        releaser: PodReleaser,
        turns: DevicePluginQueue,
        bind_timeout_s: float,
        clock: Clock,
        claims: ClaimWriter,
        quota_fence: QuotaFence,
    ) -> None:
        self._clock = clock
        self._quota_fence = quota_fence
        self._claims = claims
        self._turns = turns
        self._journal = journal
        self._store = store
        self._releaser = releaser
        self._timeout_s = min(BINDING_TIMEOUT_S, bind_timeout_s)
        self._places = asyncio.Semaphore(MANY_CARDS_AT_ONCE)

    async def enter(self, pod: Pod, placement: Placement) -> EnteredAhead:
        """Enter a pod's shares, ahead of `bind`. Raises the first error when every card has answered."""
        steps = await self._enter(pod, placement, ())
        is_clear = not any(step.may_arrive_late for step in steps)
        return EnteredAhead(steps, self._clock.now_s() + KNOWN_S if is_clear else float("-inf"))

    def check(self, placement: Placement) -> None:
        """Raise BindFailed if its cards no longer take pods, or another pod may use them."""
        self._turns.check_cards(placement)

    async def give_back(self, pod: Pod, placement: Placement, entered: EnteredAhead) -> None:
        """Give back what `enter` has entered, if anything."""
        await self._releaser.give_back(pod, placement.shares, _never_sent(entered.steps))

    async def bind(
        self, seen: SeenPod, placement: Placement, permission: OpenBindRequest, entered: EnteredAhead = NOTHING
    ) -> None:
        """Bind a pod, when it is its turn and its Binding may be sent. When it can't be done, give its shares back.

        `entered` says that they are in the ledger already. Raises why: BindFailed, ShareRefused, or what the API server
        says.
        """
        had_its_turn = False
        try:
            dialect = self._turns.dialect(placement.node_name) if placement.shares else Dialect.NATIVE
            async with self._turns.turn(seen.pod, placement, dialect):
                had_its_turn = True
                await self._bind_now(seen, placement, dialect, permission, entered)
        except Exception:
            if not had_its_turn:  # shares that were entered before, by an earlier attempt, too
                await self._releaser.give_back(seen.pod, placement.shares, _never_sent(entered.steps))
            raise

    def _place(self, placement: Placement) -> AbstractAsyncContextManager[object]:
        return self._places if len(placement.shares) > 1 else nullcontext()

    async def _bind_now(
        self,
        seen: SeenPod,
        placement: Placement,
        dialect: Dialect,
        permission: OpenBindRequest,
        before: EnteredAhead,
    ) -> None:
        """Bind a pod or give its shares back, before its turn ends: until then, no late Binding can be accepted."""
        annotations = self._turns.annotations(placement, seen.request, dialect)
        unbound = _never_sent(before.steps)
        try:
            await self._enter_and_send(seen, placement, annotations, unbound, permission, before)
        except Exception:
            await self._releaser.give_back(seen.pod, placement.shares, unbound)
            if permission.is_unanswered:  # behind the fence that has become clear
                found = await self._pod_now(seen.pod)
                if found is not None and _is_bound_by_us(found, placement, annotations):
                    return
            raise

    async def _enter_and_send(
        self,
        seen: SeenPod,
        placement: Placement,
        annotations: dict[str, str],
        unbound: set[str],
        permission: OpenBindRequest,
        before: EnteredAhead,
    ) -> None:
        """Enter the shares and bind the pod, until the API server has clearly said yes or no.

        Each Binding is sent after the API server has shown that the shares are in the ledger, and that after the pod's
        resourceVersion was read; and only as long as these cards take pods, and no other pod may use them.
        `unbound` is kept up to date: the names of the attempts that have not bound the pod. These took over from none
        else, and no Binding is without an answer.
        """
        pod, version = seen.pod, seen.resource_version
        entered = list(before.steps)
        is_known = self._clock.now_s() < before.known_until_s
        for attempt in range(BINDING_ATTEMPTS):
            was_long = True
            while was_long:  # so long that etcd may have been put back: the pod as it was, and without its shares
                if not is_known:
                    entered = await self._enter(pod, placement, entered)
                is_known = False
                unbound.update([step.attempt for step in entered if step.took_over <= unbound])
                was_cut_off = len(entered) > 1 and any(step.may_arrive_late for step in entered)
                was_long = await permission.had_to_wait() or was_cut_off
            if seen.request is not None and seen.request.brings_claims:
                await self._claims.allocate(pod, seen.request, placement)
            async with permission.sending():
                self._turns.check_cards(placement)
                try:
                    await self._store.bind_pod(pod, version, placement.node_name, annotations, self._timeout_s)
                    return
                except (Conflict, NotFound, Unreachable) as error:
                    failure = error
                if isinstance(failure, Unreachable):
                    permission.is_unanswered = True
                    unbound.clear()
                found = await self._pod_now(pod)
                if found is None or bound_node(found) or is_being_deleted(found):
                    if found is not None and _is_bound_by_us(found, placement, annotations):
                        if is_finished(found):  # that may have been shown before its shares were entered once more
                            await self._releaser.give_back(pod, placement.shares, unbound)
                        return
                    raise failure
            changed = resource_version(found) != version
            if attempt == BINDING_ATTEMPTS - 1 or not (changed or isinstance(failure, Unreachable)):
                raise failure
            version = resource_version(found)
            await sleep_backoff(attempt, failure)

    async def _enter(self, pod: Pod, placement: Placement, before: Sequence[Entered]) -> list[Entered]:
        """Enter the shares on all cards at once; where they were entered `before`, a look at the card may do.

        Raises the first error when every card has answered, and QuotaExceeded where another operator was quicker.
        """
        holders = [Holder(pod, share) for share in placement.shares]
        async with self._place(placement):
            if before:
                again = zip(holders, before, strict=True)
                entered = await gather_all([self._enter_again(holder, each) for holder, each in again])
            else:
                entered = await gather_all([self._journal.add(holder, ENTER_TIMEOUT_S) for holder in holders])
        if [each.attempt for each in entered] != [each.attempt for each in before]:
            await self._quota_fence.check(pod, placement)
        return entered

    async def _enter_again(self, holder: Holder, before: Entered) -> Entered:
        if not before.may_arrive_late and await self._journal.still_has(replace(holder, attempt=before.attempt)):
            # It relies on itself: if a Binding without an answer may have bound the pod, it still may have.
            return Entered(before.attempt, took_over=frozenset({before.attempt}))
        return await self._journal.add(holder, ENTER_TIMEOUT_S)

    async def _pod_now(self, pod: Pod) -> Json | None:
        """Return the pod as it is now, None if it is gone. Asks until it knows."""
        attempt = 0
        while True:
            try:
                found = await self._store.pod(pod.namespace, pod.name)
            except NotFound:
                return None
            except ApiError as error:
                await sleep_backoff(attempt, error)
                attempt += 1
            else:
                return found if found["metadata"]["uid"] == pod.uid else None


def _never_sent(entered: Sequence[Entered]) -> set[str]:
    """Return the attempts among these with which no Binding can have been sent: they took over from none."""
    return {step.attempt for step in entered if not step.took_over}


def _is_bound_by_us(found: Json, placement: Placement, annotations: Mapping[str, str]) -> bool:
    """Return whether the Binding that the API server has accepted is this one, and not another operator's."""
    stored = found["metadata"].get("annotations") or {}
    # The others change: another system's device plugin may have found the pod already.
    mine = stored.get(DEVICES_ANNOTATION) == annotations[DEVICES_ANNOTATION]
    return bound_node(found) == placement.node_name and mine
