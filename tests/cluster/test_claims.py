"""Pods with ResourceClaims beside pods with resources, on the same cards."""

from __future__ import annotations

import json
from functools import partial

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    claim,
    claiming,
    claims,
    claims_of,
    create_class,
    opaque,
    request,
    results,
    serve_claims,
    share,
    template,
)
from cluster.cluster import COUNT, MEMORY, Cluster, pod, uuids
from gpuledger.agent.simulated import FakeNode

pytestmark = pytest.mark.promise("claims")


@pytest.fixture
def nodes(cluster: Cluster) -> list[FakeNode]:
    create_class(cluster)
    found = cluster.add_nodes(1, gpus=2)
    serve_claims(cluster, *found)
    return found


def test_a_card_is_shared_by_a_pod_with_resources_and_one_with_a_claim(cluster: Cluster, nodes: list[FakeNode]) -> None:
    cluster.request("POST", TEMPLATES, template("quarter", share("10Gi", 30)))
    cluster.create(claiming("by-claim", ["quarter"]))
    (claimed,) = cluster.wait_bound("by-claim")
    cluster.create(pod("by-limits", {COUNT: 1, MEMORY: 10240}))
    (limited,) = cluster.wait_bound("by-limits")
    assert uuids(claimed) == uuids(limited)
    (stored,) = claims_of(cluster, "by-claim")
    (result,) = results(stored)
    (uuid,) = uuids(claimed)
    assert (result["pool"], result["device"]) == (nodes[0].name, uuid.lower())
    assert [each["uid"] for each in stored["status"]["reservedFor"]] == [claimed["metadata"]["uid"]]
    cluster.check_consistent()


def test_pods_that_name_one_claim_have_one_share_as_long_as_one_of_them_lives(
    cluster: Cluster, nodes: list[FakeNode]
) -> None:
    cluster.request("POST", CLAIMS, claim("ours", share("10Gi", 30)))
    for name in ("first", "second", "third"):
        cluster.create(claiming(name, named=["ours"]))
        cluster.wait_bound(name)
    assert held_by(cluster) == ["first"]
    for _ in range(2):
        (holder,) = held_by(cluster)
        cluster.finish(holder)
        cluster.wait(partial(is_handed_over, cluster, holder), f"{holder} has handed its share over")
    (last,) = held_by(cluster)
    cluster.finish(last)
    cluster.wait(lambda: not held_by(cluster), "the share ends with the last pod")
    cluster.wait(lambda: not results(claims(cluster)["ours"]), "and so does the allocation")
    cluster.create(claiming("fourth", named=["ours"]))
    cluster.wait_bound("fourth")
    assert held_by(cluster) == ["fourth"]


def test_a_pod_waits_for_its_template_and_is_tried_as_soon_as_it_is_there(
    cluster: Cluster, nodes: list[FakeNode]
) -> None:
    cluster.create(claiming("early", ["late"]))
    cluster.wait_refused("early", "claim c0: there is no ResourceClaimTemplate late in namespace default")
    cluster.request("POST", TEMPLATES, template("late", share("1Gi")))
    cluster.wait_bound("early", timeout_s=5)


def is_handed_over(cluster: Cluster, name: str) -> bool:
    """Return whether another pod has what a pod had; never is it nobody's."""
    (holder,) = held_by(cluster)
    return holder != name


def held_by(cluster: Cluster) -> list[str]:
    """Return the names of all holders."""
    return [holder["pod"] for holders in cluster.holders().values() for holder in holders]


def test_a_claim_that_no_json_can_change_is_not_shared_and_its_pod_is_told_what_to_do(
    cluster: Cluster, nodes: list[FakeNode]
) -> None:
    """The API server compares a configuration's bytes with those that it was sent, and shows others."""
    body = claim("blanks", request(), config=[opaque(memoryMiB=1000)])
    cluster.request("POST", CLAIMS, json.dumps(body).encode())
    cluster.create(claiming("user", named=["blanks"]))
    assert "anew with kubectl" in cluster.wait_refused("user", "can't be protected")
    cluster.wait(lambda: not any(cluster.holders().values()), "it holds nothing")
    cluster.request("DELETE", f"{CLAIMS}/blanks")
    cluster.request("POST", CLAIMS, body)
    cluster.wait_bound("user")
    cluster.check_consistent()
