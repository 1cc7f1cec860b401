"""A ledger that was lost comes back closed, and opens by the agent's word: no card is given twice."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cluster.cluster import ALLOCATIONS, NODES, PODS
from cluster.etcd_copies import copy_etcd, restore_etcd
from gpuledger.formats.confirmation import GRANTED_ANNOTATION
from node.agent_pod import AgentPod, ended
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card

pytestmark = pytest.mark.timeout(300)
Say = Callable[[str], None]

MOST_MIB = 60_000
"""Of a card: two such shares do not fit."""

STUBBORN = "trap '' TERM; while true; do sleep 1; done"
WATCHED_S = 8.0


def lose_ledger(gpu: GpuNode) -> None:
    """Delete all cards while no operator runs."""
    gpu.installation.kill_operator()
    gpu.plane.kubectl("delete", "gpuallocations", "--all")
    assert gpu.cluster.request("GET", ALLOCATIONS)["items"] == []


def users(gpu: GpuNode) -> dict[str, list[str]]:
    """Return the UUID of each card -> the names of the pods that hold it."""
    return {
        card["spec"]["uuid"]: [holder["pod"] for holder in (card.get("status") or {}).get("holders") or ()]
        for card in gpu.cluster.cards().values()
    }


def bound(gpu: GpuNode) -> set[str]:
    return {name for name, pod in gpu.cluster.pods().items() if pod["spec"].get("nodeName")}


def no_card_is_given_twice(gpu: GpuNode, names: list[str]) -> None:
    """Check that these pods, of which no card takes two, are alone on their cards, by their containers' own word."""
    cards = [uuid for name in names for uuid, _, _ in gpu.told(name)]
    assert len(cards) == len(set(cards))


def watch_that_nobody_gets_its_card(gpu: GpuNode, pid: int) -> None:
    """Check for some time that a container runs, and that the pod that waits for its card is not bound."""
    end_s = time.monotonic() + WATCHED_S
    while time.monotonic() < end_s:
        assert not ended(pid)
        assert bound(gpu) == set()
        time.sleep(0.5)


def wait_for_the_next(gpu: GpuNode, pid: int) -> None:
    """Wait until the pod that waits is bound; the container must be over by then."""
    gpu.cluster.wait(lambda: bound(gpu) == {"next"}, "the card is free once the container has ended", 120)
    assert ended(pid)


@pytest.mark.promise("lost ledger")
def test_cards_lost_while_the_operator_was_down_are_given_to_nobody_else(agent: AgentPod, say: Say) -> None:
    gpu = agent.gpu
    before = gpu.create(*(gpu_pod(f"before-{n}", one_card(MOST_MIB)) for n in range(3)))
    gpu.wait_running(*before)
    identities = gpu.identities(*before)
    lose_ledger(gpu)
    new = gpu.create(*(gpu_pod(f"new-{n}", one_card(MOST_MIB)) for n in range(3)))
    begin_s = time.monotonic()
    gpu.installation.start_operator()
    gpu.cluster.wait(lambda: len(bound(gpu)) == 4, "one of the new pods has the card that is left")
    say(
        f"four cards were confirmed, and a new pod bound, {time.monotonic() - begin_s:.1f} s after the operator started"
    )
    time.sleep(WATCHED_S)
    (first,) = bound(gpu) - {*before}
    gpu.wait_running(first)
    no_card_is_given_twice(gpu, [*before, first])
    gpu.check(*before, first)
    assert gpu.identities(*before) == identities
    gpu.cluster.check_consistent()
    gpu.remove(before[0])
    gpu.cluster.wait(lambda: len(bound(gpu) & {*new}) == 2, "the next one follows")


def test_a_container_whose_pod_the_api_server_does_not_know_keeps_its_card_until_it_ends(agent: AgentPod) -> None:
    """As after etcd was put back: the pod is unknown, and so is its share, while its container runs."""
    gpu = agent.gpu
    card = gpu.state.cards[0].uuid
    only = {"nvidia.com/use-gpuuuid": card}
    gpu.create(gpu_pod("lost", gpu_container("main", one_card(MOST_MIB), STUBBORN), annotations=only))
    gpu.wait_running("lost")
    pid = gpu.node.container_pids(gpu.node.container_id("default", "lost", "main"))[0]
    gpu.node.kill_kubelet()
    try:
        lose_ledger(gpu)
        gpu.cluster.request("DELETE", f"{PODS}/lost?gracePeriodSeconds=0&propagationPolicy=Background")
        gpu.create(gpu_pod("next", one_card(MOST_MIB), annotations=only))
        gpu.installation.start_operator()
        gpu.cluster.wait(lambda: "lost" in users(gpu).get(card, ()), "the container counts")
        watch_that_nobody_gets_its_card(gpu, pid)
    finally:
        gpu.node.start_kubelet()
    wait_for_the_next(gpu, pid)


def test_after_etcd_was_put_back_a_pod_that_it_does_not_know_keeps_its_card_until_it_ends(
    agent: AgentPod, say: Say
) -> None:
    """The card is as old as ever, and the ledger agrees with the pods: only the agent knows of the container."""
    gpu = agent.gpu
    card = gpu.state.cards[0].uuid
    only = {"nvidia.com/use-gpuuuid": card}
    copy_etcd(gpu.cluster)
    gpu.wait_ready()
    gpu.create(gpu_pod("lost", gpu_container("main", one_card(MOST_MIB), STUBBORN), annotations=only))
    gpu.wait_running("lost")
    pid = gpu.node.container_pids(gpu.node.container_id("default", "lost", "main"))[0]
    gpu.node.kill_kubelet()
    try:
        gpu.installation.kill_operator()
        restore_etcd(gpu.cluster)
        restored_s = time.monotonic()
        assert users(gpu)[card] == []
        gpu.installation.start_operator()
        gpu.cluster.wait(lambda: "lost" in users(gpu)[card], "the container counts")
        say(f"a container of which etcd knows nothing counts {time.monotonic() - restored_s:.1f} s after the restore")
        gpu.create(gpu_pod("next", one_card(MOST_MIB), annotations=only))
        watch_that_nobody_gets_its_card(gpu, pid)
    finally:
        gpu.node.start_kubelet()
    wait_for_the_next(gpu, pid)
    gpu.wait_running("next")


def test_a_card_opens_by_one_write_of_the_node(agent: AgentPod) -> None:
    gpu = agent.gpu
    path = f"{NODES}/{gpu.node.name}"
    gpu.cluster.wait(lambda: len(gpu.open_cards()) == 4, "all cards are open")
    lose_ledger(gpu)
    before = gpu.cluster.request("GET", path)["metadata"]["annotations"][GRANTED_ANNOTATION]
    offset = gpu.plane.audit_offset()
    gpu.installation.start_operator()
    gpu.cluster.wait(lambda: len(gpu.open_cards()) == 4, "all cards are open again")
    assert gpu.cluster.request("GET", path)["metadata"]["annotations"][GRANTED_ANNOTATION] != before
    writes = [
        each.verb
        for each in gpu.plane.audit_events(offset)
        if each.resource == "nodes" and not each.subresource and each.verb in ("patch", "update")
    ]
    assert writes == ["patch"]
