"""Has pods leave a card that has failed or has too many: gangs as a whole, each pod once, within budgets."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from attrs import define
from prometheus_client import Counter

from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, EventReason, EvictionForbidden, NotFound
from gpuledger.model.share import Holder, HolderState, Pod
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.context import Component
from gpuledger.workflows.evictions import Asked, ask_to_leave
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.preemption.find_victims import EvictedTogether

logger = logging.getLogger(__name__)

PAUSE_S = 15.0
"""Until a pod is asked again whose budget forbade it, or that could not be asked."""

PODS_REMEMBERED = 16_384
"""That were evicted, or told why they are not."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why pods have to leave a card, and how that is told."""

    card: Card
    why: str
    """For the log, the history and the pod's condition."""
    state: str
    """What has become of the card, after its name."""
    evicted: EventReason
    held: EventReason
    count: Counter
    despite_budgets_as: str = ""
    """See `ask_to_leave`."""


@define(eq=False, slots=False)
class Evictions(Component):
    """Has pods leave a card, with their gangs, each once."""

    _lives: PodLifecycles
    _together: EvictedTogether

    def __attrs_post_init__(self) -> None:
        self._evicted: BoundedMap[str, None] = BoundedMap(PODS_REMEMBERED)  # UIDs of pods that leave
        self._left_behind: dict[str, list[Pod]] = {}  # UUID of a card -> members of gangs that have left it
        self._told: BoundedMap[str, str] = BoundedMap(PODS_REMEMBERED)  # pod UID -> why it stays, as it was told

    def may_leave(self, holder: Holder) -> bool:
        """Return whether a holder is a bound pod that nothing makes leave yet."""
        uid = holder.pod.uid
        return holder.state is HolderState.ALLOCATED and self._lives.is_bound(uid) and not self._lives.leaves_s(uid)

    def gang_of(self, pod_uid: str) -> Collection[Pod]:
        """Return who leaves with a pod, as its gang would be of no use without it."""
        return self._together.rest_of_gang(pod_uid, ())

    def forget(self, uuid: str) -> None:
        """Record that nobody has to leave a card any more."""
        self._left_behind.pop(uuid, None)

    async def evict(self, cause: Cause, holders: Collection[Holder]) -> bool:
        """Have pods leave, with their gangs; return whether that is done: no budget forbids it, and nothing failed."""
        due, is_done = {holder.pod.uid for holder in holders}, True
        for holder in holders:
            try:
                is_done &= await self._evict(cause, holder, due)
            except ApiError as error:  # it must not keep the others on the card
                self.tell_why_it_stays(cause, holder.pod, f"that failed, and is tried again: {error}")
                is_done = False
        return is_done

    async def _evict(self, cause: Cause, holder: Holder, due: Collection[str]) -> bool:
        """Have one of those leave that are due, with its gang; return whether no budget forbids it. Raises ApiError."""
        pod = holder.pod
        if not self.may_leave(holder):
            return True
        others = self._together.rest_of_gang(pod.uid, due)
        if others and not cause.despite_budgets_as and not await self._may_all_leave([pod, *others]):
            self.tell_why_it_stays(cause, pod, "a PodDisruptionBudget of its gang forbids that now")
            return False
        if not await self._ask(cause, [pod]):
            return False
        return not others or await self._ask(cause, others, with_gang=True)

    async def evict_left_behind(self, cause: Cause) -> bool:
        """Ask those again whose gang has left, and whose budget did not last; return whether none is left."""
        behind = [each for each in self._left_behind.pop(cause.card.uuid, ()) if self._lives.is_bound(each.uid)]
        return not behind or await self._ask(cause, behind, with_gang=True)

    async def _ask(self, cause: Cause, pods: Collection[Pod], with_gang: bool = False) -> bool:
        """Ask pods to leave; return whether no budget forbids it to one of them. Raises ApiError."""
        is_done = True
        for pod in pods:
            if pod.uid in self._evicted:
                continue
            self._evicted.note(pod.uid, None)
            asked = None
            try:
                anyway = cause.despite_budgets_as
                asked = await ask_to_leave(self._store, self._clock, pod, cause.why, despite_budgets_as=anyway)
            finally:
                if asked is not Asked.LEAVES:
                    self._evicted.drop(pod.uid)
            if asked is Asked.LEAVES:
                self._tell_it_leaves(cause, pod, with_gang)
            elif asked is Asked.BUDGET_FORBIDS:
                is_done = False
                self.tell_why_it_stays(cause, pod, "a PodDisruptionBudget forbids that now")
                if with_gang:
                    self._left_behind.setdefault(cause.card.uuid, []).append(pod)
        return is_done

    async def _may_all_leave(self, pods: Collection[Pod]) -> bool:
        """Return whether no budget forbids one of them to leave, as far as can be asked without doing it."""
        for pod in pods:
            try:
                await self._store.evict_pod(pod, dry_run=True)
            except EvictionForbidden:
                return False
            except NotFound:
                continue
        return True

    def _tell_it_leaves(self, cause: Cause, pod: Pod, with_gang: bool) -> None:
        cause.count.inc()
        card = cause.card
        held = [each for each in self._ledger.holders.of(pod.uid) if with_gang or each[0].uuid == card.uuid]
        node_name = held[0][0].node_name if held else card.node_name
        self._trail.note(RecordKind.EVICTED, pod, node_name, [holder.share for _, holder in held], cause.why)
        gang = ", which others of its gang hold," if with_gang else ""
        where = f"card {card.uuid} (index {card.index} of node {card.node_name}){gang}"
        self._event_recorder.post_pod_event(pod, True, cause.evicted, f"evicted: {where} {cause.state}")
        logger.warning("pod %s is evicted: %s", pod, cause.why)

    def tell_why_it_stays(self, cause: Cause, pod: Pod, why: str) -> None:
        """Tell a pod once why it is not evicted."""
        if self._told.get(pod.uid) != why:
            self._told.note(pod.uid, why)
            card = cause.card
            sentence = f"card {card.uuid} of node {card.node_name} {cause.state}; the pod is not evicted: {why}"
            self._event_recorder.post_pod_event(pod, True, cause.held, sentence)
