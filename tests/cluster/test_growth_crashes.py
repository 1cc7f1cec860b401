"""The operator dies at each step of asking for a node and of letting it in: nothing is left over, nothing is doubled.

The proxy is the point at which it dies. *Before* a request: it is held, the operator is killed, and the request never
arrives. *After* a request: it is carried out, and the operator is killed before it sees the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from cluster.cluster import COUNT, NODES, Json, pod
from control_plane import ControlPlane
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Hold
from faults.requests import Match, Request
from gpuledger.agent.simulated import fake_node
from gpuledger.formats.annotations import STAND_IN_LABEL
from installation import MANIFESTS, NAMESPACE, NOTHING_RUNS

GPUS, MODEL, LABELS = 4, "A100-40GB", {"pool": "gpus"}
TEMPLATE = {"name": "four-cards", "labels": LABELS, "cards": GPUS, "memory_mib": 40_960}
SETTINGS = {**NOTHING_RUNS, "growth": "stand-ins", "growth_delay_s": 0.5, "node_templates": [TEMPLATE]}
Moment = Literal["request", "answer"]
MOMENTS: tuple[Moment, ...] = ("request", "answer")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def _of_stand_ins(kind: str) -> Match:
    def holds(request: Request) -> bool:
        return request.kind == kind and request.path.startswith(PODS)

    return Match(f"{kind} of a stand-in", holds)


CREATE, SHOW, DELETE = map(_of_stand_ins, ("create pods", "patch pods", "delete pods"))


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[FaultyCluster]:
    """Yield a cluster that has no nodes."""
    with faulty_cluster(ControlPlane.run(), SETTINGS) as running:
        running.plane.kubectl("apply", "-k", str(MANIFESTS / "growth"))
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield the cluster, and check afterwards that no stand-in is left where no pod waits."""
    yield module_cluster
    module_cluster.calm()
    module_cluster.delete(*module_cluster.pods())
    module_cluster.wait(lambda: not stand_ins(module_cluster), "no stand-in is left")
    for node in module_cluster.request("GET", NODES)["items"]:
        module_cluster.request("DELETE", f"{NODES}/{node['metadata']['name']}")
    module_cluster.wait(lambda: not module_cluster.cards(), "no card is left")


def stand_ins(cluster: FaultyCluster) -> list[Json]:
    return list(cluster.request("GET", f"{PODS}?labelSelector={STAND_IN_LABEL}")["items"])


def are_shown(cluster: FaultyCluster, count: int) -> bool:
    found = stand_ins(cluster)
    reasons = [each.get("reason") for pod in found for each in pod["status"].get("conditions", ())]
    return len(found) == count and reasons.count("Unschedulable") == count


def add_node(cluster: FaultyCluster, name: str) -> None:
    """Add a node of the template, with its labels from the beginning."""
    cluster.create_node(name, {"cpu": 8, "memory": "64Gi", "pods": 110}, labels=LABELS)
    cluster.register(fake_node(name, GPUS, MODEL))


@pytest.mark.promise("new nodes")
@pytest.mark.parametrize("step", [CREATE, SHOW], ids=["create", "show"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_as_many_are_asked_for_wherever_it_dies(cluster: FaultyCluster, step: Match, moment: Moment) -> None:
    held = cluster.api.arm(step, Hold(moment), skip=1)
    cluster.create(*(pod(f"whole-{number}", {COUNT: GPUS}) for number in range(3)))
    held.wait()
    cluster.crash_operator()
    cluster.wait(lambda: are_shown(cluster, 3), "three nodes are asked for")
    cluster.settle(QUIET_S)
    assert are_shown(cluster, 3)


@pytest.mark.promise("new nodes")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_new_node_lets_pods_in_after_its_stand_in_is_gone_wherever_it_dies(
    cluster: FaultyCluster, moment: Moment
) -> None:
    cluster.create(*(pod(f"whole-{number}", {COUNT: GPUS}) for number in range(2)))
    cluster.wait(lambda: are_shown(cluster, 2), "two nodes are asked for")
    held = cluster.api.arm(DELETE, Hold(moment))
    add_node(cluster, "node-new-1")
    held.wait()
    assert not any(each["spec"].get("nodeName") for each in cluster.pods().values())
    cluster.crash_operator()
    cluster.wait(lambda: sum(bool(each["spec"].get("nodeName")) for each in cluster.pods().values()) == 1, "one runs")
    cluster.wait(lambda: are_shown(cluster, 1), "one node is asked for")
    cluster.settle(QUIET_S)
    assert are_shown(cluster, 1)
    add_node(cluster, "node-new-2")
    cluster.wait_bound("whole-0", "whole-1")
    cluster.wait(lambda: not stand_ins(cluster), "no node is asked for")
    cluster.check_consistent()
