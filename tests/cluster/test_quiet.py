"""What is not written: nothing while nothing happens, and nothing about a pod that goes on waiting."""

import time

import pytest

from cluster.cluster import COUNT, MEMORY, PERCENT, Cluster, pod
from effort import times
from installation import USER

pytestmark = pytest.mark.promise("quiet")

IDLE_S = times(15, 60)
RETRIES = times(25, 100)


def test_a_pod_that_waits_is_patched_once_at_most_however_often_it_is_tried(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("base", {COUNT: 1, PERCENT: 50}))
    cluster.wait_bound("base")
    offset = cluster.plane.audit_offset()
    cluster.create(pod("stuck", {COUNT: 1, MEMORY: 30000}))
    cluster.wait_refused("stuck", "no card with 30000 MiB free")
    tries = 'gpuledger_refusals_total{reason="no-memory"}'
    before, number = cluster.metric(tries), 0
    while cluster.metric(tries) - before < RETRIES:
        number += 1
        assert number <= 10 * RETRIES, "the scheduler does not try again"
        cluster.create(pod(f"small-{number}", {COUNT: 1, PERCENT: 10}))
        cluster.wait_bound(f"small-{number}")
        cluster.delete(f"small-{number}")
    patches = [
        event
        for event in cluster.plane.api_writes(offset)
        if event.user == USER and (event.resource, event.name) == ("pods", "stuck")
    ]
    told = [event for event in patches if event.subresource == "status"]  # by kube-scheduler, too: it has our account
    assert len(patches) - len(told) <= 1, patches
    assert len([event for event in told if not event.agent.startswith("kube-scheduler")]) <= 1, told
    assert len([m for m in cluster.messages("stuck") if "no card with 30000 MiB free" in m]) >= 1


def test_nothing_is_written_while_nothing_happens(cluster: Cluster) -> None:
    cluster.add_nodes(2)
    names = [f"pod-{i}" for i in range(20)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 25}) for name in names), pod("stuck", {COUNT: 9}))
    cluster.wait_bound(*names)
    cluster.wait_refused("stuck", "fewer than 9 GPUs on the node")
    cluster.wait(lambda: bool(cluster.condition("stuck")), "it is told why it waits")
    cluster.settle()
    offset = cluster.plane.audit_offset()
    time.sleep(IDLE_S)
    assert cluster.our_writes(offset, ["pods", "nodes", "gpuallocations"]) == []
    for kind in ("pods", "nodes", "gpuallocations"):
        for item in cluster.objects(kind):
            assert "kopf" not in str(item["metadata"].get("annotations", {}).keys()), item["metadata"]["name"]
            assert not item["metadata"].get("finalizers"), item["metadata"]["name"]
