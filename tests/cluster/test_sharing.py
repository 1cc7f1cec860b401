"""Shares of cards, from one pod to bursts, on the real scheduler."""

import json
from collections import Counter

import pytest

from cluster.bursts import BURST_NODES, burst
from cluster.cluster import COUNT, DEVICES, MEMORY, PERCENT, Cluster, Json, PodWatch, pod, uuids


def forge(uuid: str) -> dict[str, str]:
    """Return an annotation by which a user claims a whole card."""
    return {DEVICES: json.dumps({"main": [{"uuid": uuid, "memoryMiB": 40960, "cores": 100}]})}


@pytest.mark.promise("shares")
def test_sixteen_halves_created_at_once_are_two_on_every_card(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    names = [f"half-{i}" for i in range(16)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 50}) for name in names))
    held = Counter(uuid for found in cluster.wait_bound(*names) for uuid in uuids(found))
    assert held == {card.uuid: 2 for card in node.cards}
    cluster.check_consistent()


@pytest.mark.promise("shares")
def test_ten_shares_fill_the_slots_of_a_card_and_the_eleventh_waits(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1, slots=10)
    names = [f"small-{i}" for i in range(10)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 1}) for name in names))
    cluster.wait_bound(*names)
    cluster.create(pod("eleventh", {COUNT: 1, PERCENT: 1}))
    cluster.wait_refused("eleventh", "1 no card with a free slot")
    cluster.delete(names[0])
    cluster.wait_bound("eleventh")
    cluster.check_consistent()


@pytest.mark.promise("shares")
def test_two_cards_are_not_two_slots_of_one(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1, slots=10)
    assert cluster.request("GET", f"/api/v1/nodes/{node.name}")["status"]["allocatable"][COUNT] == "10"
    cluster.create(pod("two", {COUNT: 2, PERCENT: 10}))
    cluster.wait_refused("two", "1 fewer than 2 GPUs on the node")


@pytest.mark.promise("forgery")
def test_a_forged_annotation_takes_nothing_from_anyone(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    uuid = node.cards[0].uuid
    forged = forge(uuid)
    cluster.create(
        pod("forged-and-waiting", {COUNT: 3}, annotations=forged),
        pod("forged-and-placed", {COUNT: 1}, annotations=forged, nodeName=node.name),
        pod("placed-by-hand", {COUNT: 1}, nodeName=node.name),
    )
    cluster.wait_refused("forged-and-waiting", "fewer than 3 GPUs on the node")
    cluster.settle()
    assert cluster.holders() == {uuid: []}
    cluster.create(pod("honest", {COUNT: 1}))
    (honest,) = cluster.wait_bound("honest")
    assert uuids(honest) == [uuid]
    assert [holder["pod"] for holder in cluster.holders()[uuid]] == ["honest"]
    cluster.delete("forged-and-placed", "placed-by-hand")
    cluster.settle()
    assert [holder["pod"] for holder in cluster.holders()[uuid]] == ["honest"]


@pytest.mark.promise("forgery")
def test_a_forged_annotation_is_replaced_when_the_pod_is_bound(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    forged = forge(node.cards[1].uuid)
    cluster.create(
        pod("forger", {COUNT: 1, MEMORY: 1000}, annotations=forged),
        pod("none", {COUNT: 0}, annotations=forged),
    )
    forger, none = cluster.wait_bound("forger", "none")
    assert uuids(forger) == [node.cards[0].uuid]
    assert uuids(none) == []
    cluster.check_consistent()


@pytest.mark.promise("shares")
def test_a_burst_is_bound_completely_and_no_pod_is_ever_seen_without_its_cards(cluster: Cluster) -> None:
    cluster.add_nodes(BURST_NODES)
    pods = burst()
    with PodWatch(cluster.plane) as watch:
        cluster.create(*pods)
        bound = cluster.wait_bound(*(body["metadata"]["name"] for body in pods), timeout_s=180)
        cluster.check_consistent()
        uids = {found["metadata"]["uid"] for found in bound}

        def shown_bound() -> list[Json]:
            return [found for found in watch.objects_of(uids) if found["spec"].get("nodeName")]

        cluster.wait(
            lambda: {found["metadata"]["uid"] for found in shown_bound()} == uids, "every pod was seen with its node"
        )
        assert all(DEVICES in (found["metadata"].get("annotations") or {}) for found in shown_bound())


def test_koordinators_sums_are_entered_as_parts_of_each_card(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    sums = {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu-core": 100}
    cluster.create(pod("sums", sums))
    (placed,) = cluster.wait_bound("sums")
    cluster.create(pod("whole", {"koordinator.sh/gpu.shared": 1, "koordinator.sh/gpu": 100}))
    given = json.loads(placed["metadata"]["annotations"][DEVICES])["main"]
    assert [(card["memoryMiB"], card["cores"]) for card in given] == [(8192, 50), (8192, 50)]
    assert len(set(uuids(placed))) == 2
    cluster.delete("sums")
    (placed,) = cluster.wait_bound("whole")
    assert json.loads(placed["metadata"]["annotations"][DEVICES])["main"][0]["cores"] == 100
    cluster.check_consistent()
