"""Pods that queue are nominated before kube-scheduler asks for them, and it then looks at that node only.

The setting is for large clusters; here it is on from a hundred nodes on, so this control plane is not shared with other
tests.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.cluster import COUNT, MEMORY, PERCENT, Cluster, pod
from cluster.cluster import PODS as PODS_PATH
from cluster.shared import SharedPlane
from gpuledger.formats.kubernetes.pod import bound_node, nominated_node

NODES, PODS = 100, 200
FILTERS = "gpuledger_filters_total"
LATE_ANSWERS = 0.05
"""So many of the cards are read at most, because the answer to a write was late."""
OUTCOMES = {
    outcome: f'gpuledger_nominated_ahead_total{{outcome="{outcome}"}}' for outcome in ("followed", "late", "refused")
}


@pytest.fixture(scope="module")
def nominating(shared: SharedPlane) -> Iterator[Cluster]:
    with shared.cluster({"nominate_ahead_nodes": NODES}) as cluster:
        yield cluster


@pytest.fixture
def cluster(nominating: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without nodes and pods, and leave it so."""
    yield nominating
    nominating.clear()


def outcomes(cluster: Cluster) -> Counter[str]:
    return Counter({outcome: int(cluster.metric(name)) for outcome, name in OUTCOMES.items()})


def test_pods_that_queue_are_placed_by_their_nominations_with_a_write_more_each_and_nothing_else(
    cluster: Cluster,
) -> None:
    cluster.add_nodes(NODES)
    scheduler, before = cluster.installation.scheduler, outcomes(cluster)
    assert scheduler is not None
    names = [f"pod-{number}" for number in range(PODS)]
    offset, filters = cluster.plane.audit_offset(), cluster.metric(FILTERS)
    with scheduler.halted():
        cluster.create(*(pod(name, {COUNT: 1, PERCENT: 25}) for name in names))
    cluster.wait(lambda: cluster.metric(FILTERS) > filters, "kube-scheduler asks")
    with scheduler.halted():
        cluster.settle()
        queued = [each for each in cluster.pods().values() if nominated_node(each) and not bound_node(each)]
        at_rest = outcomes(cluster)
        assert len(queued) >= PODS / 10
    cluster.wait_bound(*names)
    cluster.settle()
    cluster.check_consistent()
    assert outcomes(cluster)["followed"] - at_rest["followed"] >= len(queued) / 4
    happened = outcomes(cluster) - before
    assert happened["refused"] == 0
    ours = cluster.our_requests(offset)
    nominated = Counter(e.name for e in ours if (e.resource, e.subresource) == ("pods", "status"))
    assert max(nominated.values()) == 1
    assert happened["followed"] <= nominated.total() < PODS
    asked = Counter((e.verb, e.resource, e.subresource, e.code) for e in ours)
    assert asked.pop(("get", "gpuallocations", "", 200), 0) <= LATE_ANSWERS * PODS
    assert asked.pop(("patch", "pods", "status", 200)) == nominated.total()
    assert asked.pop(("patch", "gpuallocations", "status", 200)) <= PODS
    assert asked == {("create", "pods", "binding", 201): PODS}, "none was refused"


def test_kube_scheduler_clears_the_nomination_of_a_pod_that_fits_nowhere(cluster: Cluster) -> None:
    """It would keep CPU and memory for the pod there as long as it waits."""
    node, *_ = cluster.add_nodes(2)
    gated = pod("large", {COUNT: 1, MEMORY: 1_000_000}, schedulingGates=[{"name": "example.com/wait"}])
    cluster.create(gated)
    cluster.patch(f"{PODS_PATH}/large/status", {"status": {"nominatedNodeName": node.name}})
    cluster.patch(f"{PODS_PATH}/large", {"spec": {"schedulingGates": None}})
    cluster.wait_refused("large", "no card as large as 1000000 MiB")
    cluster.wait(lambda: "nominatedNodeName" not in cluster.pod("large")["status"], "the nomination is cleared")
