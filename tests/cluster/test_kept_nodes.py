"""The annotations by which autoscalers keep a node, on a real API server, with the account's own permissions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import COUNT, NODES, Cluster, pod
from cluster.shared import SharedPlane
from gpuledger.formats.kubernetes.kept_node import KARPENTER, KEEPING, KEPT_ANNOTATION
from installation import MANIFESTS, NO_KUBELET, NOTHING_RUNS

Json = dict[str, Any]

pytestmark = pytest.mark.promise("autoscalers")


@pytest.fixture(scope="module")
def keeping(shared: SharedPlane) -> Iterator[Cluster]:
    """Yield a cluster whose operator keeps nodes."""
    settings = {**NO_KUBELET, **NOTHING_RUNS, "keep_nodes_in_use": True}
    with shared.cluster(settings) as cluster:
        cluster.plane.kubectl("apply", "-k", str(MANIFESTS / "keep-nodes"))
        yield cluster


def kept(cluster: Cluster, name: str) -> Json:
    found = cluster.request("GET", f"{NODES}/{name}")["metadata"]["annotations"]
    return {key: found[key] for key in (*KEEPING, KEPT_ANNOTATION) if key in found}


def test_a_node_is_annotated_once_over_restarts_and_let_go_when_it_is_empty(keeping: Cluster) -> None:
    first, second = [node.name for node in keeping.add_nodes(2, gpus=1)]
    keeping.patch(f"{NODES}/{second}", {"metadata": {"annotations": {KARPENTER: "true"}}})
    offset = keeping.plane.audit_offset()
    keeping.create(pod("one", {COUNT: 1}), pod("two", {COUNT: 1}))
    keeping.wait_bound("one", "two")
    both = (first, second)
    keeping.wait(lambda: all(KEPT_ANNOTATION in kept(keeping, each) for each in both), "both are kept")
    for _ in range(2):
        keeping.restart_operator()
    assert len(keeping.our_writes(offset, ["nodes"])) == 2
    keeping.installation.kill_operator()
    keeping.delete("one", "two")
    keeping.restart_operator()
    keeping.wait(lambda: not kept(keeping, first), "a node without pods is let go", 90.0)
    keeping.wait(lambda: kept(keeping, second) == {KARPENTER: "true"}, "a person's own word stays")
    assert len(keeping.our_writes(offset, ["nodes"])) == 4
    keeping.clear()


def test_with_the_setting_off_annotations_are_taken_away(keeping: Cluster) -> None:
    (node,) = keeping.add_nodes(1, gpus=1)
    keeping.create(pod("one", {COUNT: 1}))
    keeping.wait(lambda: KEPT_ANNOTATION in kept(keeping, node.name), "it is kept")
    with keeping.other_settings(keep_nodes_in_use=False):
        keeping.wait(lambda: not kept(keeping, node.name), "it is let go, though its card is held")
    keeping.wait(lambda: KEPT_ANNOTATION in kept(keeping, node.name), "it is kept again")
    keeping.clear()
