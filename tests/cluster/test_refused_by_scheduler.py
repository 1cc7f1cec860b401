"""What `explain` says of pods that the real kube-scheduler refuses by itself, without a question to the operator."""

import json
import urllib.parse
import urllib.request
from typing import Any

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod

pytestmark = pytest.mark.promise("reasons")

Json = dict[str, Any]

SHARE = {COUNT: 1, MEMORY: 1000}
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def required(key: str, value: str) -> Json:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def explained(cluster: Cluster, name: str) -> Json:
    query = urllib.parse.urlencode({"pod": f"default/{name}"})
    with urllib.request.urlopen(f"{cluster.installation.view_url}/v1/explain?{query}", timeout=20) as answer:  # noqa: S310
        return dict(json.loads(answer.read()))


def change_nodes(cluster: Cluster, change: Json) -> None:
    for node in cluster.objects("nodes"):
        cluster.patch(f"/api/v1/nodes/{node['metadata']['name']}", change)


@pytest.mark.parametrize(
    ("body", "node_change", "says", "code", "helps"),
    [
        (pod("p", {**SHARE, "cpu": 500}), {}, "Insufficient cpu", "host-cpu", "500 CPUs, and 128 of 128 are free"),
        (pod("p", {**SHARE, "memory": "2Ti"}), {}, "Insufficient memory", "host-memory", "2,097,152 MiB"),
        (pod("p", {**SHARE, "nvidia.com/gpumen": 5}), {}, "nvidia.com/gpumen", "resource", "offers none"),
        (pod("p", SHARE, nodeSelector={"disk": "ssd"}), {}, "selector", "node-selector", "disk=ssd"),
        (pod("p", SHARE, affinity=required("disk", "ssd")), {}, "affinity", "node-affinity", "affinity"),
        (pod("p", SHARE), {"spec": {"unschedulable": True}}, "unschedulable", "unschedulable", "cordoned"),
        (pod("p", SHARE), {"spec": {"taints": [TAINT]}}, "taint", "taint", "team=a:NoSchedule"),
    ],
    ids=["cpu", "memory", "mistyped resource", "selector", "affinity", "cordoned", "taint"],
)
def test_a_pod_that_kube_scheduler_refuses_everywhere_is_told_why_per_node(
    cluster: Cluster, body: Json, node_change: Json, says: str, code: str, helps: str
) -> None:
    cluster.add_nodes(2, gpus=1)
    if node_change:
        change_nodes(cluster, node_change)
    cluster.create(body)
    cluster.wait_refused("p", says)
    cluster.wait(lambda: explained(cluster, "p")["schedulerRefusedAll"], "the operator has seen the pod's condition")
    found = explained(cluster, "p")
    assert found["state"] == "waiting"
    assert found["summary"].startswith("kube-scheduler refuses every node")
    assert [node["kubeScheduler"]["reason"] for node in found["nodes"]] == [code] * 2
    assert all(helps in node["kubeScheduler"]["text"] for node in found["nodes"])
    assert all(node["fits"] and node["offered"] is False for node in found["nodes"])
    waiting = 'gpuledger_waiting_pods_by_reason{reason="kube-scheduler"}'
    cluster.wait(lambda: cluster.metric(waiting) == 1, "it is counted among those that wait")
