"""Which workloads have to give cards back to one that has quota and finds none.

Kueue takes back quota, until sums allow the workload that is to be admitted. That can be too little for cards: 60 % of
each of four cards are less than two and a half cards in sums, and need all four. So among the workloads that Kueue
itself could have evicted for this one, by the rules of its ClusterQueue, its cohorts and of fair sharing, the fewest
are looked for whose cards help; each is evicted as a whole, by the check.

Source of the rules: pkg/scheduler/preemption of Kueue 0.19.2, without and with fair sharing. Whether that is on, the
status of ClusterQueues says; its `preemptionStrategies`, which nothing says, are taken to be both, as by default.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from attrs import define

from gpuledger.formats.kubernetes.workload import CheckState, ClusterQueue, Workload
from gpuledger.model.gang import SeatKey, WorkloadName
from gpuledger.model.share import HolderState
from gpuledger.placement.group import Asking, Trial
from gpuledger.workflows.context import Component
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.queues.card_check import Queues
from gpuledger.workflows.queues.quota_tree import DominantShare, Key, Node, QuotaTree, ways_up
from gpuledger.workflows.queues.workloads import KueueObjects, QueuedWorkload, Stage, hardest_first
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
        queue = self._objects.queues().get(queued.workload.cluster_queue)
        if queue is None:
            return False
        rules = Rules(queued.workload, queue, self._objects, self._objects.tree(without=self._evicted))
        victims = await self._fewest(queued, seats, rules, leaving)
        if not victims or not self._check.is_waiting(queued) or not all(map(self._has_admission, victims)):
            return False
        queued.goes_first = True
        for victim in victims:
            self._evict(victim, queued, rules.why(victim.workload))
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

    async def _candidates(self, rules: Rules) -> list[QueuedWorkload]:
        """Return preemption candidates in Kueue's order: borrowers, then low priority, then newest."""
        others = [
            other
            for other in self._check.all()
            if self._has_admission(other) and self._what_it_has(other.workload.name)
        ]
        others.sort(key=lambda other: other.workload.reserved_at, reverse=True)
        others.sort(key=lambda other: (rules.is_of_its_queue(other.workload), other.workload.priority))
        found: list[QueuedWorkload] = []

        def look() -> Iterator[None]:
            for other in others:
                if rules.allow(other.workload):
                    found.append(other)
                yield None
                if len(found) == MOST_CANDIDATES:
                    return

        await in_slices(look(), self._clock)
        return found

    def _has_admission(self, other: QueuedWorkload) -> bool:
        """Return whether a workload can be evicted, and is not already."""
        return (
            self._check.find(other.workload.name) is other
            and other.stage is not Stage.WAITING
            and other.workload.name not in self._evicted
            and not self._writer.is_writing(other.workload.uid)
        )

    async def _fewest(
        self, queued: QueuedWorkload, seats: Sequence[Asking], rules: Rules, leaving: Collection[SeatKey]
    ) -> list[QueuedWorkload]:
        """Return a minimal set of victims; none if reclaiming does not help.

        Workloads that have to give back are tried first, as in Kueue; then all whose cards help.
        """
        candidates = await self._candidates(rules)
        first = rules.who_gives_back(candidates)
        victims = await self._needed(queued, seats, first, leaving)
        if victims or len(first) == len(candidates):
            return victims
        victims = await self._needed(queued, seats, candidates, leaving)
        smallest_first = sorted(victims, key=lambda other: sum(self._objects.used_by(other.workload.uid).values()))
        return victims if len(rules.who_gives_back(smallest_first)) == len(victims) else []

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

    def _evict(self, victim: QueuedWorkload, queued: QueuedWorkload, why: str) -> None:
        name, text = victim.workload.name, f"evicted: its cards are needed by {why}"
        logger.info("workload %s is %s (workload %s)", name, text, queued.workload.name)
        self._evicted[name] = _Eviction(victim.workload.reserved_at, self._clock.now_s() + LEAVES_S)

        def done(written: Workload | None) -> None:
            if written is None:
                self._evicted.pop(name, None)
                self._check.try_again(queued)

        self._writer.say(victim.workload, victim.check, CheckState.RETRY, text, done)


class Rules:
    """Kueue's rules by which workloads leave, one after the other, for one that has quota."""

    def __init__(self, wants: Workload, queue: ClusterQueue, objects: KueueObjects, tree: QuotaTree) -> None:
        self._wants, self._queue, self._objects, self._tree = wants, queue, objects, tree
        self._own = tree.queues[queue.name]
        self._is_fair = objects.share_fairly
        self._keys = self._uses(wants)

    def is_of_its_queue(self, other: Workload) -> bool:
        """Return whether another workload is of the same ClusterQueue."""
        return other.cluster_queue == self._wants.cluster_queue

    def allow(self, other: Workload) -> bool:
        """Return whether another workload may be evicted as things are."""
        queue, is_lower = self._queue, other.priority < self._wants.priority
        if self.is_of_its_queue(other):
            is_newer = other.priority == self._wants.priority and other.reserved_at > self._wants.reserved_at
            return (queue.within != "Never" and is_lower) or (queue.within == "LowerOrNewerEqualPriority" and is_newer)
        if queue.reclaim != "Any" and not (queue.reclaim == "LowerPriority" and is_lower):
            return False
        ways, keys = self._ways(other), self._uses(other)
        if ways is None or not self._keys or not all(node.exceeds(keys) for node in ways[1]):
            return False
        if self._has_quota_of_its_own(ways[0]):
            return True
        if self._is_fair:
            return self._is_fairer(other, *ways)
        return is_lower and queue.borrowing_takes is not None and other.priority <= queue.borrowing_takes

    def why(self, other: Workload) -> str:
        """Return for whom a workload is evicted."""
        name, ways = self._queue.name, self._ways(other)
        if self.is_of_its_queue(other) or ways is None:
            return "a workload of higher priority"
        if not self._own.exceeds(self._keys):
            return f"ClusterQueue {name}, whose quota it had borrowed"
        if self._is_fair:
            return f"ClusterQueue {name}, which has a smaller share of what both borrow"
        if self._has_quota_of_its_own(ways[0]):
            return f"ClusterQueue {name}, whose cohort's quota it had borrowed"
        return f"a workload of higher priority of ClusterQueue {name}"

    def _has_quota_of_its_own(self, way: Sequence[Node]) -> bool:
        """Return whether the queue, or without fair sharing a cohort on its way up, uses no more than its quota."""
        return not all(node.exceeds(self._keys) for node in ([self._own] if self._is_fair else way))

    def who_gives_back(self, others: Sequence[QueuedWorkload]) -> list[QueuedWorkload]:
        """Return those that may be evicted one after the other, in order: none gives back more than it has borrowed.

        With fair sharing, the one of the ClusterQueue with the largest share is next.
        """
        left, found = list(others), list[QueuedWorkload]()
        while able := [other for other in left if self.allow(other.workload)]:
            chosen = max(able, key=self._shares) if self._is_fair else able[0]
            left.remove(chosen)
            found.append(chosen)
            self._count(chosen.workload, -1)
        for other in found:
            self._count(other.workload, 1)
        return found

    def _is_fairer(self, other: Workload, mine: Sequence[Node], its: Sequence[Node]) -> bool:
        """Return whether what wants cards has a smaller share than the other one has now, or none larger afterwards."""
        share, before = mine[-1].share(), its[-1].share()
        self._count(other, -1)
        after = its[-1].share()
        self._count(other, 1)
        return share <= after or share < before

    def _shares(self, other: QueuedWorkload) -> list[DominantShare]:
        """Return the shares of a workload's cohorts and its queue, from the root on."""
        node = self._tree.queues.get(other.workload.cluster_queue)
        return [each.share() for each in reversed([node, *node.above()])] if node else []

    def _ways(self, other: Workload) -> tuple[list[Node], list[Node]] | None:
        node = self._tree.queues.get(other.cluster_queue)
        return ways_up(self._own, node) if node else None

    def _uses(self, workload: Workload) -> list[Key]:
        return [key for key, some in self._objects.used_by(workload.uid).items() if some]

    def _count(self, workload: Workload, sign: int) -> None:
        self._tree.add(workload.cluster_queue, self._objects.used_by(workload.uid), sign)
