"""Has the victims of a preemption leave, each once, and tells them why."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.errors import Conflict, EvictionForbidden, NotFound
from gpuledger.model.refusal import EventReason
from gpuledger.model.share import Claim, Holder, Pod
from gpuledger.reports.history import RecordKind
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.event_recorder import EventRecorder
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.preemption.chosen_victims import ChosenVictims
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles
from gpuledger.workflows.tasks.pauses import gather_all

logger = logging.getLogger(__name__)


CARDS_NAMED = 2
"""In the Event of a victim, by their UUIDs."""


class Evictor:
    """Evicts for whom rooms are claimed."""

    def __init__(
        self,
        ledger: Ledger,
        store: KubeStore,
        lives: PodLifecycles,
        leavers: ChosenVictims,
        event_recorder: EventRecorder,
        counts: Counts,
        trail: Trail,
        despite_budgets: bool,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._lives = lives
        self._event_recorder = event_recorder
        self._counts = counts
        self._trail = trail
        self._despite_budgets = despite_budgets
        self._leavers = leavers

    def forget(self, pod_uid: str) -> None:
        """Record that no pod leaves for a pod any more."""
        self._leavers.forget(pod_uid)

    async def evict(self, claims: Sequence[tuple[Card, Claim]]) -> bool:
        """Evict the victims that have not been evicted yet; return whether all of them leave. Raises ApiError.

        Not while the pod could not come to the node: no pod shall leave in vain.
        """
        if not claims:
            return True
        if any(self._ledger.offer(card.node_name) is None or self._ledger.hangs(card.node_name) for card, _ in claims):
            return True
        steps = []
        pod, victims = claims[0][1].holder.pod, self._all_victims(claims)
        self._leavers.choose(pod, victims)
        for uid, victim in victims.items():
            if not self._lives.is_leaving(uid) and self._leavers.is_to_be_evicted(pod, uid):
                uuids = [card.uuid for card, claim in claims if uid in claim.victims and uid in self._on(card)]
                steps.append(self._evict_one(pod, victim, uuids))
        return False not in await gather_all(steps)

    def others_leave(self, claim: Claim, entry: CardEntry) -> bool:
        """Return whether those leave, or are asked to, whom a claim lists though they are not on its card.

        Once it is a share, nobody would know that they are to leave with the rest of their gang.
        """
        others = (uid for uid in claim.victims if uid not in entry.holders and self._ledger.holders_of(uid))
        return all(self._lives.is_leaving(uid) or self._leavers.is_evicted(uid) for uid in others)

    def victims(self, claims: Sequence[tuple[Card, Claim]]) -> dict[str, Pod]:
        """Return the victims that are still on their cards."""
        found: dict[str, Pod] = {}
        for card, claim in claims:
            holders = self._on(card)
            found |= {uid: holders[uid].pod for uid in claim.victims if uid in holders}
        return found

    def _on(self, card: Card) -> Mapping[str, Holder]:
        entry = self._ledger.entry(card.uuid)
        return entry.holders if entry is not None else {}

    def _all_victims(self, claims: Sequence[tuple[Card, Claim]]) -> dict[str, Pod]:
        """Return the same, and those of their gangs that are listed with them, on whatever nodes."""
        listed = {uid: self._ledger.holders_of(uid) for _, claim in claims for uid in claim.victims}
        return self.victims(claims) | {uid: holders[0][1].pod for uid, holders in listed.items() if holders}

    async def _evict_one(self, pod: Pod, victim: Pod, uuids: Sequence[str]) -> bool:
        """Return whether the victim leaves. If not, a budget forbids it now, or it is gone; the ledger will tell."""
        leaves = False
        try:
            leaves = await self._is_asked_to_leave(victim)
        finally:
            if not leaves:
                self._leavers.was_not_evicted(pod, victim.uid)
        if leaves:
            self._tell(pod, victim, uuids)
        return leaves

    async def _is_asked_to_leave(self, victim: Pod) -> bool:
        try:
            await self._store.evict_pod(victim)
        except (NotFound, Conflict):  # another pod may have its name by now
            return False
        except EvictionForbidden as error:
            if not self._despite_budgets:
                logger.info("pod %s can't be evicted now: %s", victim, error)
                return False
            try:
                await self._store.delete_pod(victim)
            except (NotFound, Conflict):
                return False
        return True

    def _tell(self, pod: Pod, victim: Pod, uuids: Sequence[str]) -> None:
        self._counts.evictions.inc()
        lost = [each for each in self._ledger.holders_of(victim.uid) if not uuids or each[0].uuid in uuids]
        node_name = lost[0][0].node_name if lost else ""
        why = f"for pod {pod} of priority {pod.priority}"
        self._trail.note(RecordKind.EVICTED, victim, node_name, [holder.share for _, holder in lost], why)
        cards = f"cards {', '.join(uuids)}" if len(uuids) <= CARDS_NAMED else f"{len(uuids)} cards of node {node_name}"
        place = f"its place on {cards}" if uuids else "the place of others of its gang"
        sentence = f"evicted: pod {pod} of priority {pod.priority} needs {place}"
        self._event_recorder.post_pod_event(victim, True, EventReason.PREEMPTED, sentence)
