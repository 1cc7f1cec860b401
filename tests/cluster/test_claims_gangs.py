"""Gangs whose pods bring claims start together, and quotas count claims: as for pods with resources."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.gang_rule import GANG, MINIMUM
from cluster.claims import TEMPLATES, check_claims, claiming, claims, request, results, share, template
from cluster.cluster import COUNT, MEMORY, Cluster, pod, uuids
from cluster.gangs import bound, held

Json = dict[str, Any]

QUOTAS = "/api/v1/namespaces/default/resourcequotas"


@pytest.fixture
def cluster(claims_cluster: Cluster) -> Cluster:
    claims_cluster.request("POST", TEMPLATES, template("whole", request()))
    claims_cluster.request("POST", TEMPLATES, template("half", share("20Gi")))
    return claims_cluster


def members(name: str, count: int, by_claim: int) -> list[Json]:
    """Return a gang that needs all of its pods, of which some ask for a whole card by a claim, the others by limits."""
    pods = [
        claiming(f"{name}-{number}", ["whole"]) if number < by_claim else pod(f"{name}-{number}", {COUNT: 1})
        for number in range(count)
    ]
    for each in pods:
        each["metadata"]["labels"] = {GANG: name, MINIMUM: str(count)}
    return pods


@pytest.mark.parametrize("by_claim", [4, 2], ids=["all by claims", "some by claims"])
def test_a_gang_starts_together_when_its_last_pod_has_come(cluster: Cluster, by_claim: int) -> None:
    cluster.add_nodes(2, gpus=2)
    *first, last = members("gang", 4, by_claim)
    cluster.create(*first)
    cluster.settle()
    assert (bound(cluster), held(cluster)) == (set(), 0)
    assert not any(map(results, claims(cluster).values()))
    cluster.create(last)
    found = cluster.wait_bound(*(each["metadata"]["name"] for each in (*first, last)))
    assert len({card for each in found for card in uuids(each)}) == 4
    cluster.settle()
    cluster.check_consistent()
    check_claims(cluster)


def test_a_gang_with_claims_waits_as_a_whole_for_a_card_that_another_claim_has(cluster: Cluster) -> None:
    cluster.add_nodes(2, gpus=2)
    cluster.create(claiming("before", ["whole"]))
    cluster.wait_bound("before")
    pods = members("gang", 4, 3)
    names = [each["metadata"]["name"] for each in pods]
    cluster.create(*pods)
    cluster.wait(lambda: all(map(cluster.messages, names)), "all members are refused")
    assert (bound(cluster), held(cluster)) == ({"before"}, 1)
    cluster.finish("before")
    cluster.wait_bound(*names)
    cluster.delete("before")
    cluster.settle()
    cluster.check_consistent()
    check_claims(cluster)


@pytest.mark.promise("claims")
def test_a_quota_of_memory_counts_claims_and_limits_together(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    hard = {"limits.nvidia.com/gpumem": "40960"}
    cluster.request("POST", QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    try:
        cluster.create(claiming("claimed", ["half"]))
        cluster.wait_bound("claimed")
        cluster.create(pod("limited", {COUNT: 1, MEMORY: 20000}))
        cluster.wait_bound("limited")
        cluster.create(claiming("more", ["half"]))
        assert "quota" in cluster.wait_refused("more", "gpus")
        cluster.finish("claimed")
        cluster.wait_bound("more")
    finally:
        cluster.request("DELETE", QUOTAS)
