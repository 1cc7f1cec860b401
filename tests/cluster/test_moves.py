"""`kubectl gpuledger move` on the real API server: no pod leaves before it has a place, and no budget is broken."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import COUNT, PERCENT, uuids
from cluster.preempting import LOW, PreemptingCluster, a_pod
from cluster.test_kubectl_gpuledger import Plugin

Json = dict[str, Any]
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SETS = "/apis/apps/v1/namespaces/default/statefulsets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
RESERVATIONS = "/apis/gpuledger.dev/v1alpha1/namespaces/default/gpureservations"
TENTH = {COUNT: 1, PERCENT: 10}
WHOLE = {COUNT: 1}


@pytest.fixture
def cluster(preempting: PreemptingCluster) -> Iterator[PreemptingCluster]:
    yield preempting
    for path in (SETS, JOBS):
        preempting.request("DELETE", path, {"propagationPolicy": "Foreground"})
    preempting.request("DELETE", RESERVATIONS)
    preempting.clear()


def on_node(cluster: PreemptingCluster, name: str) -> list[str]:
    return sorted(p["metadata"]["name"] for p in cluster.all_pods() if p["spec"].get("nodeName") == name)


def close(cluster: PreemptingCluster, *names: str) -> None:
    """Keep new pods off nodes, as kubectl does."""
    for name in names:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})


def reopen(cluster: PreemptingCluster, *names: str) -> None:
    for name in names:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})


def keep(cluster: PreemptingCluster, app: str, least: int) -> None:
    """Have a budget keep so many pods of an app, and wait until it has counted them."""
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}
    cluster.request("POST", BUDGETS, {"metadata": {"name": app}, "spec": spec})
    counted = lambda: cluster.request("GET", f"{BUDGETS}/{app}").get("status", {}).get("currentHealthy", 0) > least - 1  # noqa: E731
    cluster.wait(counted, "the budget is counted")


@contextmanager
def arriving(cluster: PreemptingCluster) -> Iterator[list[str]]:
    """Have a pod of another owner come every half second, as long as this lasts."""
    ended, names = threading.Event(), list[str]()

    def arrive() -> None:
        while not ended.wait(0.5):
            name = f"stranger-{len(names)}"
            cluster.plane.kubectl("create", "-f", "-", stdin=json.dumps(a_pod(name, TENTH, LOW)))
            names.append(name)

    thread = threading.Thread(target=arrive)
    thread.start()
    try:
        yield names
    finally:
        ended.set()
        thread.join()


@pytest.mark.promise("moves")
def test_a_node_with_twenty_shares_is_emptied_within_their_budget_while_other_pods_arrive(
    cluster: PreemptingCluster, tmp_path: Path
) -> None:
    plugin = Plugin(cluster, tmp_path)
    full, spare, last = (node.name for node in cluster.add_nodes(3, gpus=2))
    close(cluster, spare, last)
    cluster.deploy("web", TENTH, 20, LOW)
    before = {each["metadata"]["name"] for each in cluster.wait_placed("web", 20)}
    keep(cluster, "web", 19)
    reopen(cluster, spare, last)
    said = plugin.run("move", "--empty", f"node/{full}", "--dry-run")
    assert said.splitlines()[-1] == "20 of 20 pods could move now"
    assert {each["metadata"]["name"] for each in cluster.wait_placed("web", 20)} == before
    since = cluster.plane.audit_offset()
    with arriving(cluster) as strangers:
        output = plugin.run("move", "--empty", f"node/{full}", "--timeout", "240", timeout_s=250)
    assert output.splitlines()[-1] == "20 pods moved"
    assert strangers
    assert on_node(cluster, full) == []
    assert sorted(cluster.evictions(since)) == sorted(before), "each was evicted once, and nobody else"
    after = cluster.wait_placed("web", 20)
    assert {each["spec"]["nodeName"] for each in after} <= {spare, last}
    events = cluster.request("GET", "/api/v1/namespaces/default/events?fieldSelector=reason=FailedScheduling")["items"]
    waited = {each["involvedObject"]["name"] for each in events}
    assert not [name for name in waited if name.startswith("web-") and name not in before], "none waited for a card"
    assert cluster.request("GET", RESERVATIONS)["items"] == []


def test_a_statefulsets_pod_comes_back_under_its_name_on_its_new_card(
    cluster: PreemptingCluster, tmp_path: Path
) -> None:
    plugin = Plugin(cluster, tmp_path)
    first, second = cluster.add_nodes(2, gpus=1)
    close(cluster, second.name)
    spec = a_pod("x", WHOLE, LOW)["spec"]
    template = {"metadata": {"labels": {"app": "db"}}, "spec": spec}
    body = {"replicas": 1, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template}
    cluster.request("POST", SETS, {"metadata": {"name": "db"}, "spec": body})
    (before,) = cluster.wait_placed("db", 1)
    reopen(cluster, second.name)
    card = first.cards[0].uuid
    plugin.run("move", "--empty", f"card/{card}")
    (after,) = cluster.wait_placed("db", 1)
    assert before["metadata"]["name"] == after["metadata"]["name"] == "db-0"
    assert uuids(after) == [second.cards[0].uuid]


def test_a_gang_moves_as_a_whole(cluster: PreemptingCluster, tmp_path: Path) -> None:
    plugin = Plugin(cluster, tmp_path)
    nodes = cluster.add_nodes(4, gpus=1)
    old, new = nodes[:2], nodes[2:]
    close(cluster, *(node.name for node in new))
    labels = {"app": "train", "gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
    spec = {**a_pod("x", WHOLE, LOW)["spec"], "restartPolicy": "Never"}
    ignored = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    job = {
        "completions": 2,
        "parallelism": 2,
        "podFailurePolicy": ignored,
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    cluster.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": job})
    before = {each["metadata"]["uid"] for each in cluster.wait_placed("train", 2)}
    reopen(cluster, *(node.name for node in new))
    output = plugin.run("move", "--empty", f"node/{old[0].name}")
    assert "gang default/train: moved" in output
    after = cluster.wait_placed("train", 2)
    assert not before & {each["metadata"]["uid"] for each in after}
    held = {uuid for each in after for uuid in uuids(each)}
    assert len(held) == 2
    assert old[0].cards[0].uuid not in held


def test_room_for_a_pod_is_made_by_as_few_moves_as_it_takes(cluster: PreemptingCluster, tmp_path: Path) -> None:
    """One share on each of two cards; a pod that wants a whole one waits, until one of the shares has moved."""
    plugin = Plugin(cluster, tmp_path)
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.deploy("web", {COUNT: 1, PERCENT: 60}, 2, LOW)
    cluster.wait_placed("web", 2)
    other = cluster.add_nodes(1, gpus=1)[0]
    close(cluster, other.name)
    cluster.create(a_pod("large", {COUNT: 2}, LOW))
    cluster.wait_refused("large", "entirely free")
    reopen(cluster, other.name)
    said = plugin.run("move", "--for", "large", "-n", "default", "--dry-run", status=2)
    assert "who would have to leave has no room elsewhere" in said
    more = cluster.add_nodes(1, gpus=1)[0]
    found = plugin.json("move", "--for", "large", "-n", "default", "--dry-run")
    assert (found["room"]["node"], found["done"]) == (node.name, True)
    plugin.run("move", "--for", "large", "-n", "default")
    cluster.wait_bound("large")
    assert cluster.pod("large")["spec"]["nodeName"] == node.name
    assert {each["spec"]["nodeName"] for each in cluster.wait_placed("web", 2)} == {other.name, more.name}


def test_who_can_not_move_is_named_and_stays(cluster: PreemptingCluster, tmp_path: Path) -> None:
    since, plugin = cluster.plane.audit_offset(), Plugin(cluster, tmp_path)
    node = cluster.add_nodes(1, gpus=1)[0]
    cluster.create(a_pod("alone", TENTH, LOW))
    cluster.deploy("web", TENTH, 1, LOW)
    cluster.wait_bound("alone")
    cluster.wait_placed("web", 1)
    output = plugin.run("move", "--empty", f"node/{node.name}", "--timeout", "5", status=1, told="output")
    assert "pod default/alone stays: it has no controller, and nothing would make it anew" in output
    assert ": waiting for room elsewhere: 1 of 1 pods find no cards at the moment" in output
    assert cluster.evictions(since) == []
    assert cluster.request("GET", RESERVATIONS)["items"] == [], "nothing is kept for a pod that did not move"


def test_a_command_that_is_interrupted_keeps_no_places(cluster: PreemptingCluster, tmp_path: Path) -> None:
    plugin = Plugin(cluster, tmp_path)
    node = cluster.add_nodes(1, gpus=1)[0]
    cluster.deploy("web", TENTH, 1, LOW)
    cluster.wait_placed("web", 1)
    with plugin.start("move", "--empty", f"node/{node.name}") as process:
        try:
            cluster.wait(lambda: bool(cluster.request("GET", RESERVATIONS)["items"]), "a place is being looked for")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()  # one that goes on would make another test fail
    assert process.returncode != 0
    assert cluster.request("GET", RESERVATIONS)["items"] == []
