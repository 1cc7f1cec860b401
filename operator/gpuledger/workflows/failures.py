"""Has pods leave cards that have failed, where the administrator wants that for the class of the fault.

A card's object says what has failed and when, so another operator neither forgets it nor begins anew. Before a pod is
evicted, the Node is read once more: only an agent that is there, and that says the same now, is believed. Then pods
leave by the Eviction API, gangs as a whole, each once; a pod that nothing would make anew stays. The replacement is
placed as any other pod.

Where many cards fail together, the cause is none of theirs, and nobody is evicted: a person has to look.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from attrs import define

from gpuledger.formats.annotations import wait_on_failure_s
from gpuledger.formats.kubernetes.node import node_facts, read_registers
from gpuledger.formats.kubernetes.pod import controller_uid, is_finished, leaves_at
from gpuledger.formats.resource_claims.claims import tolerates_fault_s
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, time_of
from gpuledger.model.errors import ApiError, BadInput, EventReason, EvictionForbidden, NotFound
from gpuledger.model.failure import Failure, FaultClass, StormLimits, patience_s, storm
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder, HolderState, Pod
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import AgentChanged, KubeletChanged
from gpuledger.workflows.evictions import Asked, ask_to_leave
from gpuledger.workflows.inventory import AgentPods
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.preemption.find_victims import EvictedTogether
from gpuledger.workflows.tasks import KeyedWorker, Throttle

logger = logging.getLogger(__name__)

LOST_GRACE_S = 10.0
"""For cards whose programs are dead: so long others that fail with them have to show that."""

PAUSE_S = 15.0
"""Until a pod is asked again whose budget forbade it, or whose node did not confirm that its card has failed."""

CARDS_AT_ONCE = 4

PODS_REMEMBERED = 16_384
"""That were evicted, or told why they are not."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A pod that holds a failed card, as it is now, and for how long it may stay."""

    holder: Holder
    left_s: float
    """Infinity for one that stays; then why."""
    why: str = ""


@define(eq=False, slots=False)
class FailedCards(Component):
    """Follows which cards have failed, and has their pods leave when it is time."""

    _agents: AgentPods
    _lives: PodLifecycles
    _together: EvictedTogether

    def __attrs_post_init__(self) -> None:
        settings = self._settings
        self._limits = StormLimits(settings.failure_most_nodes, settings.failure_most_cards_percent)
        self._known: dict[str, Failure] = {}  # UUID of a card that has failed, with an end to its pods' patience
        self._began_s: dict[str, float] = {}  # UUID of the same -> when it failed, by the loop's clock
        self._timers: dict[str, asyncio.TimerHandle] = {}  # UUID of the same -> until it is looked at again
        self._evicted: BoundedMap[str, None] = BoundedMap(PODS_REMEMBERED)  # UIDs of pods that leave
        self._left_behind: dict[str, list[Pod]] = {}  # UUID of a failed card -> members of gangs that have left it
        self._told: BoundedMap[str, str] = BoundedMap(PODS_REMEMBERED)  # pod UID -> why it stays, as it was told
        self.held: dict[str, str] = {}
        """UUID of a card whose pods stay because of a storm -> why."""
        self._throttle = Throttle()
        self.worker = KeyedWorker(self._have_pods_leave, CARDS_AT_ONCE, self._is_active)
        self._events.on(AgentChanged, lambda event: self._mark_node(event.node_name))
        self._events.on(KubeletChanged, lambda event: self._mark_node(event.node_name))

    def observe_card(self, entry: CardEntry) -> None:
        """See Follower."""
        uuid, failure = entry.card.uuid, self._failure(entry)
        if failure is None and uuid not in self._known:
            return
        if failure != self._known.get(uuid):
            self._forget(uuid)
            if failure is not None:
                self._known[uuid] = failure
                self._began_s[uuid] = self._clock.now_s() - self._age_s(failure)
            self._throttle.call("", self._mark_all)  # it may be one too many, or the last of them
        if failure is not None:
            self.worker.mark(uuid)

    def became_active(self) -> None:
        """See Follower."""
        for name in self._ledger.node_names():
            for entry in self._ledger.entries_of_node(name):
                self.observe_card(entry)
        self._mark_all("")

    async def stop(self) -> None:
        """Ask nobody any more."""
        await self.worker.stop()

    def _failure(self, entry: CardEntry) -> Failure | None:
        """Return the failure for which pods have to leave a card, if there is one."""
        failure = entry.card.failure
        wanted = failure is not None and not entry.card.healthy and self._grace_s(failure.fault_class) is not None
        return failure if wanted else None

    def _grace_s(self, fault_class: FaultClass) -> float | None:
        if fault_class.value not in self._settings.leave_failed_cards:
            return None
        grace_s = self._settings.failure_grace_s
        return min(grace_s, LOST_GRACE_S) if fault_class is FaultClass.LOST else grace_s

    def _age_s(self, failure: Failure) -> float:
        since = time_of(failure.since)
        return 0.0 if since is None else max(0.0, (self._clock.wall() - since).total_seconds())

    def _forget(self, uuid: str) -> None:
        self._known.pop(uuid, None)
        self._began_s.pop(uuid, None)
        self.held.pop(uuid, None)
        self._left_behind.pop(uuid, None)
        self._stop_timer(uuid)

    def _stop_timer(self, uuid: str) -> None:
        timer = self._timers.pop(uuid, None)
        if timer is not None:
            timer.cancel()

    def _mark_all(self, _: str) -> None:
        for uuid in list(self._known):
            if self._ledger.entry(uuid) is None:  # its object is gone
                self._forget(uuid)
            else:
                self.worker.mark(uuid)

    def _mark_node(self, node_name: str) -> None:
        for entry in self._ledger.entries_of_node(node_name) if self._known else ():
            if entry.card.uuid in self._known:
                self.worker.mark(entry.card.uuid)

    def _look_again(self, uuid: str, wait_s: float) -> None:
        self._stop_timer(uuid)
        if wait_s < math.inf:
            self._timers[uuid] = self._tasks.after(wait_s, self.worker.mark, uuid)

    async def _have_pods_leave(self, uuid: str) -> None:
        """Evict the pods of a failed card whose time is over. Raises ApiError."""
        entry, failure = self._ledger.entry(uuid), self._known.get(uuid)
        if entry is None or failure is None:
            return
        behind = [each for each in self._left_behind.pop(uuid, ()) if self._lives.is_bound(each.uid)]
        if behind and await self._ask(entry.card, failure, behind, with_gang=True):
            self._look_again(uuid, PAUSE_S)
        holders = [each for each in entry.holders.values() if self._may_leave(each)]
        if not holders or self._is_held(entry.card, failure, holders):
            return
        due, wait_s = await self._who_is_due(entry.card, failure, holders)
        if due and not await self._is_confirmed(entry.card, failure):
            due, wait_s = [], min(wait_s, PAUSE_S)
        for holder in due:
            try:
                is_done = not await self._evict(entry.card, failure, holder, {each.pod.uid for each in due})
            except ApiError as error:  # it must not keep the others on the card
                self._tell_why_it_stays(holder.pod, entry.card, f"that failed, and is tried again: {error}")
                is_done = False
            wait_s = wait_s if is_done else min(wait_s, PAUSE_S)
        self._look_again(uuid, PAUSE_S if uuid in self._left_behind else wait_s)

    async def _who_is_due(self, card: Card, failure: Failure, holders: Iterable[Holder]) -> tuple[list[Holder], float]:
        """Return who has to leave a card now, and after how many seconds the next one may have to."""
        due, wait_s = list[Holder](), math.inf
        for holder in holders:
            try:
                found = await self._due(card, failure, holder)
            except ApiError as error:
                logger.info("pod %s, whose card has failed, can't be read now: %s", holder.pod, error)
                wait_s = min(wait_s, PAUSE_S)
                continue
            if found is None:
                continue
            if found.why:
                self._tell_why_it_stays(holder.pod, card, found.why)
            if found.left_s <= 0:
                due.append(holder)
            else:
                wait_s = min(wait_s, found.left_s)
        return due, wait_s

    def _may_leave(self, holder: Holder) -> bool:
        uid = holder.pod.uid
        return holder.state is HolderState.ALLOCATED and self._lives.is_bound(uid) and not self._lives.leaves_s(uid)

    def _is_held(self, card: Card, failure: Failure, holders: Iterable[Holder]) -> bool:
        """Return whether the card is one of too many; tell its pods, and the log."""
        failures: dict[str, list[Failure]] = {}
        for uuid, each in self._known.items():
            entry = self._ledger.entry(uuid)
            if entry is not None:
                failures.setdefault(entry.card.node_name, []).append(each)
        why = storm(failure, failures, lambda: sum(1 for _ in self._ledger.entries()), self._limits)
        if not why:
            self.held.pop(card.uuid, None)
            return False
        if card.uuid not in self.held:
            logger.error("no pod is evicted from card %s, which has failed: %s", card.uuid, why)
        self.held[card.uuid] = why
        for holder in holders:
            self._tell_why_it_stays(holder.pod, card, f"{why}, and that has to be looked at by a person")
        return True

    async def _due(self, card: Card, failure: Failure, holder: Holder) -> _Due | None:
        """Return for how long a pod may stay on a card; None for one that is gone, or leaves."""
        pod = await self._store.pod_now(holder.pod)
        if pod is None or is_finished(pod) or leaves_at(pod):
            return None
        own_s = await self._own_word_s(failure, holder, pod)
        if own_s is None and not controller_uid(pod):
            why = "no controller would make it anew; the annotation gpuledger.dev/on-card-failure: leave has it evicted"
            return _Due(holder, math.inf, why)
        grace_s = self._grace_s(failure.fault_class)
        allowed_s = patience_s(grace_s, own_s, self._settings.failure_longest_s)
        if allowed_s is None:
            return _Due(holder, math.inf)
        return _Due(holder, self._began_s.get(card.uuid, self._clock.now_s()) + allowed_s - self._clock.now_s())

    async def _own_word_s(self, failure: Failure, holder: Holder, pod: Json) -> float | None:
        """Return how long a pod wishes to stay, by its annotation or its claims; None if it does not say."""
        with suppress(BadInput):  # its owner was warned when it came
            own_s = wait_on_failure_s(pod)
            if own_s is not None:
                return own_s
        tolerated: list[float | None] = []
        for part in holder.share.containers:
            if part.claim is not None:
                try:
                    claim = await self._store.resource_claim(holder.pod.namespace, part.claim.name)
                except NotFound:
                    continue
                request = part.name.partition("/")[2]
                tolerated.append(tolerates_fault_s(claim, request, failure.fault_class.value))
        said = [each for each in tolerated if each is not None]
        return min(said) if said and None not in tolerated else None

    async def _is_confirmed(self, card: Card, failure: Failure) -> bool:
        """Return whether the node's agent is there, and says now what it has said of the card."""
        name = card.node_name
        if self._agents.not_ready(name) or self._ledger.offer(name) is None or self._ledger.hangs(name):
            return False
        try:
            node = await self._store.node(name)
            cards = read_registers(node_facts(node, self._formats.dialects)).cards
        except (NotFound, BadInput):
            return False
        now = next((each for each in cards if each.uuid == card.uuid), None)
        if now is None:  # after a restart of its agent, a lost card can't be listed
            return failure.fault_class is FaultClass.LOST
        return not now.healthy and now.failure == failure

    async def _evict(self, card: Card, failure: Failure, holder: Holder, due: Collection[str]) -> bool:
        """Have a pod leave that is due, with its gang; return whether a budget forbids it. Raises ApiError."""
        pod = holder.pod
        if not self._may_leave(holder):
            return False
        others = self._together.rest_of_gang(pod.uid, due)
        if others and not self._anyway(failure) and not await self._may_all_leave([pod, *others]):
            self._tell_why_it_stays(pod, card, "a PodDisruptionBudget of its gang forbids that now")
            return True
        if await self._ask(card, failure, [pod]):
            return True
        return bool(others) and await self._ask(card, failure, others, with_gang=True)

    def _anyway(self, failure: Failure) -> bool:
        return self._settings.failure_despite_budgets and failure.fault_class is FaultClass.LOST

    async def _ask(self, card: Card, failure: Failure, pods: Collection[Pod], with_gang: bool = False) -> bool:
        """Ask pods to leave; return whether a budget forbids it to one of them. Raises ApiError."""
        why, forbidden = f"card {card.uuid} has failed ({failure.fault_class})", False
        for pod in pods:
            if pod.uid in self._evicted:
                continue
            self._evicted.note(pod.uid, None)
            asked = None
            try:
                anyway = "CardFailure" if self._anyway(failure) else ""
                asked = await ask_to_leave(self._store, self._clock, pod, why, despite_budgets_as=anyway)
            finally:
                if asked is not Asked.LEAVES:
                    self._evicted.drop(pod.uid)
            if asked is Asked.LEAVES:
                self._tell_it_leaves(pod, card, why, with_gang)
            elif asked is Asked.BUDGET_FORBIDS:
                forbidden = True
                self._tell_why_it_stays(pod, card, "a PodDisruptionBudget forbids that now")
                if with_gang:
                    self._left_behind.setdefault(card.uuid, []).append(pod)
        return forbidden

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

    def _tell_it_leaves(self, pod: Pod, card: Card, why: str, with_gang: bool) -> None:
        self._counts.failure_evictions.inc()
        held = [each for each in self._ledger.holders.of(pod.uid) if with_gang or each[0].uuid == card.uuid]
        node_name = held[0][0].node_name if held else card.node_name
        self._trail.note(RecordKind.EVICTED, pod, node_name, [holder.share for _, holder in held], why)
        gang = ", which others of its gang hold," if with_gang else ""
        where = f"card {card.uuid} (index {card.index} of node {card.node_name}){gang}"
        self._event_recorder.post_pod_event(pod, True, EventReason.EVICTED_FROM_CARD, f"evicted: {where} has failed")
        logger.warning("pod %s is evicted: %s", pod, why)

    def _tell_why_it_stays(self, pod: Pod, card: Card, why: str) -> None:
        if self._told.get(pod.uid) != why:
            self._told.note(pod.uid, why)
            sentence = f"card {card.uuid} of node {card.node_name} has failed; the pod is not evicted: {why}"
            self._event_recorder.post_pod_event(pod, True, EventReason.STAYS_ON_CARD, sentence)
