"""The guide's mixed cluster: nodes with NVIDIA's own plugin beside nodes with Volcano's, both with nvidia.com/gpu.

The pods are the guide's, of chapters 3.2 and 3.3. Nobody plays a device plugin: what NVIDIA's chooses is in no ledger.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import COUNT, NODES, PODS, Cluster, phase, pod, uuids
from cluster.moved_over import command, moved_over
from cluster.shared import SharedPlane

Json = dict[str, Any]

LABEL = {"volcano.sh/vgpu.enabled": "true"}
REGISTER = "volcano.sh/node-vgpu-register"
MEMORY = "volcano.sh/vgpu-memory"
CARD_MIB = 24564
SHARED, NVIDIAS = "shared", "nvidias"
SETTINGS = {
    "node_label": "volcano.sh/vgpu.enabled=true",
    "volcano_count": COUNT,
    "extra_scheduler_names": ["volcano"],
    "plugin_timeout_s": 1,
    "tell_waiting_after_s": 0.5,
    "release_delay_s": 1,
    "longest_release_s": 2,
    "resync_interval_s": 2,
}


@pytest.fixture(scope="module")
def mixed(shared: SharedPlane) -> Iterator[Cluster]:
    with moved_over(shared.lent(), SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(mixed: Cluster) -> Iterator[Cluster]:
    """Yield a cluster with two cards in the ledger, and four GPUs on a node with NVIDIA's plugin."""
    add_shared_node(mixed, SHARED, 2)
    add_node(mixed, NVIDIAS, {}, 4)
    mixed.settle()
    yield mixed
    mixed.clear()


def add_node(cluster: Cluster, name: str, metadata: Json, gpus: int) -> None:
    cluster.create_node(name, {"cpu": 128, "memory": "1Ti", "pods": 110, COUNT: gpus}, **metadata)


def register_of(name: str, cards: int) -> str:
    return "".join(f"GPU-{name}-{i},10,{CARD_MIB},NVIDIA-RTX 4090,true,hami-core:" for i in range(cards))


def add_shared_node(cluster: Cluster, name: str, cards: int) -> None:
    add_node(cluster, name, {"labels": LABEL, "annotations": {REGISTER: register_of(name, cards)}}, 10 * cards)
    wait_ready(cluster, name, cards)


def wait_ready(cluster: Cluster, name: str, cards: int) -> None:
    mine = [f"GPU-{name}-{i}" for i in range(cards)]
    cluster.wait(lambda: all(phase(cluster.cards().get(each, {})) == "Ready" for each in mine), f"{mine} are ready")


def the_guides(name: str, gpus: int = 2, **spec: object) -> Json:
    """Return the guide's pod: a number of GPUs, of Volcano's profile."""
    found = pod(name, {COUNT: gpus})
    found["spec"] |= {"schedulerName": "volcano", **spec}
    return found


def node_of(cluster: Cluster, name: str) -> str:
    return str(cluster.wait_bound(name)[0]["spec"]["nodeName"])


def explain(cluster: Cluster, name: str) -> Json:
    where = ("--kubeconfig", str(cluster.plane.kubeconfig), "--operator-url", cluster.installation.view_url)
    words = [sys.executable, "-m", "gpuledger", "explain", f"pod/{name}", "-o", "json", *where]
    return dict(json.loads(subprocess.run(words, capture_output=True, timeout=60, check=False).stdout))


def held(cluster: Cluster) -> int:
    return sum(map(len, cluster.holders().values()))


def test_pods_that_count_go_to_nvidias_node_and_then_to_whole_cards_of_the_ledger(cluster: Cluster) -> None:
    cluster.create(the_guides("first"), the_guides("second"))
    first, second = cluster.wait_bound("first", "second")
    assert {first["spec"]["nodeName"], second["spec"]["nodeName"]} == {NVIDIAS}
    assert (uuids(first), uuids(second), held(cluster)) == ([], [], 0)
    cluster.create(the_guides("third"))
    (third,) = cluster.wait_bound("third")
    assert (third["spec"]["nodeName"], uuids(third)) == (SHARED, [f"GPU-{SHARED}-0", f"GPU-{SHARED}-1"])
    assert all(holder["exclusive"] for (holder,) in cluster.holders().values())
    cluster.check_consistent()


def test_parts_of_gpus_are_no_whole_gpus(cluster: Cluster) -> None:
    """NVIDIA's plugin gives out one card ten times, as GPU Feature Discovery's labels say."""
    sliced = {"labels": {"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.sharing-strategy": "time-slicing"}}
    add_node(cluster, "sliced", sliced, 10)
    cluster.settle()
    cluster.create(the_guides("four", 4), the_guides("pair"), the_guides("waits"))
    assert (node_of(cluster, "four"), node_of(cluster, "pair")) == (NVIDIAS, SHARED)
    several = "the node's device plugin gives out each GPU several times, as time slices or by MPS"
    cluster.wait_refused("waits", f"1 {several}")
    cluster.patch(f"{NODES}/sliced", {"metadata": {"labels": dict.fromkeys(sliced["labels"])}})
    assert node_of(cluster, "waits") == "sliced"


@pytest.mark.promise("moving over")
def test_a_share_goes_to_the_ledger_and_no_pod_that_counts_gets_its_card(cluster: Cluster) -> None:
    shares = [pod(f"share-{number}", {COUNT: 1, MEMORY: 20000}) for number in range(2)]
    cluster.create(*shares)
    assert {node_of(cluster, "share-0"), node_of(cluster, "share-1")} == {SHARED}
    cluster.create(pod("third-share", {COUNT: 1, MEMORY: 20000}))
    cluster.wait_refused("third-share", "1 the node's own device plugin gives out whole GPUs only, without a choice")
    cluster.create(the_guides("four", 4), the_guides("late", 1))
    assert node_of(cluster, "four") == NVIDIAS
    message = cluster.wait_refused("late", "1 no GPU is left of those that the node's own device plugin counts")
    assert "1 no card entirely free" in message
    cluster.wait(lambda: cluster.condition("late") is not None, "the pod's condition says more")
    assert "0 of 2 GPU nodes take it" in str(cluster.condition("late"))
    explained = explain(cluster, "late")
    assert {node["node"]: node["reason"] for node in explained["nodes"]} == {
        SHARED: "no-whole-card",
        NVIDIAS: "no-gpu-left",
    }
    cluster.check_consistent()
    cluster.finish("four")
    assert node_of(cluster, "late") == NVIDIAS


def test_pods_of_the_clusters_own_scheduler_count_and_make_room_when_they_end(cluster: Cluster) -> None:
    own = the_guides("own", 3, schedulerName="default-scheduler", nodeName=NVIDIAS)
    cluster.create(own)
    cluster.settle()
    cluster.create(the_guides("pair"))
    assert node_of(cluster, "pair") == SHARED  # one GPU is left, and two cards
    cluster.create(the_guides("waits"))
    cluster.wait_refused("waits", "fewer than 2 GPUs are left of those that the node's own device plugin counts")
    cluster.delete("own")
    assert node_of(cluster, "waits") == NVIDIAS


def test_what_runs_on_nvidias_node_is_counted_after_a_restart_too(cluster: Cluster) -> None:
    own = the_guides("own", 1, schedulerName="default-scheduler", nodeName=NVIDIAS)
    cluster.create(own, the_guides("before"))
    assert node_of(cluster, "before") == NVIDIAS
    cluster.installation.restart_operator()
    cluster.create(the_guides("after"))
    assert node_of(cluster, "after") == SHARED
    cluster.create(the_guides("last", 1))
    assert node_of(cluster, "last") == NVIDIAS


def test_init_containers_and_sidecars_count_as_kube_scheduler_counts_them(cluster: Cluster) -> None:
    one = {"image": "none", "resources": {"limits": {COUNT: "1"}}}
    init = [{**one, "name": "side", "restartPolicy": "Always"}, {**one, "name": "first"}]
    cluster.create(the_guides("three", 1, initContainers=init), the_guides("two-more"), the_guides("fits", 2))
    places = {name: node_of(cluster, name) for name in ("three", "two-more", "fits")}
    assert sorted(places.values()) == [NVIDIAS, NVIDIAS, SHARED]
    assert places["three"] == NVIDIAS  # two at once: the sidecar beside the init container, then beside the main one


def test_a_pod_that_chooses_cards_is_not_sent_where_the_plugin_chooses(cluster: Cluster) -> None:
    wanted = the_guides("wants", 1)
    wanted["metadata"]["annotations"] = {"nvidia.com/use-gputype": "H100"}
    cluster.create(wanted)
    message = cluster.wait_refused("wants", "the node's own device plugin gives out whole GPUs only, without a choice")
    assert "no card of the kind that the pod asks for" in message


def test_neither_audit_nor_adoption_sees_a_fault_in_pods_of_nvidias_node(cluster: Cluster) -> None:
    own = the_guides("own", 1, schedulerName="default-scheduler", nodeName=NVIDIAS)
    cluster.create(own, the_guides("ours"), pod("share", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_bound("ours", "share")
    cluster.settle()
    done = command(cluster, "audit")
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stdout
    assert cluster.metric("gpuledger_pods_without_shares") == 0
    assert json.loads(command(cluster, "migrate", "--dry-run").stdout) == []


def test_top_shows_the_node_as_not_ours_and_explain_where_the_pod_is(cluster: Cluster) -> None:
    cluster.create(the_guides("ours"))
    assert node_of(cluster, "ours") == NVIDIAS
    words = [sys.executable, "-m", "gpuledger", "top", "--kubeconfig", str(cluster.plane.kubeconfig)]
    rows = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert rows[-1].split() == [NVIDIAS, "4", "Not", "ours"]
    assert rows[1].split()[0] == SHARED
    shown = json.loads(subprocess.run([*words, "-o", "json"], capture_output=True, timeout=60, check=True).stdout)
    assert shown["notOurs"] == [{"node": NVIDIAS, "resource": COUNT, "gpus": 4}]


def test_a_node_that_becomes_ours_gives_out_no_card_under_the_pods_that_it_has(cluster: Cluster) -> None:
    """Whoever puts the label on a node that was not drained: its pods may have any of its cards."""
    cluster.create(the_guides("before"))
    assert node_of(cluster, "before") == NVIDIAS
    metadata = {"labels": LABEL, "annotations": {REGISTER: register_of(NVIDIAS, 4)}}
    cluster.patch(f"{NODES}/{NVIDIAS}", {"metadata": metadata})
    mine = [f"GPU-{NVIDIAS}-{i}" for i in range(4)]
    cluster.patch(f"{PODS}/before/status", {"status": {"startTime": "2026-01-01T00:00:00Z"}})
    cluster.wait(
        lambda: all(phase(cluster.cards().get(each, {})) == "Unaccounted" for each in mine), "its cards are closed"
    )
    cluster.create(the_guides("next"), the_guides("waits", 1))
    assert node_of(cluster, "next") == SHARED
    cluster.wait_refused("waits", "no card without pods that are not in the ledger")
