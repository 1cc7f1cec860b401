"""What kubectl prints of the cards and what the operator's metrics say of them, on the real control plane."""

import json
import subprocess

import pytest

from build_control_plane import ensure_promtool
from cluster.cluster import CORES, COUNT, MEMORY, Cluster, pod

MIB = 2**20


@pytest.mark.promise("metrics")
def test_metrics_are_what_kubectl_shows(cluster: Cluster) -> None:
    cluster.add_nodes(2, gpus=2)
    names = [f"share-{number}" for number in range(5)]
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 3_000 + 10 * n, CORES: 20}) for n, name in enumerate(names)))
    cluster.wait_bound(*names)
    cluster.settle()
    shown = cluster.installation.metrics()
    printed = json.loads(cluster.plane.kubectl("get", "gpua", "-o", "json"))["items"]
    assert len(printed) == 4
    for card in printed:
        spec, status = card["spec"], card["status"]
        where = f'node="{spec["nodeName"]}",uuid="{spec["uuid"]}",index="{spec["index"]}",model="{spec["model"]}"'
        assert shown[f"gpuledger_card_memory_used_bytes{{{where}}}"] == status["used"]["memoryMiB"] * MIB
        assert shown[f"gpuledger_card_cores_used_ratio{{{where}}}"] == status["used"]["cores"] / 100
        assert shown[f"gpuledger_card_slots_used{{{where}}}"] == status["used"]["number"]
        assert shown[f"gpuledger_card_memory_capacity_bytes{{{where}}}"] == spec["capacity"]["memoryMiB"] * MIB
        assert shown[f'gpuledger_card_phase{{{where},phase="{status["phase"]}"}}'] == 1
        assert shown[f"gpuledger_card_holders{{{where}}}"] == len(status["holders"])
    held = {name: value for name, value in shown.items() if name.startswith("gpuledger_pod_memory_bytes")}
    assert sorted(held.values()) == [(3_000 + 10 * n) * MIB for n in range(5)]
    assert cluster.metric("gpuledger_cards_over_capacity") == 0


@pytest.mark.timeout(1200)  # a first build of promtool takes minutes
def test_promtool_has_nothing_against_the_metrics_of_a_running_operator(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    text = cluster.installation.metrics_text()
    assert "gpuledger_card_info" in text
    done = subprocess.run(
        [ensure_promtool(), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_operator_does_is_measured(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("measured", {COUNT: 1, MEMORY: 3_000}))
    cluster.wait_bound("measured")
    shown = cluster.installation.metrics()
    assert shown["gpuledger_ledger_write_seconds_count"] == shown["gpuledger_ledger_patches_total"] > 0
    assert shown["gpuledger_ledger_write_entries_sum"] >= shown["gpuledger_ledger_entries_total"]
    assert shown['gpuledger_ledger_write_failures_total{kind="error"}'] == 0
    assert (shown["gpuledger_leader"], shown["gpuledger_ready"]) == (1, 1)
    cluster.wait(lambda: cluster.metric("gpuledger_event_loop_lag_seconds_count") > 0, "the event loop is measured")
