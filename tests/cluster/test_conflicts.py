"""A card comes back with less than its pods use: by setting, those bound last leave, and all others are entered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cluster.cluster import ALLOCATIONS, COUNT, MEMORY, phase, uuids
from cluster.preempting import LOW, PreemptingCluster, preempting_cluster
from cluster.shared import SharedPlane
from cluster.test_agents_and_kubelets import AGENTS
from cluster.test_confirmations import FakeAgents, answering
from gpuledger.agent.simulated import FakeNode
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.workflows.kinds import AGENT_SELECTOR

A_SECOND = 1.1
"""Kubernetes says in whole seconds when a pod was bound."""


@pytest.fixture
def cluster(shared: SharedPlane) -> Iterator[PreemptingCluster]:
    with preempting_cluster(shared.lent(), {"conflict_policy": "youngest-leaves"}) as cluster:
        yield cluster
        cluster.request("DELETE", f"{AGENTS}?gracePeriodSeconds=0&labelSelector={AGENT_SELECTOR}")
        cluster.clear()


def conflicts(cluster: PreemptingCluster, uuid: str) -> list[str]:
    """Return the names of the pods that a card lists, once it is there, as some for which it has no room."""
    status = (cluster.cards().get(uuid) or {}).get("status") or {}
    return [each["pod"] for each in status.get("conflicts") or ()]


def test_of_a_card_that_comes_back_smaller_the_pods_leave_that_were_bound_last(cluster: PreemptingCluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    (card,) = node.cards
    agents, since = FakeAgents(cluster), cluster.plane.audit_offset()
    agents.add(node)
    memory_mib = card.capacity.memory_mib // 4
    older, younger = "zz-older", "aa-younger"  # what an agent has granted is entered by the pods' names
    names: dict[str, list[str]] = {}
    for app in (older, younger):
        cluster.deploy(app, {COUNT: 1, MEMORY: memory_mib}, 2, LOW)
        names[app] = sorted(each["metadata"]["name"] for each in cluster.wait_placed(app, 2))
        cluster.settle(A_SECOND)
    granted = stored_card(cluster.cards()[card.uuid]).holders
    assert granted is not None
    agents.granted[node.name] = list(granted)
    cluster.installation.kill_operator()
    cluster.request("DELETE", ALLOCATIONS)
    half = replace(card.capacity, memory_mib=2 * memory_mib)
    cluster.register(FakeNode(node.name, (replace(card, capacity=half),)))
    with answering(agents):
        cluster.restart_operator()
        cluster.wait(lambda: len(conflicts(cluster, card.uuid)) == 2, "two do not fit")
        (other,) = cluster.add_nodes(1, gpus=1)
        cluster.wait(lambda: sorted(cluster.evictions(since)) == names[younger], "the younger ones are evicted")
        cluster.wait_placed(younger, 2)
        cluster.wait(lambda: phase(cluster.cards()[card.uuid]) == "Ready", "the card takes pods again")
        cluster.at_rest()
    assert sorted(cluster.evictions(since)) == names[younger], "each was evicted once"
    assert sorted(each["metadata"]["name"] for each in cluster.placed(older)) == names[older]
    assert all(uuids(each) == [other.cards[0].uuid] for each in cluster.placed(younger))
    status = cluster.cards()[card.uuid]["status"]
    assert sorted(each["pod"] for each in status["holders"]) == names[older]
    assert not conflicts(cluster, card.uuid)
    assert cluster.metric("gpuledger_conflict_evictions_total") == 2
