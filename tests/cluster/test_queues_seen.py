"""What people see of queues, with Kueue's own manager: who holds what, and what each job waits for."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import COUNT, PERCENT, pod
from cluster.queues import CORES, QUEUE_LABEL, Queues, queues_cluster
from cluster.test_kubectl_gpuledger import Plugin
from control_plane import free_port
from fakes.metrics import value

Json = dict[str, Any]


@pytest.fixture(scope="module")
def queues() -> Iterator[Queues]:
    """Yield two queues on four cards: `low` borrows three for a job that runs, and others wait in it."""
    with queues_cluster({"view_port": free_port()}) as queues:
        cluster = queues.cluster
        cluster.add_nodes(1, gpus=4)
        queues.add("high", 400)
        queues.add("low", 0)
        queues.job("runs", "low", {COUNT: 1}, 100, pods=3)
        queues.wait_running("runs")
        queues.job("no-cards", "low", {COUNT: 2, PERCENT: 40}, 80)  # 380 of 400 %, and one card is free
        cluster.wait(lambda: "0 of 1" in queues.check("no-cards")[1], "the check says why")
        queues.job("no-quota", "low", {COUNT: 1}, 200)
        gated = pod("gated", {COUNT: 1, CORES: 100})
        gated["metadata"]["labels"] = {QUEUE_LABEL: "low"}
        cluster.create(gated)
        cluster.wait(lambda: bool(queues.workload("gated")), "Kueue has a workload for the pod")
        yield queues


@pytest.fixture
def plugin(queues: Queues, tmp_path: Path) -> Plugin:
    return Plugin(queues.cluster, tmp_path)


def explained(queues: Queues, plugin: Plugin, name: str) -> Json:
    """Return an explanation of something that waits."""
    url = queues.cluster.installation.view_url
    process = plugin.start("explain", name, "-n", "default", "--operator-url", url, "-o", "json")
    output, complaint = process.communicate(timeout=60)
    assert process.returncode == 1, (output, complaint)
    return dict(json.loads(output))


def test_top_by_queue_tells_what_is_borrowed_held_and_waited_for(queues: Queues, plugin: Plugin) -> None:
    def by_queue() -> dict[str, Json]:
        return {each["queue"]: each for each in plugin.json("top", "--by", "queue")["queues"]}

    queues.cluster.wait(lambda: by_queue()["low"]["workloads"]["waitingForQuota"] == 2, "Kueue has counted")
    found = by_queue()
    assert set(found) == {"high", "low"}, "every pod is in a queue"
    assert found["low"]["workloads"] == {"admitted": 1, "waitingForCards": 1, "waitingForQuota": 2}
    assert found["low"]["quota"] == [{"resource": CORES, "nominal": 0, "reserved": 380, "borrowed": 380}]
    assert (found["low"]["pods"], found["low"]["used"]["cores"]) == (3, 300), "what Kueue reserves is not yet held"
    assert (found["high"]["pods"], found["high"]["quota"][0]["nominal"]) == (0, 400)


def test_top_by_namespace_counts_the_pod_that_waits(queues: Queues, plugin: Plugin) -> None:
    [row] = plugin.json("top", "--by", "namespace")["namespaces"]
    assert (row["namespace"], row["pods"], row["cards"], row["waiting"]) == ("default", 3, 3, 1)


def test_a_workload_without_cards_is_explained_node_by_node(queues: Queues, plugin: Plugin) -> None:
    found = explained(queues, plugin, "job/no-cards")
    assert found == explained(queues, plugin, f"workload/{found['name']}")
    assert (found["state"], found["queue"], found["clusterQueue"]) == ("waiting-for-cards", "low", "low")
    [node] = found["nodes"]
    assert len([card for card in node["cards"] if card["by"]]) == 3, "the cards that the other job holds"
    assert found["summary"] == queues.check("no-cards")[1]


def test_a_workload_without_quota_is_explained_in_kueues_words(queues: Queues, plugin: Plugin) -> None:
    found = explained(queues, plugin, "job/no-quota")
    assert (found["state"], found["clusterQueue"], found["nodes"]) == ("waiting-for-quota", None, [])
    conditions = queues.workload("no-quota")["status"]["conditions"]
    [said] = [each["message"] for each in conditions if each["type"] == "QuotaReserved"]
    assert said in found["summary"]


def test_a_pod_behind_kueues_gate_is_explained_by_its_workload(queues: Queues, plugin: Plugin) -> None:
    found = explained(queues, plugin, "pod/gated")
    assert found["queue"] == "low"
    assert "kueue.x-k8s.io/admission" in found["summary"]
    assert f"{queues.workload('gated')['metadata']['name']} waits for quota" in found["summary"]


def test_pods_of_an_admitted_job_show_both_of_its_queues(queues: Queues, plugin: Plugin) -> None:
    found = plugin.json("get", "pods", "-n", "default")["items"]
    queued = {each["state"]: each["queue"] for each in found}
    assert queued == {"allocated": "low of ClusterQueue low", "waiting": "low"}


def test_metrics_count_workloads_by_how_far_they_are(queues: Queues) -> None:
    url = f"{queues.cluster.installation.health_url}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310
        text = bytes(answer.read())
    states = {state: value(text, "gpuledger_queued_workloads", state=state) for state in ("waiting", "admitted")}
    assert states == {"waiting": 1, "admitted": 1}
