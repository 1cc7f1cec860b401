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
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from attrs import define

from gpuledger.formats.annotations import wait_on_failure_s
from gpuledger.formats.kubernetes.node import node_facts, read_registers
from gpuledger.formats.kubernetes.pod import controller_uid, is_finished, leaves_at
from gpuledger.formats.resource_claims.claims import tolerates_fault_s
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.clock import time_of
from gpuledger.model.errors import ApiError, BadInput, EventReason, NotFound
from gpuledger.model.failure import Failure, FaultClass, StormLimits, patience_s, storm
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.workflows.card_evictions import PAUSE_S, Cause, Evictions
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import AgentChanged, KubeletChanged
from gpuledger.workflows.inventory import AgentPods
from gpuledger.workflows.tasks import KeyedWorker, Throttle

logger = logging.getLogger(__name__)

LOST_GRACE_S = 10.0
"""For cards whose programs are dead: so long others that fail with them have to show that."""

CARDS_AT_ONCE = 4


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
    _evictions: Evictions

    def __attrs_post_init__(self) -> None:
        settings = self._settings
        self._limits = StormLimits(settings.failure_most_nodes, settings.failure_most_cards_percent)
        self._known: dict[str, Failure] = {}  # UUID of a card that has failed, with an end to its pods' patience
        self._began_s: dict[str, float] = {}  # UUID of the same -> when it failed, by the loop's clock
        self._timers: dict[str, asyncio.TimerHandle] = {}  # UUID of the same -> until it is looked at again
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
        self._evictions.forget(uuid)
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
        cause = self._cause(entry.card, failure)
        again_s = math.inf if await self._evictions.evict_left_behind(cause) else PAUSE_S
        self._look_again(uuid, again_s)
        holders = [each for each in entry.holders.values() if self._evictions.may_leave(each)]
        if not holders or self._is_held(cause, failure, holders):
            return
        due, wait_s = await self._who_is_due(cause, failure, holders)
        if due and not await self._is_confirmed(entry.card, failure):
            due, wait_s = [], min(wait_s, PAUSE_S)
        if not await self._evictions.evict(cause, due):
            again_s = PAUSE_S
        self._look_again(uuid, min(wait_s, again_s))

    async def _who_is_due(
        self, cause: Cause, failure: Failure, holders: Iterable[Holder]
    ) -> tuple[list[Holder], float]:
        """Return who has to leave a card now, and after how many seconds the next one may have to."""
        due, wait_s = list[Holder](), math.inf
        for holder in holders:
            try:
                found = await self._due(cause.card, failure, holder)
            except ApiError as error:
                logger.info("pod %s, whose card has failed, can't be read now: %s", holder.pod, error)
                wait_s = min(wait_s, PAUSE_S)
                continue
            if found is None:
                continue
            if found.why:
                self._evictions.tell_why_it_stays(cause, holder.pod, found.why)
            if found.left_s <= 0:
                due.append(holder)
            else:
                wait_s = min(wait_s, found.left_s)
        return due, wait_s

    def _is_held(self, cause: Cause, failure: Failure, holders: Iterable[Holder]) -> bool:
        """Return whether the card is one of too many; tell its pods, and the log."""
        card, failures = cause.card, dict[str, list[Failure]]()
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
            self._evictions.tell_why_it_stays(cause, holder.pod, f"{why}, and that has to be looked at by a person")
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

    def _cause(self, card: Card, failure: Failure) -> Cause:
        anyway = self._settings.failure_despite_budgets and failure.fault_class is FaultClass.LOST
        return Cause(
            card=card,
            why=f"card {card.uuid} has failed ({failure.fault_class})",
            state="has failed",
            evicted=EventReason.EVICTED_FROM_CARD,
            held=EventReason.STAYS_ON_CARD,
            count=self._counts.failure_evictions,
            despite_budgets_as="CardFailure" if anyway else "",
        )
