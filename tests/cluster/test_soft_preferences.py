"""What a pod prefers, where kube-scheduler is offered several nodes: it counts, and otherwise the policy does."""

from collections.abc import Iterator

import pytest

from cluster.cluster import COUNT, PERCENT, Cluster, Json, pod
from cluster.shared import SharedPlane

APP = {"app": "served"}


@pytest.fixture(scope="module")
def offering(shared: SharedPlane) -> Iterator[Cluster]:
    with shared.cluster({"nodes_offered": 3}) as cluster:
        yield cluster


@pytest.fixture
def cluster(offering: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without nodes and pods, and leave it so."""
    yield offering
    offering.clear()


def preferring(node_name: str) -> Json:
    """Return the affinity of a pod that prefers a node."""
    here = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    term = {"weight": 1, "preference": {"matchFields": [here]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def nodes_of(pods: list[Json]) -> set[str]:
    return {found["spec"]["nodeName"] for found in pods}


def test_a_preferred_node_is_chosen_among_those_that_are_offered(cluster: Cluster) -> None:
    nodes = cluster.add_nodes(3)
    names = [f"prefers-{number}" for number in range(12)]
    last = nodes[-1].name
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 25}, affinity=preferring(last)) for name in names))
    assert nodes_of(cluster.wait_bound(*names)) == {last}
    cluster.check_consistent()


def test_without_a_preference_the_policy_decides(cluster: Cluster) -> None:
    """Neither a node's free CPU nor the pods of one Service on it count: both would lead away from the fullest node."""
    cluster.add_nodes(4)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "served"}}
    cluster.request(
        "POST", "/api/v1/namespaces/default/services", service | {"spec": {"selector": APP, "ports": [{"port": 80}]}}
    )
    names = [f"indifferent-{number}" for number in range(16)]
    pods = [pod(name, {COUNT: 1, PERCENT: 25, "cpu": 1}) for name in names]
    for each in pods:
        each["metadata"]["labels"] = APP
    cluster.create(*pods)
    assert len(nodes_of(cluster.wait_bound(*names))) == 1
    cluster.check_consistent()


def test_full_nodes_take_no_pod_for_a_preference_and_a_burst_fills_all(cluster: Cluster) -> None:
    """Eight cards each: what is kept on several nodes for one pod keeps no other from the last card."""
    nodes = cluster.add_nodes(3)
    names = [f"whole-{number}" for number in range(24)]
    cluster.create(*(pod(name, {COUNT: 1}, affinity=preferring(nodes[1].name)) for name in names))
    cluster.wait_bound(*names)
    cluster.check_consistent()
