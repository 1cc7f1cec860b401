"""Nodes and cards that go, come back, change their name or their size, while pods hold shares or wait for them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.cluster import COUNT, MEMORY, NODES, PERCENT, Cluster, phase, pod, uuids
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.model.card import Amounts, Card

SOON_S = 15.0
"""Far more than it takes, far less than the minutes after which kube-scheduler tries a waiting pod again anyway."""

HALF = {COUNT: 1, PERCENT: 50}


def report(cluster: Cluster, node_name: str, cards: Sequence[Card]) -> None:
    """Have a node report these cards and no others."""
    annotations = {REGISTER_ANNOTATION: register_of(cards)}
    cluster.patch(f"{NODES}/{node_name}", {"metadata": {"annotations": annotations}})


def with_capacity(cards: Sequence[Card], memory_mib: int, number: int) -> list[Card]:
    return [replace(card, capacity=Amounts(memory_mib, 100, number)) for card in cards]


def renamed(node: FakeNode, name: str) -> FakeNode:
    """Return the same machine, with the same cards, under another name."""
    return FakeNode(name, tuple(replace(card, node_name=name) for card in node.cards))


def remove_node(cluster: Cluster, node_name: str) -> None:
    cluster.request("DELETE", f"{NODES}/{node_name}")


def holding(cluster: Cluster, uuid: str) -> list[str]:
    """Return the names of the pods on a card."""
    return sorted(holder["pod"] for holder in cluster.holders()[uuid])


def owners(cluster: Cluster) -> dict[str, str]:
    """Return card UUID -> name of the node that has it."""
    return {uuid: card["spec"]["nodeName"] for uuid, card in cluster.cards().items()}


def wait_owners(cluster: Cluster, wanted: dict[str, str]) -> None:
    cluster.wait(lambda: owners(cluster) == wanted, f"the cards' nodes are {wanted}")


def wait_phases(cluster: Cluster, wanted: dict[str, str]) -> None:
    cluster.wait(
        lambda: {uuid: phase(card) for uuid, card in cluster.cards().items()} == wanted,
        f"the cards' phases are {wanted}",
    )


def wait_told(cluster: Cluster, node_name: str, *uuids_told: str) -> None:
    """Wait until a node was told by Events that these cards belong to another one."""
    cluster.wait(
        lambda: all(
            any(f"card {uuid} belongs to node" in message for message in cluster.messages(node_name, "Node"))
            for uuid in uuids_told
        ),
        f"node {node_name} is told of {uuids_told}; its events are {cluster.messages(node_name, 'Node')}",
    )


@pytest.mark.promise("node changes")
def test_a_node_that_is_deleted_and_comes_back_has_its_holders_and_takes_new_pods_beside_them(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.create(pod("running", HALF))
    (running,) = cluster.wait_bound("running")
    (held,), before = uuids(running), cluster.holders()
    remove_node(cluster, node.name)
    wait_phases(cluster, {held: "Unavailable"})
    assert cluster.holders()[held] == before[held]
    cluster.create(*(pod(name, HALF) for name in ("beside", "second", "third")))
    cluster.wait_refused("beside", "no nodes available")
    cluster.register(node)
    cluster.wait_bound("beside", "second", "third", timeout_s=SOON_S)
    wait_phases(cluster, {card.uuid: "Ready" for card in node.cards})
    assert before[held][0] in cluster.holders()[held]
    assert len(cluster.holders()[held]) == 2
    cluster.check_consistent()


def test_a_node_that_is_deleted_and_comes_back_at_once_stays_usable(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.create(pod("running", HALF))
    (running,) = cluster.wait_bound("running")
    for number in range(3):
        remove_node(cluster, node.name)
        cluster.register(node)
        cluster.create(pod(f"short-{number}", {COUNT: 2, MEMORY: 1000}))
        cluster.wait_bound(f"short-{number}", timeout_s=SOON_S)
        cluster.delete(f"short-{number}")
    wait_phases(cluster, {card.uuid: "Ready" for card in node.cards})
    cluster.wait(lambda: holding(cluster, *uuids(running)) == ["running"], "nothing is left of pods that were deleted")
    cluster.check_consistent()


def test_the_cards_of_a_renamed_node_follow_it_when_nobody_holds_them(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    after = renamed(node, "renamed-free")
    remove_node(cluster, node.name)
    cluster.register(after)
    cluster.wait(lambda: set(owners(cluster).values()) == {after.name}, "the cards belong to the new name")
    wait_phases(cluster, {card.uuid: "Ready" for card in node.cards})
    cluster.create(pod("new", {COUNT: 2}))
    cluster.wait_bound("new", timeout_s=SOON_S)
    cluster.check_consistent()


def test_held_cards_of_a_renamed_node_stay_with_the_old_name_until_their_pods_are_gone(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    cluster.create(pod("running", HALF))
    (running,) = cluster.wait_bound("running")
    (held,) = uuids(running)
    (free,) = {card.uuid for card in node.cards} - {held}
    after = renamed(node, "renamed-held")
    remove_node(cluster, node.name)
    cluster.register(after)
    wait_owners(cluster, {held: node.name, free: after.name})
    wait_phases(cluster, {held: "Unavailable", free: "Ready"})
    wait_told(cluster, after.name, held)
    cluster.create(pod("both", {COUNT: 2}))
    cluster.wait_refused("both", "fewer than 2 GPUs on the node")
    assert holding(cluster, held) == ["running"]
    cluster.delete("running")
    cluster.wait_bound("both", timeout_s=SOON_S)  # its register was not touched
    assert set(owners(cluster).values()) == {after.name}
    cluster.check_consistent()


def test_a_card_that_its_node_reports_no_more_goes_as_soon_as_nobody_holds_it(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=3)
    cluster.create(pod("running", HALF))
    (running,) = cluster.wait_bound("running")
    (held,) = uuids(running)
    free = [card.uuid for card in node.cards if card.uuid != held]
    kept = [card for card in node.cards if card.uuid == free[0]]
    report(cluster, node.name, kept)
    wait_phases(cluster, {held: "Unavailable", free[0]: "Ready"})
    cluster.create(pod("two", {COUNT: 2, MEMORY: 1000}))
    cluster.wait_refused("two", "fewer than 2 GPUs on the node")
    assert holding(cluster, held) == ["running"]
    cluster.delete("running")
    wait_phases(cluster, {free[0]: "Ready"})
    report(cluster, node.name, node.cards)
    cluster.wait_bound("two", timeout_s=SOON_S)
    cluster.check_consistent()


def test_a_held_card_that_is_reported_again_takes_pods_beside_its_holders(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    (uuid,) = (card.uuid for card in node.cards)
    cluster.create(pod("running", HALF))
    cluster.wait_bound("running")
    report(cluster, node.name, [])
    wait_phases(cluster, {uuid: "Unavailable"})
    cluster.create(pod("beside", HALF))
    cluster.wait_refused("beside", "the node no longer reports its GPU")
    report(cluster, node.name, node.cards)
    cluster.wait_bound("beside", timeout_s=SOON_S)
    assert holding(cluster, uuid) == ["beside", "running"]
    cluster.check_consistent()


def test_a_card_that_is_added_is_given_to_a_pod_that_waits(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    report(cluster, node.name, node.cards[:1])
    wait_phases(cluster, {node.cards[0].uuid: "Ready"})
    cluster.create(pod("running", {COUNT: 1}), pod("waiting", {COUNT: 1}))
    cluster.wait(lambda: cluster.metric("gpuledger_waiting_pods") == 1, "one of them waits")
    report(cluster, node.name, node.cards)
    cluster.wait_bound("running", "waiting", timeout_s=SOON_S)
    cluster.check_consistent()


@pytest.mark.parametrize(
    ("memory_mib", "number", "reason"),
    [(15000, 10, "no card with 10000 MiB free"), (40960, 1, "no card with a free slot")],
    ids=["memory", "slots"],
)
def test_a_card_that_shrinks_below_what_is_held_keeps_its_holders_and_takes_nobody(
    cluster: Cluster, memory_mib: int, number: int, reason: str
) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    (uuid,) = (card.uuid for card in node.cards)
    names = ["first", "second", "third"]
    cluster.create(*(pod(name, {COUNT: 1, MEMORY: 10000}) for name in names))
    cluster.wait_bound(*names)
    before = cluster.holders()
    report(cluster, node.name, with_capacity(node.cards, memory_mib, number))
    wanted = {"memoryMiB": memory_mib, "cores": 100, "number": number}
    cluster.wait(lambda: cluster.cards()[uuid]["spec"]["capacity"] == wanted, "the card has shrunk")
    wait_phases(cluster, {uuid: "Ready"})
    assert cluster.holders() == before
    cluster.create(pod("new", {COUNT: 1, MEMORY: 10000}))
    cluster.wait_refused("new", reason)
    for number_left, name in ((2, "first"), (1, "second")):
        cluster.delete(name)
        cluster.wait(lambda n=number_left: len(cluster.holders()[uuid]) == n, f"{name} has left")  # type: ignore[misc]
    cluster.settle()
    assert holding(cluster, uuid) == ["third"], "there is room for one"
    cluster.delete("third")
    cluster.wait_bound("new", timeout_s=SOON_S)
    cluster.check_consistent()


def test_pods_that_wait_for_a_card_to_work_again_are_bound_soon_after_it_does(cluster: Cluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    (card,) = node.cards
    report(cluster, node.name, [replace(card, healthy=False)])
    wait_phases(cluster, {card.uuid: "Unhealthy"})
    names = [f"waiting-{number}" for number in range(10)]
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 10}) for name in names))
    cluster.wait(lambda: cluster.metric("gpuledger_waiting_pods") == len(names), "all of them wait")
    report(cluster, node.name, [card])
    cluster.wait_bound(*names, timeout_s=SOON_S)
    cluster.check_consistent()


@pytest.mark.promise("node changes")
def test_a_card_that_two_nodes_report_belongs_to_one_until_that_one_gives_it_up(cluster: Cluster) -> None:
    first, second = cluster.add_nodes(2, gpus=2)
    contested, own = first.cards[0], second.cards[1]
    claims = [replace(contested, node_name=second.name), own]
    report(cluster, second.name, claims)
    wait_told(cluster, second.name, contested.uuid)
    wait_phases(cluster, {card.uuid: "Ready" for card in (*first.cards, own)})
    cluster.create(*(pod(f"whole-{number}", {COUNT: 1}) for number in range(3)))
    cluster.wait_bound("whole-0", "whole-1", "whole-2")
    assert owners(cluster) == {**{card.uuid: first.name for card in first.cards}, own.uuid: second.name}
    (holder,) = holding(cluster, contested.uuid)
    report(cluster, first.name, first.cards[1:])
    wait_phases(cluster, {contested.uuid: "Unavailable", first.cards[1].uuid: "Ready", own.uuid: "Ready"})
    assert owners(cluster)[contested.uuid] == first.name, "it is held there"
    cluster.create(pod("next", {COUNT: 1}))
    cluster.wait_refused("next", "no card entirely free")
    cluster.delete(holder)
    (bound,) = cluster.wait_bound("next", timeout_s=SOON_S)
    assert (uuids(bound), bound["spec"]["nodeName"]) == ([contested.uuid], second.name)
    assert owners(cluster)[contested.uuid] == second.name
    cluster.check_consistent()


def test_a_restart_changes_nothing_about_a_card_that_two_nodes_report(cluster: Cluster) -> None:
    first, second = cluster.add_nodes(2, gpus=1)
    report(cluster, second.name, [replace(first.cards[0], node_name=second.name)])
    wait_told(cluster, second.name, first.cards[0].uuid)
    wait_phases(cluster, {first.cards[0].uuid: "Ready"})
    cluster.settle()
    before, offset = cluster.cards(), cluster.plane.audit_offset()
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    cluster.settle()
    assert cluster.our_writes(offset, ["pods", "nodes", "gpuallocations"]) == []
    assert cluster.cards() == before
