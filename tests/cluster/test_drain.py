"""`kubectl gpuledger drain` on the real API server, whose evictions a PodDisruptionBudget forbids at first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import COUNT
from cluster.preempting import LOW, PreemptingCluster
from cluster.test_kubectl_gpuledger import Plugin

Json = dict[str, Any]
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def cluster(preempting: PreemptingCluster) -> Iterator[PreemptingCluster]:
    yield preempting
    preempting.undeploy("chat")
    preempting.clear()


def test_a_card_is_drained_as_soon_as_its_budget_allows(cluster: PreemptingCluster, tmp_path: Path) -> None:
    plugin = Plugin(cluster, tmp_path)
    cluster.add_nodes(3, gpus=1)
    cluster.deploy("chat", {COUNT: 1}, 2, LOW)
    first, other = cluster.wait_placed("chat", 2)
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "chat"}}}
    cluster.request("POST", BUDGETS, {"metadata": {"name": "keep-both"}, "spec": spec})
    counted = lambda: cluster.request("GET", f"{BUDGETS}/keep-both").get("status", {}).get("expectedPods") == 2  # noqa: E731
    cluster.wait(counted, "the budget is counted")
    found = plugin.json("get", f"pod/{first['metadata']['name']}", "-n", "default")
    card = found["shares"][0]["card"]

    said = plugin.run("drain", f"card/{card}", "--dry-run", status=1, told="output")
    assert "keep-both needs 2 healthy pods" in said
    process = plugin.start("drain", f"card/{card}", "--reason", "fan is loud")
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(2)]
    assert "takes no new pods: fan is loud" in lines[0]
    assert "stays for now" in lines[1]
    assert "keep-both needs 2 healthy pods and has 2 currently" in lines[1]
    cluster.patch(f"{BUDGETS}/keep-both", {"spec": {"minAvailable": 1}})
    output, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "")
    assert output.splitlines()[-1].startswith("1 card drained")

    assert cluster.cards()[card]["status"].get("holders") == []
    placed = {each["metadata"]["name"] for each in cluster.wait_placed("chat", 2)}
    assert other["metadata"]["name"] in placed
    assert first["metadata"]["name"] not in placed
    again = json.loads(plugin.run("drain", f"card/{card}", "-o", "json"))
    assert (again["drained"], again["pods"]) == (True, [])
