"""Beside Karpenter, with its own program: what runs is left alone, and nodes without pods go.

Karpenter says of each node that it looks at what it found, as an Event. So nothing here waits for a time in which
nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.claims import CLAIMS, claim, claiming, request
from cluster.cluster import COUNT, MEMORY, pod
from cluster.dry_runs import as_user, bare, create
from cluster.karpenter_scene import KarpenterScene, beside_karpenter
from gpuledger.formats.dialects.vocabulary import HIDING
from gpuledger.formats.kubernetes.kept_node import KARPENTER, KEEPING, KEPT_ANNOTATION

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)

UNCONSOLIDATABLE, BLOCKED = "Unconsolidatable", "DisruptionBlocked"
SLOW_S = 120.0
"""It looks every ten seconds, and checks for 15 s what it has decided."""

DEFAULT = "/api/v1/namespaces/default"
WHOLE = {COUNT: 5}
"""Two of these do not fit on eight cards, and do on 80 slots."""


@pytest.fixture(scope="module")
def scene() -> Iterator[KarpenterScene]:
    """Yield a cluster without nodes, with the policies that hide pods."""
    with beside_karpenter({}, ["mutating"], "keep-nodes") as scene:
        yield scene


@pytest.fixture(autouse=True)
def cleared(scene: KarpenterScene) -> Iterator[None]:
    yield
    scene.clear()


def admit(scene: KarpenterScene, *, hides: bool) -> None:
    """Turn admission on or off in the namespace, and wait until that has come about."""
    label = None if hides else "true"
    scene.cluster.patch(DEFAULT, {"metadata": {"labels": {"gpuledger.dev/ignore": label}}})
    user = as_user(scene.cluster.plane, "user")
    scene.cluster.wait(lambda: (HIDING in str(create(user, bare(WHOLE)))) is hides, "admission is as it should be")
    user.close()


def node_of(scene: KarpenterScene, name: str) -> str:
    return str(scene.cluster.pod(name)["spec"]["nodeName"])


def test_without_protection_karpenter_evicts_a_pod_that_has_no_other_place(scene: KarpenterScene) -> None:
    """The defect that the others are about; and the proof that they would see it."""
    admit(scene, hides=False)
    scene.add_nodes(2)
    scene.cluster.create(pod("one", WHOLE), pod("two", WHOLE))
    first, second = scene.cluster.wait_bound("one", "two")
    assert first["spec"]["nodeName"] != second["spec"]["nodeName"]
    scene.let_go("100%")
    scene.cluster.wait(lambda: len(scene.cluster.pods()) < 2 or bool(scene.leaving()), "a pod is evicted", SLOW_S)


def test_whole_cards_shares_and_claims_stay_and_an_empty_node_goes(scene: KarpenterScene) -> None:
    cluster = scene.cluster
    admit(scene, hides=True)
    scene.add_nodes(1)
    shares = [pod(f"share-{number}", {COUNT: 1, MEMORY: 30_000}) for number in range(4)]
    cluster.create(*shares)
    cluster.wait_bound(*(each["metadata"]["name"] for each in shares))
    scene.add_nodes(3)
    cluster.request("POST", CLAIMS, claim("five", request(count=5)))
    cluster.create(pod("one", WHOLE), pod("two", WHOLE), claiming("claim", named=["five"]))
    cluster.wait_bound("one", "two", "claim")
    before = {name: each["metadata"]["uid"] for name, each in cluster.pods().items()}
    used = {each["spec"]["nodeName"] for each in cluster.pods().values()}
    assert len(used) == 4
    (empty,) = scene.add_nodes(1)

    scene.let_go("100%")
    cluster.wait(lambda: empty not in scene.nodes(), "the empty node goes", SLOW_S)
    for node_name in used:
        scene.wait_looked_at(node_name, UNCONSOLIDATABLE)
        # Of pods with claims, Karpenter says by itself that it can't place them.
        hides = node_name != node_of(scene, "claim")
        assert any(HIDING in text for text in scene.said(node_name, UNCONSOLIDATABLE)) or not hides
    assert {name: each["metadata"]["uid"] for name, each in cluster.pods().items()} == before
    assert scene.leaving() == []
    assert scene.nodes().keys() == used


def test_nodes_in_use_are_kept_by_their_annotations_and_go_when_their_pods_have(scene: KarpenterScene) -> None:
    cluster = scene.cluster
    admit(scene, hides=False)
    with cluster.other_settings(keep_nodes_in_use=True):
        scene.add_nodes(2)
        cluster.create(pod("one", WHOLE), pod("two", WHOLE))
        cluster.wait_bound("one", "two")
        cluster.wait(lambda: all(map(is_kept, scene.nodes().values())), "both nodes are kept")
        scene.let_go("100%")
        for name in scene.nodes():
            scene.wait_looked_at(name, BLOCKED, KARPENTER)
        assert scene.leaving() == []
        gone = node_of(scene, "one")
        cluster.delete("one")
        cluster.wait(lambda: gone not in scene.nodes(), "the node that is empty goes", SLOW_S)
        assert is_kept(scene.nodes()[node_of(scene, "two")])
    cluster.wait(lambda: not any(map(is_kept, scene.nodes().values())), "with the setting off, no node is kept")


def is_kept(node: Json) -> bool:
    return bool({*KEEPING, KEPT_ANNOTATION} <= node["metadata"].get("annotations", {}).keys())
