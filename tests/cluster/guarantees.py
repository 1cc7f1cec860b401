"""Which jobs are kept from what their queue is guaranteed, though its cards could be had: an oracle for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FULL = 100


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose pods are alike: each takes a percentage of each of some cards of one node."""

    name: str
    queue: str
    cards: int
    percent: int
    pods: int

    @property
    def cores(self) -> int:
        """What it takes of a quota, in percents of cards."""
        return self.cards * self.percent * self.pods


@dataclass(frozen=True, slots=True)
class Scene:
    """Queues of one cohort at one moment. Priorities are all the same, and each queue may take back from any other."""

    nominal: Mapping[str, int]
    used: Mapping[str, int]
    """Of each queue, by the jobs that have quota."""
    without_quota: Sequence[Job]
    without_cards: Sequence[Job]
    """They have quota."""
    admitted: Sequence[Job]
    """The newest first."""
    held: Mapping[tuple[str, str], Mapping[str, int]]
    """Of each card, named by its node and itself: percentages, by whose pods they are."""


def owed(scene: Scene) -> set[str]:
    """Return the jobs that could be admitted within the guarantee of their queue.

    Those without quota are for Kueue to see to: it takes quota back. Those with quota are looked for cards: what is
    free, and what the newest jobs of queues that borrow have, of each queue as long as it borrows. Where other jobs
    would have to leave instead, nothing is owed: so what is returned is never too much.
    """
    by_sums = [job for job in scene.without_quota if scene.used[job.queue] + job.cores <= scene.nominal[job.queue]]
    by_cards = [
        job
        for job in scene.without_cards
        if scene.used[job.queue] <= scene.nominal[job.queue] and fits(job, scene.held, _who_leaves(scene, job.queue))
    ]
    return {job.name for job in by_sums + by_cards}


def _who_leaves(scene: Scene, own: str) -> set[str]:
    borrowed = {queue: used - scene.nominal[queue] for queue, used in scene.used.items() if queue != own}
    leaving = set()
    for job in scene.admitted:
        if borrowed.get(job.queue, 0) > 0:
            borrowed[job.queue] -= job.cores
            leaving.add(job.name)
    return leaving


def fits(job: Job, held: Mapping[tuple[str, str], Mapping[str, int]], leaving: set[str]) -> bool:
    """Return whether a job's pods find cards once these jobs are gone."""
    nodes: dict[str, list[int]] = {}
    for (node, _), holders in held.items():
        stays = sum(percent for name, percent in holders.items() if name not in leaving)
        nodes.setdefault(node, []).append(FULL - stays)
    return sum(_pods_on(free, job) for free in nodes.values()) >= job.pods


def _pods_on(free: Iterable[int], job: Job) -> int:
    """Return how many of a job's pods find cards on a node: each takes those with the most left."""
    left, pods = sorted(free, reverse=True), 0
    while len(left) >= job.cards and left[job.cards - 1] >= job.percent:
        left = sorted((some - job.percent * (at < job.cards) for at, some in enumerate(left)), reverse=True)
        pods += 1
    return pods
