"""Nobody is evicted in vain: in trees of cohorts, under Kueue's fair sharing and admission fair sharing, and without.

The story is the same each time. One node has four cards, each held by a job that has borrowed its quota. A job comes
for 60 % of each card: in sums that is less than three cards, so Kueue takes back three of the four; but it needs a part
of each. The fourth job has to leave as well, or the other three were evicted for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import COUNT, PERCENT, pod
from cluster.guarantees import Job, fits
from cluster.queues import WORKLOADS, Queues, queues_cluster
from gpuledger.formats.kubernetes.workload import cluster_queue, cohort, usage, workload
from gpuledger.workflows.queues.quota_tree import QuotaTree
from kueue import API

Json = dict[str, Any]

SMALL = ("small-1", "small-2", "small-3", "small-4")
FAIR: Json = {"fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}}
BY_USAGE: Json = {"admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "1s"}}
BY_USAGE_OF_QUEUES: Json = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}


def weight(some: int) -> Json:
    """Return what gives a queue a weight in fair sharing."""
    return {"fairSharing": {"weight": str(some)}}


@pytest.fixture(scope="module")
def started() -> Iterator[Queues]:
    """Yield Kueue with all of the queues, each in a tree of its own test."""
    with queues_cluster() as queues:
        body = {"metadata": {"name": "urgent"}, "value": 1_000}
        queues.cluster.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        yield queues


@pytest.fixture
def queues(started: Queues) -> Iterator[Queues]:
    """Yield no queues, and no jobs, in a cluster with one node of four cards."""
    started.cluster.add_nodes(1, gpus=4)
    yield started
    started.clear()
    started.clear_queues()


class Story:
    """Jobs on one node of four cards."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.jobs: dict[str, Job] = {}

    def comes(self, name: str, queue: str, cards: int = 1, percent: int = 100, priority: str = "") -> None:
        """Let a job of one pod come."""
        limits = {COUNT: cards} if percent == 100 else {COUNT: cards, PERCENT: percent}
        self.jobs[name] = job = Job(name, queue, cards, percent, 1)
        self.queues.job(name, queue, limits, job.cores, priority=priority)

    def fill(self, *queues: str, jobs: tuple[str, ...] = SMALL) -> None:
        """Let small jobs come, each of the next queue, and wait until they run."""
        for number, name in enumerate(jobs):
            self.comes(name, queues[number % len(queues)])
            self.queues.wait_running(name)

    def idle_for(self) -> list[str]:
        """Return the jobs that wait although the cards that are free would do for them."""
        running = self.queues.running(*self.jobs)
        holding = {pod["metadata"]["uid"]: name for name in running for pod in self.queues.bound(name)}
        held = {
            (card["spec"]["nodeName"], uuid): {
                holding.get(each["podUID"], each["podUID"]): round(
                    100 * each["memoryMiB"] / card["spec"]["capacity"]["memoryMiB"]
                )
                for each in card.get("status", {}).get("holders", [])
            }
            for uuid, card in self.queues.cluster.cards().items()
        }
        return [name for name, job in self.jobs.items() if name not in running and fits(job, held, set())]

    def rests(self, *jobs: str, others: int = 0) -> None:
        """Wait until these jobs run, and so many others, and see that no card is idle for one that waits."""
        cluster = self.queues.cluster

        def all_run() -> bool:
            running = set(self.queues.running(*self.jobs))
            return set(jobs) <= running and len(running) == len(jobs) + others

        cluster.wait(all_run, f"{jobs} run, and {others} others")
        cluster.settle()
        assert all_run()
        assert self.idle_for() == [], "cards are idle for them"
        cluster.check_consistent()


def shares(queues: Queues) -> dict[str, tuple[int, int]]:
    """Return the share of each ClusterQueue and cohort that has a parent: as Kueue says, and as the operator counts."""
    request = queues.cluster.request
    lenders = {plural: request("GET", f"/apis/{API}/{plural}")["items"] for plural in ("clusterqueues", "cohorts")}
    used = [(workload(each).cluster_queue, usage(each)) for each in request("GET", WORKLOADS)["items"]]
    tree = QuotaTree(map(cluster_queue, lenders["clusterqueues"]), map(cohort, lenders["cohorts"]), used)
    said = {
        each["metadata"]["name"]: int(each["status"]["fairSharing"]["weightedShare"])
        for each in lenders["clusterqueues"] + lenders["cohorts"]
        if each.get("status", {}).get("fairSharing")
    }
    nodes = {node for queue in tree.queues.values() for node in (queue, *queue.above()) if node.parent}
    return {node.lender.name: (said.get(node.lender.name, -1), math.ceil(node.share()[1])) for node in nodes}


STORY = {"Preempted": 3, "AdmissionCheck": 1}
"""Kueue's sums take three back, and the check the fourth."""


def tell(queues: Queues, small: tuple[str, ...], large: str, more: Json | None = None) -> None:
    """Tell the story: all who are evicted leave for the large job, which runs, and come back when it has ended."""
    queues.kueue.configure(more or {})
    story = Story(queues)
    story.fill(*small)
    story.comes("large", large, 4, 60, "urgent")
    story.rests("large")
    assert queues.evictions() == STORY
    if more == FAIR:
        queues.cluster.wait(
            lambda: all(said == ours for said, ours in shares(queues).values()), "shares are as Kueue's"
        )
        assert any(said for said, _ in shares(queues).values())
    queues.delete("large")
    del story.jobs["large"]
    story.rests(*SMALL)
    assert queues.evictions() == STORY


def teams(queues: Queues, research: int, batch: int) -> None:
    """Add two teams with a cohort and a queue each, and with so many percents of cards."""
    queues.add_cohort("all")
    for team, cores in (("research", research), ("batch", batch)):
        queues.add_cohort(team, "all", cores)
        queues.add(f"{team}-jobs", 0, team)


@pytest.mark.promise("queues")
def test_a_queue_takes_back_its_own_from_another_branch_of_the_tree(queues: Queues) -> None:
    queues.add_cohort("all")
    for team, cores in (("research", 400), ("batch", 0)):
        queues.add_cohort(team, "all")
        queues.add(f"{team}-jobs", cores, team)
    tell(queues, ("batch-jobs",), "research-jobs")


def test_a_queue_without_quota_takes_back_that_of_its_cohort(queues: Queues) -> None:
    teams(queues, 400, 0)
    tell(queues, ("batch-jobs",), "research-jobs")


def test_nothing_is_taken_from_a_cohort_within_its_quota(queues: Queues) -> None:
    """There is more quota than cards."""
    queues.kueue.configure({})
    teams(queues, 400, 400)
    story = Story(queues)
    story.fill("batch-jobs")
    story.comes("large", "research-jobs", 4, 60, "urgent")
    queues.cluster.wait(lambda: "0 of 1" in queues.check("large")[1], "the check says why")
    story.rests(*SMALL)
    assert queues.evictions() == {}


def test_with_fair_sharing_a_queue_takes_its_share_by_its_weight(queues: Queues) -> None:
    queues.add_cohort("all", cores=400)
    queues.add("heavy", 0, "all", weight(3))
    queues.add("light", 0, "all", weight(1))
    tell(queues, ("light",), "heavy", FAIR)


def test_with_fair_sharing_a_cohort_takes_its_share_by_its_weight(queues: Queues) -> None:
    queues.add_cohort("all", cores=400)
    for name, some in (("heavy", "3"), ("light", "1")):
        queues.add_cohort(name, "all", weight=some)
        queues.add(f"{name}-jobs", 0, name)
    tell(queues, ("light-jobs",), "heavy-jobs", FAIR)


def test_with_fair_sharing_nobody_is_evicted_for_more_than_a_fair_share(queues: Queues) -> None:
    """Two queues of the same weight: 60 % of each of two cards would be less than what is left to the other queue."""
    queues.kueue.configure(FAIR)
    queues.add_cohort("all", cores=400)
    queues.add("one", 0, "all")
    queues.add("other", 0, "all")
    story = Story(queues)
    story.fill("other")
    story.comes("large", "one", 4, 60)
    queues.cluster.wait(lambda: bool(queues.workload("large").get("status", {}).get("conditions")), "Kueue has looked")
    story.rests(*SMALL)
    assert queues.evictions() == {}
    story.comes("fair", "one", 3, 60)
    story.rests("fair", others=1)
    assert queues.evictions() == {"Preempted": 2, "AdmissionCheck": 1}


def test_with_admission_fair_sharing_the_fourth_leaves_as_well(queues: Queues) -> None:
    """The jobs of two LocalQueues leave, those of the one with the higher usage first, for one of a third."""
    queues.add("team", 400, "", BY_USAGE_OF_QUEUES)
    for name in ("much", "little", "none"):
        queues.add_local(name, "team")
    tell(queues, ("much", "much", "much", "little"), "none", BY_USAGE)


def test_what_kueue_has_taken_back_in_vain_returns_once_the_workload_that_waits_is_deactivated(queues: Queues) -> None:
    """A pod outside of queues has half of a card: Kueue does not see that, and no workload can give it back."""
    cluster, story = queues.cluster, Story(queues)
    queues.kueue.configure({})
    cluster.create(pod("stranger", {COUNT: 1, PERCENT: 50}))
    cluster.wait_bound("stranger")
    queues.add("research", 400)
    queues.add("batch", 0)
    story.fill("batch", jobs=SMALL[:3])
    story.comes("large", "research", 4, 60)
    cluster.wait(lambda: "0 of 1" in queues.check("large")[1], "the check says why")
    cluster.settle()
    assert queues.evictions() == {"Preempted": 2}, "the check evicts nobody who does not help"
    cluster.patch(f"{WORKLOADS}/{queues.workload('large')['metadata']['name']}", {"spec": {"active": False}})
    story.rests(*SMALL[:3])
