"""Pods leave a card that has failed, on a real control plane: by budgets, each once, and never in a storm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.cluster import COUNT, PERCENT, phase, uuids
from cluster.preempting import LOW, PreemptingCluster, preempting_cluster
from cluster.shared import SharedPlane
from gpuledger.agent.simulated import FakeNode
from gpuledger.model.clock import rfc3339
from gpuledger.model.failure import Failure, FaultClass

Json = dict[str, Any]

GRACE_S = 3.0
"""Of the settings here, for every class by which pods leave."""

STAYS_S = 8.0
"""A while in which a pod that was to leave would have left."""

QUARTER = {COUNT: 1, PERCENT: 25}
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(scope="module")
def started(shared: SharedPlane) -> Iterator[PreemptingCluster]:
    with preempting_cluster(shared.lent(), {"failure_grace_s": GRACE_S}) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: PreemptingCluster) -> Iterator[PreemptingCluster]:
    yield started
    started.clear()


def report(cluster: PreemptingCluster, node: FakeNode, fault_class: FaultClass | None, *indexes: int) -> None:
    """Let a node's agent report some of its cards with a fault of this class that begins now, or all without one."""
    failure = Failure(fault_class, rfc3339(datetime.now(UTC))) if fault_class is not None else None
    fault = f"a fault ({fault_class})"
    failed = {i: replace(node.cards[i], healthy=False, fault=fault, failure=failure) for i in indexes}
    cluster.register(FakeNode(node.name, tuple(failed.get(card.index, card) for card in node.cards)))


def on_card(cluster: PreemptingCluster, uuid: str) -> list[str]:
    return sorted(each["metadata"]["name"] for each in cluster.all_pods() if uuids(each) == [uuid])


def spread(cluster: PreemptingCluster) -> tuple[list[FakeNode], list[str], list[str]]:
    """Run eight quarters by a Deployment on two nodes of two cards.

    Returns the nodes, the pods on one card of the first node that has some, and the other pods.
    """
    nodes = cluster.add_nodes(2, gpus=2)
    cluster.deploy("web", QUARTER, 8, LOW)
    names = [each["metadata"]["name"] for each in cluster.wait_placed("web", 8)]
    nodes.sort(key=lambda node: not on_card(cluster, node.cards[0].uuid))
    hit = on_card(cluster, nodes[0].cards[0].uuid)
    assert hit
    return nodes, hit, sorted(set(names) - set(hit))


@pytest.mark.promise("failed cards")
def test_the_pods_of_a_lost_card_run_on_others_soon_and_nobody_else_is_moved(cluster: PreemptingCluster) -> None:
    since = cluster.plane.audit_offset()
    nodes, hit, others = spread(cluster)
    lost = nodes[0].cards[0].uuid
    report(cluster, nodes[0], FaultClass.LOST, 0)
    cluster.wait(lambda: sorted(cluster.evictions(since)) == hit, "the pods of the card are evicted")
    cluster.wait(lambda: len(cluster.placed("web")) == 8 and not on_card(cluster, lost), "all run on other cards")
    assert set(others) <= {each["metadata"]["name"] for each in cluster.placed("web")}
    card = cluster.cards()[lost]
    assert (phase(card), card["spec"]["failure"]["faultClass"]) == ("Unhealthy", "lost")
    assert cluster.metric('gpuledger_failed_cards{fault_class="lost"}') == 1
    cluster.restart_operator()
    report(cluster, nodes[0], None)
    cluster.wait(lambda: phase(cluster.cards()[lost]) == "Ready", "the card takes pods again")
    cluster.at_rest()
    assert sorted(cluster.evictions(since)) == hit, "each was evicted once"


def test_an_operator_that_comes_back_has_pods_leave_that_its_predecessor_had_not(cluster: PreemptingCluster) -> None:
    since = cluster.plane.audit_offset()
    nodes, hit, _ = spread(cluster)
    cluster.installation.kill_operator()
    report(cluster, nodes[0], FaultClass.RESET, 0)
    cluster.restart_operator()
    cluster.wait(lambda: sorted(cluster.evictions(since)) == hit, "the pods of the card are evicted")
    cluster.wait_placed("web", 8)
    cluster.at_rest()


@pytest.mark.parametrize("fault_class", [FaultClass.CONTAINED, FaultClass.OTHER])
def test_pods_stay_on_a_card_on_which_programs_go_on_however_often_it_fails(
    cluster: PreemptingCluster, fault_class: FaultClass
) -> None:
    since = cluster.plane.audit_offset()
    nodes, _, _ = spread(cluster)
    for _ in range(3):
        report(cluster, nodes[0], fault_class, 0)
        cluster.wait(lambda: phase(cluster.cards()[nodes[0].cards[0].uuid]) == "Unhealthy", "the card is closed")
        report(cluster, nodes[0], None)
        cluster.wait(lambda: phase(cluster.cards()[nodes[0].cards[0].uuid]) == "Ready", "the card is open")
    cluster.settle(GRACE_S)
    assert cluster.evictions(since) == []


def test_a_budget_of_nothing_keeps_the_pods_and_they_are_told_until_it_allows_some(cluster: PreemptingCluster) -> None:
    since = cluster.plane.audit_offset()
    nodes, hit, _ = spread(cluster)
    body = {"metadata": {"name": "web"}, "spec": {"minAvailable": 8, "selector": {"matchLabels": {"app": "web"}}}}
    cluster.request("POST", BUDGETS, body)
    report(cluster, nodes[0], FaultClass.LOST, 0)
    told = "the pod is not evicted: a PodDisruptionBudget forbids that now"
    cluster.wait(lambda: all(any(told in m for m in cluster.messages(name)) for name in hit), "they are told", 30)
    assert cluster.evictions(since) == []
    cluster.patch(f"{BUDGETS}/web", {"spec": {"minAvailable": 7}})
    cluster.wait(lambda: sorted(cluster.evictions(since)) == hit, "they leave, one after the other", 120)
    cluster.wait_placed("web", 8)


@pytest.mark.promise("failed cards")
def test_where_cards_of_two_nodes_fail_at_once_nobody_is_evicted(cluster: PreemptingCluster) -> None:
    since = cluster.plane.audit_offset()
    nodes = cluster.add_nodes(2, gpus=2)
    cluster.deploy("web", {COUNT: 1}, 4, LOW)
    cluster.wait_placed("web", 4)
    report(cluster, nodes[0], FaultClass.LOST, 0)
    report(cluster, nodes[1], FaultClass.LOST, 0)
    cluster.wait(lambda: cluster.metric("gpuledger_failed_cards_held") == 2, "both are taken for a storm", 30)
    cluster.settle(STAYS_S)
    assert cluster.evictions(since) == []
    (name,) = on_card(cluster, nodes[0].cards[0].uuid)
    assert any("cards of more than one node have failed within 5 minutes" in each for each in cluster.messages(name))


def test_a_jobs_pod_runs_again_under_another_name(cluster: PreemptingCluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=2)
    spec = {
        "schedulerName": "gpuledger",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {COUNT: "1"}}}],
    }
    ignored = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    template = {"metadata": {"labels": {"app": "train"}}, "spec": spec}
    body = {"template": template, "podFailurePolicy": ignored, "backoffLimit": 0}
    cluster.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": body})
    try:
        (first,) = cluster.wait_placed("train", 1)
        index = [card.uuid for card in node.cards].index(uuids(first)[0])
        report(cluster, node, FaultClass.LOST, index)
        cluster.wait(lambda: bool(others(cluster, first)), "another pod of the Job is placed", 60)
        (second,) = others(cluster, first)
        assert uuids(second) == [node.cards[1 - index].uuid]
        job = cluster.request("GET", f"{JOBS}/train")
        assert job["status"].get("failed", 0) == 0, "an eviction is no failure of the Job"
    finally:
        cluster.request("DELETE", f"{JOBS}/train", {"propagationPolicy": "Background"})


def others(cluster: PreemptingCluster, pod: Json) -> list[Json]:
    return [each for each in cluster.placed("train") if each["metadata"]["uid"] != pod["metadata"]["uid"]]
