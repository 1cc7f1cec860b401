"""What happens to cards and shares when nodes, agents and pods come and go."""

from typing import Any

import pytest

from cluster.cluster import (
    ALLOCATIONS,
    COUNT,
    DEADLINE_S,
    MEMORY,
    PERCENT,
    PODS,
    RESTLESS,
    Cluster,
    RequestFailed,
    phase,
    pod,
    uuids,
)
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from installation import USER

UPDATES = 1000
PODS_ON_THE_NODE = 100


def waits(cluster: Cluster, nodes: list[FakeNode], wanted: str) -> None:
    uuids_of_nodes = {card.uuid for node in nodes for card in node.cards}
    cluster.wait(
        lambda: {phase(card) for uuid, card in cluster.cards().items() if uuid in uuids_of_nodes} == {wanted},
        f"the cards are {wanted}",
    )


def test_updates_of_a_node_that_change_no_card_cost_nothing(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, slots=20)
    names = [f"pod-{i}" for i in range(PODS_ON_THE_NODE)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 5}) for name in names))
    cluster.wait_bound(*names)
    cluster.settle()
    before, offset = cluster.installation.metrics(), cluster.plane.audit_offset()
    path = f"/api/v1/nodes/{node.name}"
    for number in range(UPDATES):
        changes: list[tuple[str, Any]] = [
            (path, {"metadata": {"labels": {"changing": str(number)}}}),
            (path, {"metadata": {"annotations": {"changing": str(number)}}}),
            (f"{path}/status", {"status": {"nodeInfo": {"kernelVersion": str(number)}}}),
        ]
        cluster.patch(*changes[number % 3])
    seen = "gpuledger_node_events_total"
    enough = before[seen] + UPDATES * 0.9  # a watch may show several as one
    cluster.wait(lambda: cluster.metric(seen) >= enough, "the operator has seen the updates")
    cluster.settle()
    after = cluster.installation.metrics()
    grown = {name: after[name] - before[name] for name in before if after[name] != before[name]}
    assert {name for name in grown if "_garbage_" not in name and not name.startswith(RESTLESS)} <= {seen}, grown
    assert cluster.our_writes(offset, ["pods", "nodes", "gpuallocations"]) == []


def test_without_its_agent_a_node_takes_no_pod_and_keeps_its_holders(cluster: Cluster) -> None:
    nodes = cluster.add_nodes(2)
    cluster.create(pod("running", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("running")
    before = cluster.holders()
    for node in nodes:
        # An amount under a name that is not ours, left over from another device plugin, does not count.
        cluster.set_slots(node.name, 80, "volcano.sh/vgpu-number")
    cluster.set_slots(nodes[0].name, 0)
    cluster.set_slots(nodes[1].name, None)
    waits(cluster, nodes, "Unavailable")
    assert cluster.holders() == before
    cluster.create(pod("new", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_refused("new", "2 GPU node agent is not ready")
    assert cluster.holders() == before
    for node in nodes:
        cluster.set_slots(node.name, 80)
    cluster.wait_bound("new", timeout_s=2 * DEADLINE_S)  # the node's update itself has it tried again
    waits(cluster, nodes, "Ready")
    held = [holder for holders in cluster.holders().values() for holder in holders]
    assert [holder for holder in held if holder["pod"] == "running"] == [h for hs in before.values() for h in hs]
    cluster.check_consistent()


def test_a_node_without_an_inventory_gets_no_share(cluster: Cluster) -> None:
    cluster.create_node("plain", {"cpu": 8, "memory": "8Gi", "pods": 10, COUNT: 80})
    cluster.create(pod("share", {COUNT: 1, MEMORY: 1000}))
    cluster.wait_refused("share", "1 no GPUs in the ledger")


def test_a_card_that_turns_unhealthy_keeps_its_holders_and_takes_nobody(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    path = f"/api/v1/nodes/{node.name}"
    cluster.create(pod("running", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("running")
    sick = register_of(node.cards).replace('"healthy":true', '"healthy":false')
    cluster.patch(path, {"metadata": {"annotations": {REGISTER_ANNOTATION: sick}}})
    waits(cluster, [node], "Unhealthy")
    cluster.create(pod("new", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_refused("new", "no card in working order")
    assert [holder["pod"] for holder in cluster.holders()[node.cards[0].uuid]] == ["running"]
    cluster.patch(path, {"metadata": {"annotations": {REGISTER_ANNOTATION: register_of(node.cards)}}})
    waits(cluster, [node], "Ready")
    cluster.wait_bound("new")


@pytest.mark.promise("node changes")
@pytest.mark.parametrize("end", ["finish", "delete"])
def test_the_end_of_a_pod_frees_its_cards_for_one_that_waits(cluster: Cluster, end: str) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.create(pod("first", {COUNT: 2}))
    cluster.wait_bound("first")
    cluster.create(pod("second", {COUNT: 2}))
    cluster.wait_refused("second", "fewer than 2 cards entirely free")
    getattr(cluster, end)("first")
    (second,) = cluster.wait_bound("second")
    assert sorted(uuids(second)) == sorted(card.uuid for card in node.cards)
    assert {holder["pod"] for holders in cluster.holders().values() for holder in holders} == {"second"}


def test_a_pod_that_was_deleted_by_force_while_it_ran_keeps_its_card_for_a_while(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    (uuid,) = (card.uuid for card in node.cards)
    cluster.create(pod("running", {COUNT: 1}))
    cluster.wait_bound("running")
    started = {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}
    cluster.patch(f"{PODS}/running/status", started)
    cluster.create(pod("next", {COUNT: 1}))
    cluster.wait_refused("next", "no card entirely free")
    cluster.settle()
    cluster.delete("running")
    cluster.wait(lambda: [h["state"] for h in cluster.holders()[uuid]] == ["releasing"], "its share is being released")
    # The one that waits may have the card before anybody sees it free.
    cluster.wait_bound("next")
    assert [holder["pod"] for holder in cluster.holders()[uuid]] == ["next"]


def test_a_pod_of_the_same_name_is_another_pod(cluster: Cluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("twin", {COUNT: 1}))
    (first,) = cluster.wait_bound("twin")
    cluster.delete("twin")
    cluster.create(pod("twin", {COUNT: 1}))
    (second,) = cluster.wait_bound("twin")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    cluster.settle()
    cluster.check_consistent()


def test_the_cards_of_a_deleted_node_go_when_nobody_holds_them(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.create(pod("running", {COUNT: 1}))
    (running,) = cluster.wait_bound("running")
    cluster.request("DELETE", f"/api/v1/nodes/{node.name}")
    (held,) = uuids(running)
    cluster.wait(lambda: set(cluster.cards()) == {held}, "only the held card is left")
    waits(cluster, [node], "Unavailable")
    assert [holder["pod"] for holder in cluster.holders()[held]] == ["running"]
    cluster.delete("running")
    cluster.wait(lambda: not cluster.cards(), "the last card is gone with its holder")


def test_a_deleted_card_comes_back_with_its_holders(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    cluster.create(pod("running", {COUNT: 1, MEMORY: 4000}))
    cluster.wait_bound("running")
    (uuid,) = (card.uuid for card in node.cards)
    before = cluster.cards()[uuid]
    cluster.request("DELETE", f"{ALLOCATIONS}/{uuid.lower()}")

    def is_back() -> bool:
        card = cluster.cards().get(uuid)
        return card is not None and card["metadata"]["uid"] != before["metadata"]["uid"] and phase(card) == "Ready"

    cluster.wait(is_back, "the card is back")
    assert cluster.holders()[uuid] == before["status"]["holders"]
    cluster.create(pod("greedy", {COUNT: 1}))
    cluster.wait_refused("greedy", "no card entirely free")


def test_our_account_may_not_write_to_nodes_nor_replace_pods(cluster: Cluster) -> None:
    def may(verb: str, resource: str, *more: str) -> str:
        return cluster.plane.kubectl("auth", "can-i", verb, resource, f"--as={USER}", *more, check=False).strip()

    for verb, resource in (("patch", "nodes"), ("update", "nodes"), ("update", "pods"), ("create", "pods")):
        assert may(verb, resource) == "no", (verb, resource)
    assert may("patch", "pods") == "yes"  # to have a waiting pod tried again
    assert may("create", "pods", "--subresource=binding") == "yes"


@pytest.mark.promise("never twice")
def test_a_user_who_edits_the_ledger_can_not_over_allocate(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    cluster.create(pod("running", {COUNT: 1, MEMORY: 40000}))
    cluster.wait_bound("running")
    path = f"{ALLOCATIONS}/{node.cards[0].uuid.lower()}/status"
    with pytest.raises(RequestFailed, match="the holders add up to"):
        cluster.patch(path, {"status": {"used": {"memoryMiB": 0}}})
