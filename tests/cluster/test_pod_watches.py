"""Pods are watched by Kopf in a small cluster, by the plain watch in a large one: the same tests by both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.cluster import COUNT, MEMORY, PODS, pod
from cluster.shared import SharedPlane
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Answer, EndWatch, Hold
from faults.requests import FOLLOWED, listing, watching
from gpuledger.workflows.kinds import Watcher
from installation import USER

MOST_NODES = {Watcher.KOPF: 100, Watcher.PLAIN: 0}
KOPFS = "kopf.zalando.org/KopfFinalizerMarker"
"""The finalizer that every operator of Kopf has by default."""


@pytest.fixture(scope="module", params=MOST_NODES, ids=lambda watcher: watcher.name.lower())
def module_cluster(request: pytest.FixtureRequest, shared: SharedPlane) -> Iterator[FaultyCluster]:
    settings = {"release_delay_s": 2, "longest_release_s": 4, "kopf_pods_most_nodes": MOST_NODES[request.param]}
    with faulty_cluster(shared.lent(), settings) as running:
        assert running.installation.operator is not None
        assert f"pods are watched by {request.param.value}" in running.installation.operator.log_text()
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield a cluster with a node of two cards, and leave it without nodes, pods and faults."""
    module_cluster.add_nodes(1, gpus=2)
    yield module_cluster
    module_cluster.calm()
    module_cluster.clear()


@pytest.mark.promise("quiet")
def test_pods_are_bound_and_freed_and_who_watches_them_writes_nothing_to_them(cluster: FaultyCluster) -> None:
    offset = cluster.plane.audit_offset()
    names = [f"pod-{number}" for number in range(8)]
    marked = pod("marked", {COUNT: 1, MEMORY: 4000}, annotations={"kopf.zalando.org/last-handled-configuration": "{}"})
    marked["metadata"]["finalizers"] = [KOPFS]
    cluster.create(marked, *(pod(name, {COUNT: 1, MEMORY: 4000}) for name in names))
    cluster.wait_bound("marked", *names)
    for name in ("marked", *names):
        cluster.finish(name)
    cluster.wait(lambda: not any(cluster.holders().values()), "all shares are free")
    cluster.settle(QUIET_S)
    writes = [each for each in cluster.plane.api_writes(offset) if each.user == USER and each.resource == "pods"]
    assert {each.agent.partition("/")[0] for each in writes} <= {"gpuledger", "kube-scheduler"}, writes
    assert cluster.pod("marked")["metadata"]["finalizers"] == [KOPFS]
    cluster.patch(f"{PODS}/marked", {"metadata": {"finalizers": None}})


def test_a_share_is_free_soon_when_its_pod_goes_while_the_watch_has_a_gap(cluster: FaultyCluster) -> None:
    """The watch ends with 410, the pod is deleted before the new list is read: no event ever tells of it."""
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("pod")
    cluster.settle(QUIET_S)
    new_list = cluster.api.arm(listing("pods", FOLLOWED), Hold())
    cluster.api.arm(watching("pods", FOLLOWED), EndWatch(410)).wait()
    new_list.wait()
    cluster.delete("pod")
    new_list.release()
    cluster.wait(lambda: not any(cluster.holders().values()), "its share is free")


@pytest.mark.promise("operator crashes")
def test_the_operator_goes_on_when_the_watch_of_pods_fails(cluster: FaultyCluster) -> None:
    """The watch tells of an error, and is then refused because what it asks for is too old. Kopf ends with either."""
    watch, operator = watching("pods", FOLLOWED), cluster.installation.operator
    too_old = cluster.api.arm(watch, Answer(410))
    cluster.api.arm(watch, EndWatch(500)).wait()
    too_old.wait_done()
    cluster.create(pod("pod", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("pod")
    cluster.delete("pod")
    cluster.wait(lambda: not any(cluster.holders().values()), "its share is free")
    assert operator is not None
    assert operator.alive
