"""The operator dies, at moments that a count of bound pods decides, and starts again."""

import pytest

from cluster.bursts import BURST_NODES, BURST_PODS, burst, created_meanwhile
from cluster.cluster import (
    ALLOCATIONS,
    COUNT,
    MEMORY,
    PERCENT,
    Cluster,
    devices,
    pod,
    uuids,
)

KILLED_AT = (BURST_PODS // 10, BURST_PODS // 3, BURST_PODS * 2 // 3)
"""Pods that are bound when the operator is killed: early, after a third, late."""

AHEAD = BURST_PODS // 7
"""So many more pods have come by then, to be interrupted."""

BURST_DEADLINE_S = 180.0


def bound_pods(cluster: Cluster) -> int:
    return sum(1 for found in cluster.pods().values() if found["spec"].get("nodeName"))


def test_a_burst_ends_well_although_the_operator_is_killed_in_the_middle_of_it(cluster: Cluster) -> None:
    cluster.add_nodes(BURST_NODES)
    pods = burst()
    names = [body["metadata"]["name"] for body in pods]
    with created_meanwhile(cluster, pods) as let_come:
        let_come(AHEAD)
        for number, before in zip(KILLED_AT, (0, *KILLED_AT), strict=False):
            let_come(number - before)
            cluster.wait(lambda n=number: bound_pods(cluster) >= n, f"{number} pods are bound", BURST_DEADLINE_S)  # type: ignore[misc]
            cluster.installation.kill_operator()
            assert bound_pods(cluster) < BURST_PODS, "nothing was left to be interrupted"
            cluster.installation.start_operator()
    cluster.wait_bound(*names, timeout_s=BURST_DEADLINE_S)
    cluster.settle()
    cluster.check_consistent()
    cluster.delete(*names)
    cluster.wait(lambda: not any(cluster.holders().values()), "no holder is left over")


@pytest.mark.promise("operator crashes")
def test_a_restart_writes_nothing_and_forgets_nothing(cluster: Cluster) -> None:
    cluster.add_nodes(2)
    names = [f"pod-{number}" for number in range(10)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 40}) for name in names))
    cluster.wait_bound(*names)
    cluster.settle()
    before, offset = cluster.cards(), cluster.plane.audit_offset()
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    cluster.settle()
    assert cluster.our_writes(offset, ["pods", "nodes", "gpuallocations"]) == []
    assert cluster.cards() == before
    cluster.create(pod("next", {COUNT: 1, PERCENT: 40}))
    cluster.wait_bound("next")
    cluster.check_consistent()


def test_shares_of_pods_that_end_while_the_operator_is_down_are_free_when_it_is_back(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.create(*(pod(name, {COUNT: 1}) for name in ("deleted", "finished")))
    cluster.wait_bound("deleted", "finished")
    cluster.installation.kill_operator()
    cluster.delete("deleted")
    cluster.finish("finished")
    cluster.installation.start_operator()
    cluster.wait(lambda: not any(cluster.holders().values()), "both cards are free")
    cluster.create(pod("next", {COUNT: 2}))
    cluster.wait_bound("next")


def test_a_pod_created_while_the_operator_is_down_waits_for_it(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.installation.kill_operator()
    cluster.create(pod("early", {COUNT: 1}))
    cluster.wait(lambda: any("connection refused" in text for text in cluster.messages("early")), "the pod was tried")
    assert not cluster.pod("early")["spec"].get("nodeName")
    cluster.installation.start_operator()
    cluster.wait_bound("early", timeout_s=BURST_DEADLINE_S)
    cluster.check_consistent()


@pytest.mark.parametrize("entered", [1, 2], ids=["one of two cards", "all cards"])
def test_what_a_crash_before_the_binding_has_left_is_used_or_given_back(cluster: Cluster, entered: int) -> None:
    """The ledger has shares of the pod, the pod has no node: the operator died between the two writes."""
    nodes = cluster.add_nodes(2, gpus=2)
    cluster.create(pod("running", {COUNT: 2, MEMORY: 1000}))
    (running,) = cluster.wait_bound("running")
    (other,) = (node for node in nodes if node.name != running["spec"]["nodeName"])
    cluster.installation.kill_operator()
    cluster.create(pod("interrupted", {COUNT: 2, MEMORY: 4000}))
    uid = cluster.pod("interrupted")["metadata"]["uid"]
    for card in other.cards[:entered]:  # not where the pod would go: the other node is fuller
        holder = cluster.holders()[uuids(running)[0]][0]
        containers = [{"name": "main", "memoryMiB": 4000, "cores": 0}]
        left = {**holder, "podUID": uid, "pod": "interrupted", "memoryMiB": 4000, "containers": containers}
        used = {"memoryMiB": 4000, "cores": 0, "number": 1}
        change = {"status": {"holders": [left], "used": used}}
        cluster.patch(f"{ALLOCATIONS}/{card.object_name}/status", change)
    cluster.installation.start_operator()
    (interrupted,) = cluster.wait_bound("interrupted", timeout_s=BURST_DEADLINE_S)
    assert [card["memoryMiB"] for card in devices(interrupted)["main"]] == [4000, 4000]
    cluster.settle()
    cluster.check_consistent()
