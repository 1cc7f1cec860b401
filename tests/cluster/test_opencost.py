"""OpenCost beside gpuledger, with its own program: pods are charged for the parts of cards that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.claims import CLAIMS, claim, claiming, create_class, remove_claims, share
from cluster.cluster import CORES, COUNT, NODES, PERCENT, Cluster, container, pod
from cluster.opencost_scene import PRICED_LABEL, OpenCost, beside_opencost, play_containers
from cluster.shared import SharedPlane
from installation import NO_KUBELET

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(1200)  # a first build of Prometheus takes minutes

PRICE = 2.0
"""Of a card, for an hour."""

QUARTERS = tuple(f"quarter-{number}" for number in range(1, 5))
QUARTER = {COUNT: 1, PERCENT: 25}
HALF = {COUNT: 1, PERCENT: 25, CORES: 50}

HELD = {
    **dict.fromkeys((*QUARTERS, "with-logs", "by-claim"), 0.25),
    **dict.fromkeys(("whole", "two-halves", "foreign"), 1.0),
}
"""Pod -> the cards that it holds."""

MINUTES = 3
SLOW_S = 360.0
"""OpenCost exposes what it has seen once a minute."""


@pytest.fixture(scope="module")
def cluster(shared: SharedPlane) -> Iterator[Cluster]:
    """Yield a cluster with a node of four cards, and another without gpuledger, on each of which pods run."""
    with shared.cluster(NO_KUBELET) as cluster:
        (node,) = cluster.add_nodes(1, gpus=4)
        labels = {PRICED_LABEL: "4", "nvidia.com/gpu.replicas": "10"}
        cluster.patch(f"{NODES}/{node.name}", {"metadata": {"labels": labels}})
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "10", COUNT: 1}
        cluster.create_node("other", amounts, labels={PRICED_LABEL: "1"})
        cluster.create(*(pod(name, QUARTER) for name in QUARTERS))
        cluster.create(pod("whole", {COUNT: 1}), pod("two-halves", container(HALF, "a"), container(HALF, "b")))
        cluster.create(pod("with-logs", container(QUARTER), container({}, "logs")))
        create_class(cluster)
        cluster.request("POST", CLAIMS, claim("quarter", share("10Gi")))
        cluster.create(claiming("by-claim", named=["quarter"]))
        cluster.create(pod("foreign", {COUNT: 1}, nodeName="other", schedulerName="default-scheduler"))
        cluster.wait_bound(*HELD)
        play_containers(cluster, *HELD)
        yield cluster
        cluster.clear()
        remove_claims(cluster)


@pytest.fixture(scope="module")
def opencost(cluster: Cluster) -> Iterator[OpenCost]:
    """Yield it when each pod has been charged for some minutes."""
    with beside_opencost(cluster, PRICE) as opencost:

        def has_charged() -> bool:
            found = opencost.allocations()
            return all(found.get(name, {}).get("minutes", 0) >= MINUTES for name in HELD)

        cluster.wait(has_charged, f"OpenCost has charged each pod for {MINUTES} minutes", SLOW_S)
        yield opencost


def test_pods_are_charged_for_the_parts_of_cards_that_they_hold(opencost: OpenCost) -> None:
    found = opencost.allocations()
    hours = {name: found[name]["minutes"] / 60 for name in HELD}
    assert {name: found[name]["gpuHours"] / hours[name] for name in HELD} == pytest.approx(HELD)
    costs = {name: PRICE * part * hours[name] for name, part in HELD.items()}
    assert {name: found[name]["gpuCost"] for name in HELD} == pytest.approx(costs, abs=1e-4)


def test_without_the_rules_opencost_takes_each_share_for_a_card(opencost: OpenCost) -> None:
    """So the rules are still needed: this is what OpenCost exposes by itself."""
    found = opencost.evaluated("sum by (pod) (opencost_container_gpu_allocation > 0)")
    expected = {(name,): 1.0 for name in HELD if name != "by-claim"} | {("two-halves",): 2.0}
    assert found == expected


def test_opencost_counts_cards_by_the_labels_of_their_node(opencost: OpenCost) -> None:
    assert opencost.evaluated('max(node_gpu_count{node!="other"})') == {(): 4.0}
