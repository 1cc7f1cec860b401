"""Pods with ResourceClaims beside pods with resources, on the same cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.claims import (
    TEMPLATES,
    claiming,
    claims_of,
    create_class,
    serve_claims,
    share,
    template,
)
from cluster.cluster import COUNT, MEMORY, Cluster, pod
from gpuledger.agent.fake_nodes import FakeNode


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[list[FakeNode]]:
    cluster.plane.kubectl("apply", "-f", "/tmp/w/rbac.yaml")
    create_class(cluster)
    found = cluster.add_nodes(1, gpus=2)
    serve_claims(cluster, *found)
    yield found


def test_a_card_is_shared_by_a_pod_with_resources_and_one_with_a_claim(cluster: Cluster, nodes: list[FakeNode]) -> None:
    cluster.request("POST", TEMPLATES, template("quarter", share("10Gi", 30)))
    cluster.create(claiming("by-claim", ["quarter"]))
    cluster.wait_bound("by-claim")
    cluster.create(pod("by-limits", {COUNT: 1, MEMORY: 10240}))
    (claimed, limited) = cluster.wait_bound("by-claim", "by-limits")
    (found,) = claims_of(cluster, "by-claim")
    cluster.check_consistent()
