"""Which workloads have to give cards back to one that has quota and finds none.

Kueue takes back quota, until sums allow the workload that is to be admitted. That can be too little for cards: 60 % of
each of four cards are less than two and a half cards in sums, and need all four. So among the workloads that Kueue
itself could have evicted for this one, by the rules of its ClusterQueue, the fewest are looked for whose cards help;
each is evicted as a whole, by the check.

Source of the rules: pkg/scheduler/preemption of Kueue 0.19.2. Left out: `borrowWithinCohort`, cohorts of cohorts, fair
sharing. Where these would allow more, nothing is taken back beyond what Kueue has taken.

"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attrs import define

from gpuledger.formats.kubernetes.workload import (
    CheckState,
    ClusterQueue,
    Usage,
    Workload,
    usage,
)
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import SeatKey, WorkloadName
from gpuledger.model.share import HolderState
from gpuledger.placement.group import Asking, Trial
from gpuledger.workflows.context import Component
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.queues.card_check import Queues
from gpuledger.workflows.queues.workloads import (
    QueuedWorkload,
    Stage,
    hardest_first,
)
from gpuledger.workflows.tasks import in_slices

logger = logging.getLogger(__name__)

MOST_CANDIDATES = 32
"""Workloads that are looked at: each of them takes three trials at most."""

LEAVES_S = 60.0
"""So long the pods of an evicted workload count as on their way out."""


@dataclass(frozen=True, slots=True)
class _Eviction:
    """An eviction: the cards that a workload had then count as leaving, those of later quota do not."""

    reserved_at: str
    until_s: float


@define(eq=False, slots=False)
class Reclaimer(Component):
    """Looks at the workloads of now."""

    _queues: Queues
    _lives: PodLifecycles

    def __attrs_post_init__(self) -> None:
        queues = self._queues
        self._check, self._objects, self._writer = queues.check, queues.objects, queues.writer
        self._reservations, self._pods = queues.reservations, queues.pods
        self._evicted: dict[WorkloadName, _Eviction] = {}

    async def consider(self, queued: QueuedWorkload, seats: Sequence[Asking]) -> bool:
        """Evict workloads to reclaim GPUs. Return whether terminating pods alone will free enough.

        For one workload at a time: the next one sees who was evicted.
        """
        leaving = self._leaving()
        if await self._fits(queued, seats, leaving):
            return bool(leaving)
        victims = await self._fewest(queued, seats, self._candidates(queued), leaving)
        if not victims or not self._check.is_waiting(queued) or not all(map(self._has_admission, victims)):
            return False
        queued.goes_first = True
        for victim in victims:
            self._evict(victim, queued)
        return True

    def _leaving(self) -> set[SeatKey]:
        """Return who is on the way out: pods, and seats of workloads that were evicted."""
        self._evicted = {name: each for name, each in self._evicted.items() if self._still_leaves(name, each)}
        leaving = {key for name in self._evicted for key in self._what_it_has(name)}
        for entry in self._ledger.entries():
            for uid, holder in entry.holders.items():
                if holder.state is HolderState.RELEASING or self._lives.is_leaving(uid):
                    leaving.add(uid)
        return leaving

    def _still_leaves(self, name: WorkloadName, eviction: _Eviction) -> bool:
        found = self._check.find(name)
        has_new_quota = found is not None and found.workload.reserved_at != eviction.reserved_at
        return eviction.until_s > self._clock.now_s() and not has_new_quota

    async def _fits(self, queued: QueuedWorkload, seats: Sequence[Asking], gone: Collection[SeatKey]) -> bool:
        trial = Trial(self._ledger, gone)
        await in_slices(trial.steps(hardest_first(seats)), self._clock)
        return not trial.left

    def _candidates(self, queued: QueuedWorkload) -> list[QueuedWorkload]:
        """Return preemption candidates in Kueue's order: borrowers, then low priority, then newest."""
        queues = self._objects.queues()
        own = queues.get(queued.workload.cluster_queue)
        if own is None:
            return []
        found = [
            other
            for other in self._check.all()
            if self._has_admission(other)
            and _may_be_evicted(queued, own, other, queues.get(other.workload.cluster_queue))
            and self._what_it_has(other.workload.name)
        ]
        found.sort(key=lambda other: other.workload.reserved_at, reverse=True)
        found.sort(key=lambda other: (other.workload.cluster_queue == own.name, other.workload.priority))
        return [other for other in found if _who_gives_back([other], own.name, queues)][:MOST_CANDIDATES]

    def _has_admission(self, other: QueuedWorkload) -> bool:
        """Return whether a workload can be evicted, and is not already."""
        return (
            self._check.find(other.workload.name) is other
            and other.stage is not Stage.WAITING
            and other.workload.name not in self._evicted
            and not self._writer.is_writing(other.workload.uid)
        )

    async def _fewest(
        self,
        queued: QueuedWorkload,
        seats: Sequence[Asking],
        candidates: Sequence[QueuedWorkload],
        leaving: Collection[SeatKey],
    ) -> list[QueuedWorkload]:
        """Return a minimal set of victims; none if reclaiming does not help.

        Workloads that have to give back are tried first, as in Kueue; then all whose cards help.
        """
        own, queues = queued.workload.cluster_queue, self._objects.queues()
        first = _who_gives_back(candidates, own, queues)
        victims = await self._needed(queued, seats, first, leaving)
        if victims or len(first) == len(candidates):
            return victims
        victims = await self._needed(queued, seats, candidates, leaving)
        smallest_first = sorted(victims, key=lambda other: sum(_usage(other).values()))
        return victims if len(_who_gives_back(smallest_first, own, queues)) == len(victims) else []

    async def _needed(
        self,
        queued: QueuedWorkload,
        seats: Sequence[Asking],
        candidates: Sequence[QueuedWorkload],
        leaving: Collection[SeatKey],
    ) -> list[QueuedWorkload]:
        """Return the candidates without which there is no room; none if all of them together do not help."""
        chosen = list(candidates)
        if not chosen or not await self._fits(queued, seats, self._with(leaving, chosen)):
            return []
        for other in reversed(candidates):
            rest = [each for each in chosen if each is not other]
            if await self._fits(queued, seats, self._with(leaving, rest)):
                chosen = rest
        return chosen

    def _with(self, leaving: Collection[SeatKey], victims: Sequence[QueuedWorkload]) -> set[SeatKey]:
        return set(leaving).union(*(self._what_it_has(other.workload.name) for other in victims))

    def _what_it_has(self, name: WorkloadName) -> set[SeatKey]:
        """Return under what a workload holds cards: its pods' UIDs, and the keys of its seats."""
        return {uid for uid in self._pods.pods(name) if self._has_something(uid)} | self._reservations.keys_of(name)

    def _has_something(self, uid: str) -> bool:
        return bool(self._ledger.holders.of(uid)) or self._ledger.seats.of(uid) is not None

    def _evict(self, victim: QueuedWorkload, queued: QueuedWorkload) -> None:
        name = victim.workload.name
        queue, own = queued.workload.cluster_queue, victim.workload.cluster_queue
        why = "a workload of higher priority" if queue == own else f"ClusterQueue {queue}, whose quota it had borrowed"
        text = f"evicted: its cards are needed by {why}"
        logger.info("workload %s is %s (workload %s)", name, text, queued.workload.name)
        self._evicted[name] = _Eviction(victim.workload.reserved_at, self._clock.now_s() + LEAVES_S)

        def done(written: Workload | None) -> None:
            if written is None:
                self._evicted.pop(name, None)
                self._check.try_again(queued)

        self._writer.say(victim.workload, victim.check, CheckState.RETRY, text, done)


def _may_be_evicted(
    queued: QueuedWorkload, own: ClusterQueue, other: QueuedWorkload, queue: ClusterQueue | None
) -> bool:
    """Return whether Kueue's rules let a workload take from another one."""
    mine, its = queued.workload, other.workload
    is_lower = its.priority < mine.priority
    if its.cluster_queue == own.name:
        is_newer = its.priority == mine.priority and its.reserved_at > mine.reserved_at
        return (own.within != "Never" and is_lower) or (own.within == "LowerOrNewerEqualPriority" and is_newer)
    if queue is None or not own.cohort or queue.cohort != own.cohort or own.borrowed:
        return False
    return own.reclaim == "Any" or (own.reclaim == "LowerPriority" and is_lower)


def _who_gives_back(
    others: Sequence[QueuedWorkload], own: str, queues: Mapping[str, ClusterQueue]
) -> list[QueuedWorkload]:
    """Return the workloads that a queue can reclaim from, in order, until each lending queue borrows nothing more."""
    left = {name: dict(queue.borrowed) for name, queue in queues.items()}
    return [other for other in others if other.workload.cluster_queue == own or _gives_back(other, left)]


def _gives_back(other: QueuedWorkload, borrowed: dict[str, Usage]) -> bool:
    """Return whether a workload's queue still borrows what it uses, and take that off."""
    left, used = borrowed[other.workload.cluster_queue], _usage(other)
    if not any(left.get(key, 0) > 0 for key, some in used.items() if some):
        return False
    for key, some in used.items():
        left[key] = left.get(key, 0) - some
    return True


def _usage(other: QueuedWorkload) -> Usage:
    """Return the quota that a workload uses; nothing if that can't be read."""
    try:
        return usage(other.found)
    except BadInput:
        return {}
