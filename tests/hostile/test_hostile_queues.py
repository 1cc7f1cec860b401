"""What a user who owns a queue of Kueue can put into it: others' pods, and their jobs, have their turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.cluster import COUNT, MEMORY, PERCENT, Cluster, container
from cluster.queues import CORES, QUEUE_LABEL, Queues, queues_cluster
from cluster.queues import JOBS as ORDINARY_JOBS
from hostile.acts import come_and_go, going_on
from hostile.catalogue import NAMESPACE, PATHS, WORKLOADS, a_job, a_pod
from hostile.conftest import delete_all, rests
from hostile.others import BOUND_WITHIN_S, TIMEOUT_S, TOLD_AFTER_S, Others, Say, create, judged, prepare
from kueue import API

Json = dict[str, Any]

pytestmark = pytest.mark.cluster

QUEUE = "theirs"
LOCAL_QUEUES = f"/apis/{API}/namespaces/{NAMESPACE}/localqueues"
JOBS = PATHS["Job"]
JOB_WITHIN_S = 2 * BOUND_WITHIN_S
"""Kueue's own steps until a job is admitted take a while, too."""


def a_queued_job(name: str, pods: int, limits: Json) -> Json:
    """Return a job of the hostile user's queue."""
    job = a_job(name, pods, container({**limits, CORES: 1}), suspend=True)
    job["metadata"]["labels"] = {QUEUE_LABEL: QUEUE}
    return job


def a_workload(name: str, pods: int) -> Json:
    """Return a workload as Kueue makes them of jobs, written by hand."""
    template = {"spec": a_pod("", container({COUNT: 8, MEMORY: 40_000, CORES: 1}))["spec"] | {"restartPolicy": "Never"}}
    sets = [{"name": f"set-{number}", "count": pods, "template": template} for number in range(8)]
    spec = {"queueName": QUEUE, "podSets": sets, "active": True}
    return {"apiVersion": API, "kind": "Workload", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


QUEUED: dict[str, Callable[[], list[Json]]] = {
    "100 jobs of 256 pods that do not fit": lambda: [
        a_queued_job(f"wide-{n}", 256, {COUNT: 8, MEMORY: 39_000 + n}) for n in range(100)
    ],
    "100 workloads by hand": lambda: [a_workload(f"by-hand-{n}", 30) for n in range(100)],
    "100 jobs, each with eight containers of its own": lambda: [
        {
            **(job := a_queued_job(f"eight-{n}", 20, {})),
            "spec": {
                **job["spec"],
                "template": {
                    "spec": {
                        **job["spec"]["template"]["spec"],
                        "containers": [
                            container({COUNT: 2, MEMORY: 39_000 + 8 * n + c, CORES: 1}, f"c{c}") for c in range(8)
                        ],
                    }
                },
            },
        }
        for n in range(100)
    ],
}
ALWAYS = "100 jobs of 256 pods that do not fit"


@pytest.fixture(scope="module")
def queues() -> Iterator[Queues]:
    with queues_cluster({"tell_waiting_after_s": TOLD_AFTER_S}) as found:
        cluster = found.cluster
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        found.add("ordinary", 10_000)
        found.add(QUEUE, 10**9, cohort="")
        body = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": QUEUE}, "spec": {"clusterQueue": QUEUE}}
        cluster.request("POST", LOCAL_QUEUES, body)
        cluster.add_nodes(1)
        prepare(cluster)
        yield found


@pytest.fixture
def cluster(queues: Queues) -> Iterator[Cluster]:
    """Yield the cluster; what was created in it is gone afterwards."""
    yield queues.cluster
    queues.delete(*(job["metadata"]["name"] for job in queues.cluster.request("GET", ORDINARY_JOBS)["items"]))
    for path in (WORKLOADS, *PATHS.values()):
        delete_all(queues.cluster, path)
    queues.cluster.wait(lambda: not queues.cluster.request("GET", JOBS)["items"], "no job is left")
    queues.cluster.delete(*queues.cluster.pods())
    manager = queues.kueue.manager
    assert manager is not None
    queues.cluster.wait(lambda: rests(queues.cluster, manager.pid), "operator and Kueue have read that all is gone")


def job_comes(queues: Queues, others: Others, name: str) -> None:
    """Create an ordinary job, and wait until it runs."""
    begin_s = time.monotonic()
    queues.job(name, "ordinary", {COUNT: 1, PERCENT: 1}, 1)
    queues.wait_running(name, timeout_s=TIMEOUT_S)
    others.slowest_s["a job"] = max(others.slowest_s.get("a job", 0), time.monotonic() - begin_s)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [k if k == ALWAYS else pytest.param(k, marks=pytest.mark.long) for k in QUEUED])
def test_a_queue(cluster: Cluster, queues: Queues, kind: str, say: Say) -> None:
    """While the ledger changes all the time: whoever waits is looked at again then."""
    brief = come_and_go(cluster, *(a_pod(f"brief-{n}", container({COUNT: 1, MEMORY: 1})) for n in range(4)))
    with judged(cluster, kind, say, within_s=JOB_WITHIN_S) as others:
        taken = sum(create(cluster, body) for body in QUEUED[kind]())
        assert taken
        with going_on(brief):
            others.come("first")
            job_comes(queues, others, "job-first")
            others.come("last")
            job_comes(queues, others, "job-last")
    assert max(others.slowest_s[kind] for kind in ("a pod", "a gang", "a claim")) < BOUND_WITHIN_S / others.share
