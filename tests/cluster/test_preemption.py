"""Preemption on a real control plane: the scenarios of the 200-node report, and what could go wrong in between.

A simulated kubelet starts pods and ends them, but for those that a test keeps from ending.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import CORES, COUNT, DEADLINE_S, MERGE_PATCH, PERCENT, Cluster, uuids
from cluster.preempting import (
    HIGH,
    HIGHER,
    LOW,
    NAMESPACES,
    POLITE,
    PREEMPTION_TIMEOUT_S,
    WHOLE,
    PreemptingCluster,
    a_pod,
)
from effort import times
from faults.kinds import Hold, HoldEvents
from faults.requests import FOLLOWED, Match, watching
from installation import USER

Json = dict[str, Any]

FOUR_WHOLE = {COUNT: 4}
QUARTERS = {COUNT: 4, PERCENT: 25, CORES: 25}
SIXTY_PERCENT = {COUNT: 4, PERCENT: 60, CORES: 60}
MANY_CARDS, MANY_PREEMPTORS = times(16, 32), times(20, 50)


@pytest.fixture
def cluster(preempting: PreemptingCluster) -> Iterator[PreemptingCluster]:
    yield preempting
    preempting.clear()


def create(cluster: Cluster, *pods: Json) -> None:
    for pod in pods:
        cluster.request("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)


def delete(cluster: Cluster, pod: Json) -> None:
    metadata = pod["metadata"]
    cluster.request("DELETE", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}")


def reasons(cluster: Cluster, name: str, namespace: str = "default") -> list[str]:
    events = cluster.request("GET", f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}")
    return [event["reason"] for event in events["items"]]


WITHIN, ACROSS = NAMESPACES
in_both_ways = pytest.mark.parametrize(
    "namespace",
    [
        pytest.param(WITHIN, id="within-a-namespace", marks=pytest.mark.long),
        pytest.param(ACROSS, id="across-namespaces"),
    ],
)


# The report's scenarios, "Verification" 3 to 5.


@in_both_ways
def test_whole_gpus_are_preempted_one_by_one_and_come_back(cluster: PreemptingCluster, namespace: str) -> None:
    cluster.add_nodes(1, gpus=4)
    cluster.deploy("low", WHOLE, 4, LOW)
    cluster.wait_placed("low", 4)
    since = cluster.plane.audit_offset()
    pods = [a_pod(f"high-{number}", WHOLE, HIGH, namespace) for number in range(4)]
    for number, pod in enumerate(pods, 1):
        create(cluster, pod)
        cluster.wait_placed(pod["metadata"]["name"], 1)
        cluster.wait_placed("low", 4 - number)
        assert len(cluster.evictions(since)) == number
    cluster.at_rest()
    for number, pod in enumerate(pods, 1):
        delete(cluster, pod)
        cluster.wait_placed("low", number)
    cluster.at_rest()
    assert len(cluster.evictions(since)) == 4


@pytest.mark.promise("preemption")
@in_both_ways
def test_three_of_four_shares_leave_for_sixty_percent_and_resume(cluster: PreemptingCluster, namespace: str) -> None:
    cluster.add_nodes(1, gpus=4)
    cluster.deploy("low", QUARTERS, 4, LOW)
    cluster.wait_placed("low", 4)
    preempt_and_resume(cluster, a_pod("high", SIXTY_PERCENT, HIGH, namespace), replicas=4, victims=3)


@in_both_ways
def test_all_shares_leave_for_whole_gpus_and_resume(cluster: PreemptingCluster, namespace: str) -> None:
    cluster.add_nodes(1, gpus=4)
    cluster.deploy("low", QUARTERS, 4, LOW)
    cluster.wait_placed("low", 4)
    preempt_and_resume(cluster, a_pod("high", FOUR_WHOLE, HIGH, namespace), replicas=4, victims=4)


@in_both_ways
def test_whole_gpus_leave_for_shares_and_resume(cluster: PreemptingCluster, namespace: str) -> None:
    cluster.add_nodes(1, gpus=4)
    cluster.deploy("low", WHOLE, 4, LOW)
    cluster.wait_placed("low", 4)
    preempt_and_resume(cluster, a_pod("high", SIXTY_PERCENT, HIGH, namespace), replicas=4, victims=4)


def preempt_and_resume(cluster: PreemptingCluster, high: Json, replicas: int, victims: int) -> None:
    since = cluster.plane.audit_offset()
    create(cluster, high)
    [found] = cluster.wait_placed("high", 1)
    assert len(set(uuids(found))) == 4
    assert len(cluster.evictions(since)) == victims
    cluster.wait_placed("low", replicas - victims)
    cluster.at_rest()
    assert "Preempting" in reasons(cluster, "high", high["metadata"]["namespace"])
    delete(cluster, high)
    cluster.wait_placed("low", replicas)
    cluster.at_rest()
    assert len(cluster.evictions(since)) == victims


# Nobody dies for nothing.


def test_nobody_is_evicted_for_cpu_where_the_cards_would_not_do(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    hog = a_pod("cpu-hog", {}, LOW, container={"resources": {"requests": {"cpu": "120"}}})
    create(cluster, hog, a_pod("has-the-card", WHOLE, HIGHER))
    cluster.wait_bound("cpu-hog", "has-the-card")
    since = cluster.plane.audit_offset()
    create(cluster, needs_cpu_too("high"))
    cluster.wait_refused("high", "Insufficient cpu")
    time.sleep(3.0)
    assert cluster.evictions(since) == []
    assert not cluster.pod("cpu-hog")["metadata"].get("deletionTimestamp")


def needs_cpu_too(name: str, priority: str = HIGH, cpu: int = 60) -> Json:
    limits = {COUNT: "1"}
    requests = {"cpu": str(cpu), **limits}
    return a_pod(name, {}, priority, container={"resources": {"limits": limits, "requests": requests}})


def test_cpu_and_cards_are_freed_together(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    hog = a_pod("cpu-hog", {}, LOW, container={"resources": {"requests": {"cpu": "120"}}})
    create(cluster, hog, a_pod("low", WHOLE, LOW))
    cluster.wait_bound("cpu-hog", "low")
    create(cluster, needs_cpu_too("high"))
    cluster.wait_bound("high")
    cluster.at_rest()
    assert set(cluster.pods()) == {"high"}


def test_cpu_and_cards_are_freed_though_the_operator_has_not_seen_the_victim_run(cluster: PreemptingCluster) -> None:
    """kube-scheduler asks once: what happens to cards is nothing for which it would try the pod again."""
    cluster.add_nodes(1, gpus=1)
    hog = a_pod("cpu-hog", {}, LOW, container={"resources": {"requests": {"cpu": "120"}}})
    create(cluster, hog)
    cluster.wait_bound("cpu-hog")
    unseen = cluster.proxy.arm(watching("pods", FOLLOWED), HoldEvents())
    create(cluster, a_pod("low", WHOLE, LOW))
    cluster.wait_bound("low")
    create(cluster, needs_cpu_too("high"))
    cluster.wait_placed("low", 0)
    cluster.proxy.disarm(unseen)
    cluster.wait_bound("high")
    cluster.at_rest()
    assert set(cluster.pods()) == {"high"}


def test_a_pod_that_never_preempts_and_one_of_equal_priority_wait(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    create(cluster, a_pod("low", WHOLE, LOW))
    cluster.wait_bound("low")
    since = cluster.plane.audit_offset()
    create(cluster, a_pod("polite", WHOLE, POLITE), a_pod("equal", WHOLE, LOW))
    for name in ("polite", "equal"):
        cluster.wait_refused(name, "no card entirely free")
    time.sleep(2.0)
    assert cluster.evictions(since) == []


@pytest.mark.promise("preemption")
def test_a_budget_that_forbids_is_kept_and_the_pod_is_told(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.deploy("low", WHOLE, 1, LOW)
    [low] = cluster.wait_placed("low", 1)
    budget = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}}}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    cluster.request("POST", path, budget)
    cluster.wait(
        lambda: cluster.request("GET", f"{path}/keep").get("status", {}).get("expectedPods") == 1,
        "the budget is counted",
    )
    since = cluster.plane.audit_offset()
    create(cluster, a_pod("high", WHOLE))
    cluster.wait(lambda: "PreemptionForbidden" in reasons(cluster, "high"), "the pod is told")
    assert cluster.evictions(since) == []
    assert [p["metadata"]["uid"] for p in cluster.placed("low")] == [low["metadata"]["uid"]]
    cluster.request("DELETE", f"{path}/keep")
    cluster.wait_placed("high", 1)  # it is looked at again, without anybody's help


def test_a_setting_lets_a_pod_go_although_a_budget_forbids_it(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    create(cluster, a_pod("low", WHOLE, LOW, labels={"app": "kept"}))
    cluster.wait_bound("low")
    budget = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}
    cluster.request("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    with cluster.other_settings(preempt_despite_budgets=True):
        since = cluster.plane.audit_offset()
        create(cluster, a_pod("high", WHOLE))
        cluster.wait_bound("high")
    ours = [e for e in cluster.plane.api_writes(since) if e.user == USER and e.name == "low"]
    # A Job's podFailurePolicy reads the condition, and kube-scheduler's own preemption writes it, too.
    said = [("eviction", 429), ("status", 200), ("delete", 200)]
    assert [(e.subresource or e.verb, e.code) for e in ours] == said


def test_a_victim_that_asks_for_no_time_to_end_leaves_when_its_kubelet_says_so(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    create(cluster, a_pod("low", WHOLE, LOW, terminationGracePeriodSeconds=0))
    cluster.wait_bound("low")
    cluster.kubelet.stubborn = {"low"}
    create(cluster, a_pod("high", WHOLE))
    cluster.wait(lambda: "deletionTimestamp" in cluster.pod("low")["metadata"], "it is asked to leave")
    assert cluster.pod("low")["metadata"]["deletionGracePeriodSeconds"] == 1
    cluster.kubelet.stubborn.clear()
    cluster.wait_bound("high")


# Two at once, many at once, slow ones, dead ones.


def test_two_preemptors_evict_each_victim_once(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    create(cluster, a_pod("low-0", WHOLE, LOW), a_pod("low-1", WHOLE, LOW))
    cluster.wait_bound("low-0", "low-1")
    since = cluster.plane.audit_offset()
    create(cluster, *(a_pod(f"high-{number}", WHOLE) for number in range(3)))
    cluster.wait(lambda: sum(len(cluster.placed(f"high-{n}")) for n in range(3)) == 2, "two of three are placed")
    cluster.at_rest()
    assert sorted(cluster.evictions(since)) == ["low-0", "low-1"]


def test_many_preemptors_at_once_converge(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(4, gpus=MANY_CARDS // 4)
    low = [a_pod(f"low-{number}", {COUNT: 1, PERCENT: 50, CORES: 50}, LOW) for number in range(2 * MANY_CARDS)]
    create(cluster, *low)
    cluster.wait_bound(*(pod["metadata"]["name"] for pod in low))
    since = cluster.plane.audit_offset()
    half = {COUNT: 1, PERCENT: 50, CORES: 50}
    high = [a_pod(f"high-{number}", half) for number in range(MANY_PREEMPTORS)]
    create(cluster, *high)
    cluster.wait_bound(*(pod["metadata"]["name"] for pod in high), timeout_s=times(2, 5) * DEADLINE_S)
    cluster.at_rest()
    assert max(Counter(cluster.evictions(since)).values()) == 1
    assert len(cluster.evictions(since)) == MANY_PREEMPTORS
    assert len([name for name in cluster.pods() if name.startswith("low")]) == 2 * MANY_CARDS - MANY_PREEMPTORS


def test_a_slow_victim_is_waited_for_and_nobody_takes_the_place(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.kubelet.stubborn.add("low")
    create(cluster, a_pod("low", WHOLE, LOW, terminationGracePeriodSeconds=300))
    cluster.wait_bound("low")
    create(cluster, a_pod("high", WHOLE))
    cluster.wait(lambda: bool(cluster.pod("low")["metadata"].get("deletionTimestamp")), "the victim is told to leave")
    [claim] = next(iter(cluster.cards().values()))["status"]["claims"]
    assert claim["pod"] == "high"
    create(cluster, a_pod("latecomer", WHOLE, LOW))
    cluster.wait_refused("latecomer", "no card entirely free")
    time.sleep(PREEMPTION_TIMEOUT_S + 4)  # five minutes of grace are more than the time that room is kept beyond it
    assert next(iter(cluster.cards().values()))["status"]["claims"]
    cluster.kubelet.stubborn.clear()
    cluster.wait_bound("high")
    assert not cluster.pod("latecomer")["spec"].get("nodeName")


def test_the_cpu_for_a_pod_is_kept_while_a_card_is_being_freed_for_it(cluster: PreemptingCluster) -> None:
    """It is free all the time, and whoever comes first would have it; then the victim had left in vain."""

    def nominated(name: str) -> str:
        return str(cluster.pod(name)["status"].get("nominatedNodeName") or "")

    def touch(value: str) -> None:
        change = {"metadata": {"labels": {"touched": value}}}
        cluster.request("PATCH", "/api/v1/namespaces/default/pods/high", change, MERGE_PATCH)

    cluster.add_nodes(1, gpus=1)
    cluster.kubelet.stubborn.add("low")
    create(cluster, a_pod("low", WHOLE, LOW, terminationGracePeriodSeconds=300))
    [low] = cluster.wait_bound("low")
    create(cluster, needs_cpu_too("high", cpu=100))
    cluster.wait(lambda: bool(cluster.pod("low")["metadata"].get("deletionTimestamp")), "the victim is told to leave")
    cluster.wait(lambda: bool(nominated("high")), "the pod is nominated")
    touch("first")  # and kube-scheduler tries it again, in vain
    cluster.wait_refused("high", "cards are being freed for the pod")
    touch("second")
    time.sleep(3.0)
    create(cluster, a_pod("rival", {}, LOW, container={"resources": {"requests": {"cpu": "100"}}}))
    cluster.wait_refused("rival", "Insufficient cpu")
    assert nominated("high") == low["spec"]["nodeName"]
    cluster.kubelet.stubborn.clear()
    cluster.wait_bound("high")
    assert not cluster.pod("rival")["spec"].get("nodeName")


def test_other_room_is_taken_when_it_comes_first(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.kubelet.stubborn.add("low")
    create(cluster, a_pod("low", WHOLE, LOW, terminationGracePeriodSeconds=300))
    cluster.wait_bound("low")
    create(cluster, a_pod("high", WHOLE))
    cluster.wait(lambda: bool(cluster.pod("low")["metadata"].get("deletionTimestamp")), "the victim is told to leave")
    cluster.add_nodes(1, gpus=1)
    cluster.wait_bound("high")
    cluster.wait(lambda: not any((c["status"].get("claims")) for c in cluster.cards().values()), "nothing is kept")


def test_a_preemptor_that_vanishes_leaves_no_room_locked(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.kubelet.stubborn.add("low")
    create(cluster, a_pod("low", WHOLE, LOW))
    cluster.wait_bound("low")
    create(cluster, a_pod("high", WHOLE))
    cluster.wait(lambda: bool(cluster.pod("low")["metadata"].get("deletionTimestamp")), "the victim is told to leave")
    create(cluster, a_pod("latecomer", WHOLE, LOW))
    cluster.wait_refused("latecomer", "no card entirely free")
    cluster.delete("high")
    cluster.kubelet.stubborn.clear()
    cluster.wait_bound("latecomer")
    cluster.at_rest()


def test_a_victim_that_refuses_to_go_ends_the_preemption(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.kubelet.stubborn.add("low")
    create(cluster, a_pod("low", WHOLE, LOW, terminationGracePeriodSeconds=1))
    cluster.wait_bound("low")
    since = cluster.plane.audit_offset()
    create(cluster, a_pod("high", WHOLE))
    cluster.wait(lambda: "PreemptionGivenUp" in reasons(cluster, "high"), "the room is given up", 2 * DEADLINE_S)
    assert cluster.evictions(since) == ["low"]


@pytest.mark.promise("preemption")
def test_an_operator_killed_between_two_evictions_evicts_nobody_twice(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.kubelet.stubborn |= {"low-0", "low-1"}
    create(cluster, a_pod("low-0", WHOLE, LOW), a_pod("low-1", WHOLE, LOW))
    cluster.wait_bound("low-0", "low-1")
    since = cluster.plane.audit_offset()
    armed = cluster.proxy.arm(evicting("low-1"), Hold(), times=None)
    create(cluster, a_pod("high", {COUNT: 2}))
    cluster.wait(lambda: cluster.evictions(since) == ["low-0"], "the first of two is evicted")
    armed.wait()
    cluster.installation.kill_operator()
    cluster.proxy.disarm()
    cluster.restart_operator()
    cluster.wait(lambda: sorted(cluster.evictions(since)) == ["low-0", "low-1"], "the second is evicted, too")
    cluster.kubelet.stubborn.clear()
    [found] = cluster.wait_bound("high")
    assert len(set(uuids(found))) == 2
    cluster.at_rest()
    assert sorted(cluster.evictions(since)) == ["low-0", "low-1"]


def test_an_operator_killed_while_one_of_two_cards_is_reserved_keeps_it(cluster: PreemptingCluster) -> None:
    """Its pod is not bound: it must not be taken for what a crash has left."""
    cluster.add_nodes(1, gpus=2)
    cluster.kubelet.stubborn.add("low-1")
    low = [a_pod(name, WHOLE, LOW, terminationGracePeriodSeconds=300) for name in ("low-0", "low-1")]
    create(cluster, *low)
    cluster.wait_bound("low-0", "low-1")
    since = cluster.plane.audit_offset()
    create(cluster, a_pod("high", {COUNT: 2}))
    cluster.wait(lambda: len(reserved(cluster)) == 1, "one card is reserved, the other is waited for")
    before = reserved(cluster)
    cluster.installation.kill_operator()
    create(cluster, a_pod("latecomer", WHOLE, LOW))
    cluster.restart_operator()
    cluster.wait_refused("latecomer", "no card entirely free")
    cluster.settle()
    assert reserved(cluster) == before
    cluster.kubelet.stubborn.clear()
    [found] = cluster.wait_bound("high")
    assert len(set(uuids(found))) == 2
    assert sorted(cluster.evictions(since)) == ["low-0", "low-1"]
    assert not cluster.pod("latecomer")["spec"].get("nodeName")


def reserved(cluster: PreemptingCluster) -> list[Json]:
    return [holder for held in cluster.holders().values() for holder in held if holder["state"] == "reserved"]


def evicting(name: str) -> Match:
    return Match(f"eviction of {name}", lambda request: request.path.endswith(f"/pods/{name}/eviction"))
