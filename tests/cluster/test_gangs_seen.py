"""What people see of a gang of nine on eight cards: explained, told, counted, and remembered when it runs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.gangs import explained as answer_about
from cluster.gangs import gang, gang_cluster, held, names, set_cpu
from cluster.shared import SharedPlane
from cluster.test_kubectl_gpuledger import Plugin
from control_plane import free_port
from fakes.metrics import value
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of

Json = dict[str, Any]

TOLD_AFTER_S = 2.0


@pytest.fixture(scope="module")
def running(shared: SharedPlane) -> Iterator[Cluster]:
    with gang_cluster(shared.lent(), {"tell_waiting_after_s": TOLD_AFTER_S, "view_port": free_port()}) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clear()


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return Plugin(cluster, tmp_path)


def explained(plugin: Plugin, cluster: Cluster, name: str, *more: str) -> tuple[int, str]:
    process = plugin.start(
        "explain", f"gang/{name}", "-n", "default", "--operator-url", cluster.installation.view_url, *more
    )
    output, complaint = process.communicate(timeout=60)
    return int(process.returncode), output + complaint


def report(plugin: Plugin, cluster: Cluster, name: str) -> Json:
    code, text = explained(plugin, cluster, name, "-o", "json")
    return dict(json.loads(text)) if code < 2 else {"state": text}


def metrics(cluster: Cluster) -> bytes:
    with urllib.request.urlopen(f"{cluster.installation.health_url}/metrics", timeout=20) as answer:  # noqa: S310
        return bytes(answer.read())


def test_nine_on_eight_cards_are_explained_and_told_once_and_remembered(cluster: Cluster, plugin: Plugin) -> None:
    first, second = cluster.add_nodes(2, gpus=4)
    begin = cluster.plane.audit_offset()
    pods = gang("nine", 9)
    cluster.create(*pods)
    cluster.wait_refused("nine-0", "fewer than 9 members of the pod's gang find cards at once")
    # The Bind of a member that had gone ahead of the others can come after that.
    cluster.wait(lambda: report(plugin, cluster, "nine")["state"] == "waiting", "the gang waits")
    found = report(plugin, cluster, "nine")
    members = found["members"]
    assert (members["fits"], members["minimum"], members["waiting"]) == (8, 9, 9)
    assert {each["node"]: each["members"] for each in members["fitsOn"]} == {first.name: 4, second.name: 4}
    assert members["missing"] == [{"request": "1 whole card", "members": 1, "cards": 1}]
    assert [node["fits"] for node in found["nodes"]] == [False, False]
    code, text = explained(plugin, cluster, "nine")
    assert (code, text.splitlines()[0]) == (1, "default/nine: waiting")
    assert held(cluster) == 0

    def said() -> list[Json | None]:
        return [condition_of(each, ALLOCATED) for each in cluster.pods().values()]

    cluster.wait(lambda: all(said()), "all members are told")
    for condition in said():
        assert condition
        assert condition["reason"] == "Gang"
        assert "8 of 9 members find cards at once" in condition["message"]
    cluster.settle(2 * TOLD_AFTER_S)
    writes = [
        e for e in cluster.plane.api_writes(begin) if (e.resource, e.subresource, e.code) == ("pods", "status", 200)
    ]
    ours = [event for event in writes if "kube-scheduler" not in event.agent]
    assert len(ours) == 9, "one condition for each member, and not another"
    assert value(metrics(cluster), "gpuledger_waiting_gangs") == 1
    cluster.add_nodes(1, gpus=1)
    cluster.wait_bound(*names(pods), timeout_s=15)
    cluster.wait(lambda: report(plugin, cluster, "nine")["state"] == "running", "the report says so")
    text = plugin.run(
        "history", "gang/nine", "-n", "default", "--operator-url", cluster.installation.view_url, "-o", "wide"
    )
    kinds = [line.split()[1] for line in text.splitlines()[1:]]
    assert [kinds.count(kind) for kind in ("gang-planned", "gang-gathered", "assigned", "gang-bound")] == [1, 1, 9, 1]
    cards = plugin.json("top", "cards", "--gang", "default/nine")["cards"]
    assert len(cards) == 9
    assert plugin.run("top", "cards").splitlines()[0].split()[-1] == "GANG"
    assert value(metrics(cluster), "gpuledger_gang_place_seconds_count") == 1
    assert value(metrics(cluster), "gpuledger_waiting_gangs") == 0


def test_cards_for_all_and_cpu_for_none_is_counted_and_said(cluster: Cluster, plugin: Plugin) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    set_cpu(cluster, node.name, "1")
    cluster.create(*gang("cpu", 2, cpu="1"))
    before = value(metrics(cluster), "gpuledger_gang_gathers_given_up_total", reason="late")
    cluster.wait(lambda: answer_about(cluster, "cpu")["state"] == "gathering", "one stands in Bind")
    late = "gpuledger_gang_gathers_given_up_total"
    # The turn is over, and the gang rests, as soon as it has failed alone, too.

    def turn() -> Json:
        return dict(answer_about(cluster, "cpu")["members"]["turn"] or {})

    cluster.wait(lambda: turn().get("gang") == "default/cpu", "it has the turn")
    assert value(metrics(cluster), late, reason="late") > before
    text = plugin.run("history", "--kind", "gang-given-up", "--operator-url", cluster.installation.view_url)
    assert "1 of 2 members of gang cpu could be bound" in text
