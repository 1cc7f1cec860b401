"""Has the victims of a preemption leave, each once, and tells them why."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.errors import Conflict, EvictionForbidden, NotFound
from gpuledger.model.event_reasons import EventReason
from gpuledger.model.share import Claim, Pod
from gpuledger.reports.record import RecordKind
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.event_recorder import EventRecorder
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.preemption.pod_lives import PodLives
from gpuledger.workflows.tasks.together import all_of

logger = logging.getLogger(__name__)


CARDS_NAMED = 2
"""In the Event of a victim, by their UUIDs."""


class Evictor:
    """Remembers which pods were evicted, and for which."""

    def __init__(
        self,
        ledger: Ledger,
        store: KubeStore,
        lives: PodLives,
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
        self._evicted: dict[str, set[str]] = {}  # pod UID -> UIDs of the victims that were evicted for it

    def forget(self, pod_uid: str) -> None:
        """Note that no pod leaves for a pod any more."""
        self._evicted.pop(pod_uid, None)

    async def evict(self, pod_uid: str, claims: Sequence[tuple[Card, Claim]]) -> bool:
        """Evict the victims that have not been evicted yet; return whether all of them leave. Raises ApiError.

        Not while the pod could not come to the node: no pod shall leave in vain.
        """
        if any(self._ledger.offer(card.node_name) is None or self._ledger.hangs(card.node_name) for card, _ in claims):
            return True
        steps = []
        for uid, victim in self.victims(claims).items():
            if uid not in self._evicted.get(pod_uid, ()) and not self._lives.is_leaving(uid):
                uuids = [card.uuid for card, claim in claims if uid in claim.victims]
                steps.append(self._evict_one(claims[0][1].holder.pod, victim, uuids))
        return False not in await all_of(steps)

    def victims(self, claims: Sequence[tuple[Card, Claim]]) -> dict[str, Pod]:
        """Return the victims that are still on their cards."""
        found: dict[str, Pod] = {}
        for card, claim in claims:
            entry = self._ledger.entry(card.uuid)
            holders = entry.holders if entry is not None else {}
            found |= {uid: holders[uid].pod for uid in claim.victims if uid in holders}
        return found

    async def _evict_one(self, pod: Pod, victim: Pod, uuids: Sequence[str]) -> bool:
        """Return whether the victim leaves. If not, a budget forbids it now, or it is gone; the ledger will tell."""
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
        self._counts.evictions.inc()
        self._evicted.setdefault(pod.uid, set()).add(victim.uid)
        lost = [each for each in self._ledger.holders_of(victim.uid) if each[0].uuid in uuids]
        node_name = lost[0][0].node_name if lost else ""
        why = f"for pod {pod} of priority {pod.priority}"
        self._trail.note(RecordKind.EVICTED, victim, node_name, [holder.share for _, holder in lost], why)
        cards = f"cards {', '.join(uuids)}" if len(uuids) <= CARDS_NAMED else f"{len(uuids)} cards of node {node_name}"
        sentence = f"evicted: pod {pod} of priority {pod.priority} needs its place on {cards}"
        self._event_recorder.post_pod_event(victim, True, EventReason.PREEMPTED, sentence)
        return True
