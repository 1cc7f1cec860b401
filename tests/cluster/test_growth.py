"""Pods that find no cards get nodes from Karpenter, with its own program: as many as they need, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.claims import CLAIMS, OUR_CLASS, claim, claiming, create_class, request
from cluster.cluster import COUNT, MEMORY, Cluster, pod
from cluster.gangs import gang, names
from cluster.karpenter_scene import GPUS, MODEL, KarpenterScene
from cluster.kubernetes import FILLS_IN, MINOR
from control_plane import ControlPlane
from fakes.objects import a_node_object
from gpuledger.agent.simulated import fake_node
from gpuledger.formats.kubernetes.stand_in import STAND_IN_LABEL
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from installation import MANIFESTS, NAMESPACE, NO_KUBELET, NOTHING_RUNS, Installation
from karpenter import POOL, POOL_LABEL, Karpenter

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(900)

TEMPLATE = {
    "name": "eight-cards",
    "labels": {POOL_LABEL: POOL},
    "cards": GPUS,
    "model": MODEL,
    "memory_mib": 40_960,
    "cpu": 128,
    "memory": "1Ti",
}
SETTINGS = {**NO_KUBELET, **NOTHING_RUNS, "growth": "stand-ins", "growth_delay_s": 1.0, "node_templates": [TEMPLATE]}
COMES_S = 120.0
UNCONSOLIDATABLE = "Unconsolidatable"


@pytest.fixture(scope="module")
def scene() -> Iterator[KarpenterScene]:
    """Yield a cluster without nodes, of whose pods Karpenter sees stand-ins alone."""
    if not FILLS_IN:
        pytest.skip(f"policies of Kubernetes {MINOR} fill in no pods")
    with ControlPlane.run(every_controller=True) as plane:
        installation = Installation(plane, SETTINGS)
        installation.start()
        cluster = Cluster(plane, installation)
        command = [
            sys.executable,
            "-m",
            "gpuledger",
            "admission-policies",
            "--settings",
            str(installation.settings_file),
        ]
        for kind in ("mutating", "validating"):
            printed = subprocess.check_output([*command, "--kind", kind], text=True)
            plane.kubectl("apply", "-f", "-", stdin=printed)
        plane.kubectl("apply", "-k", str(MANIFESTS / "growth"))
        create_class(cluster)
        Karpenter(plane).start()
        scene = KarpenterScene(cluster)
        scene.open()
        yield scene
        cluster.close()


@pytest.fixture(autouse=True)
def cleared(scene: KarpenterScene) -> Iterator[None]:
    yield
    scene.clear()


def stand_ins(scene: KarpenterScene) -> list[Json]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={STAND_IN_LABEL}"
    return list(scene.cluster.request("GET", path)["items"])


def needed(scene: KarpenterScene, pods: list[Json], *others: Json) -> int:
    """Return how many nodes `simulate` finds for pods, where there is none."""
    node = a_node_object("model", fake_node("model", GPUS, MODEL).cards)
    node["metadata"]["annotations"][SERVES_CLAIMS_ANNOTATION] = "true"
    node["status"]["allocatable"] |= {"cpu": "128", "memory": "1Ti"}
    file = scene.cluster.plane.directory / "wanted.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, OUR_CLASS, *others, *pods]}))
    command = [sys.executable, "-m", "gpuledger", "simulate", "-f", str(file)]
    run = subprocess.run(
        [*command, "--add-nodes", "needed", "--like", "model", "-o", "json"],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(run.stdout)
    assert found["fit"] == len(pods), found
    return 1 + int(found["neededNodes"])


def test_as_many_nodes_come_as_simulate_says_and_all_pods_run(scene: KarpenterScene) -> None:
    cluster = scene.cluster
    whole = [pod(f"whole-{number}", {COUNT: 5}) for number in range(2)]
    shares = [pod(f"share-{number}", {COUNT: 1, MEMORY: 30_000}) for number in range(10)]
    members = gang("train", 2, **{COUNT: 8})
    five = claim("five", request(count=5))
    claims = [claiming("claim", named=["five"])]
    pods = [*whole, *shares, *members, *claims]
    count = needed(scene, pods, five)
    cluster.request("POST", CLAIMS, five)
    cluster.create(*pods)
    scene.wait(lambda: all(each["spec"].get("nodeName") for each in cluster.pods().values()), "all run", COMES_S)
    assert len(scene.nodes()) == count
    cluster.wait(lambda: not stand_ins(scene), "no stand-in is left")
    for node_name in scene.nodes():
        scene.wait_looked_at(node_name, UNCONSOLIDATABLE)
    assert (len(scene.nodes()), stand_ins(scene), scene.leaving()) == (count, [], [])
    assert len(cluster.pods()) == len(names(pods))
