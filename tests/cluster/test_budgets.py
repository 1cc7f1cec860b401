"""Budgets and idle shares on a real control plane: who gets no card, who leaves, and what people read of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from cluster.cluster import COUNT, PERCENT, Cluster, pod, uuids
from cluster.gangs import bound, gang
from cluster.preempting import LOW, NAMESPACES, PreemptingCluster, preempting_cluster
from cluster.shared import SharedPlane
from gpuledger.formats.idle import IDLE_ANNOTATION, Idleness, idle_annotation

Json = dict[str, Any]

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
A_DAY = "gpuledger.dev/card-hours-per-day"
RESERVATIONS = "/apis/gpuledger.dev/v1alpha1/namespaces/default/gpureservations"
A_RESERVATION = {
    "apiVersion": "gpuledger.dev/v1alpha1",
    "kind": "GPUReservation",
    "metadata": {"name": "kept"},
    "spec": {
        "count": 1,
        "owners": [{"selector": {"matchLabels": {"app": "later"}}}],
        "template": {"spec": {"containers": [{"name": "main", "resources": {"limits": {COUNT: 1, PERCENT: 10}}}]}},
    },
}
HALF = {COUNT: 1, PERCENT: 50}
WHOLE = {COUNT: 1, PERCENT: 100}
_, OTHER = NAMESPACES
SETTINGS = {"idle_after_s": 3.0, "idle_grace_s": 2.0}


@pytest.fixture(scope="module")
def started(shared: SharedPlane) -> Iterator[PreemptingCluster]:
    with preempting_cluster(shared.lent(), SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: PreemptingCluster) -> Iterator[PreemptingCluster]:
    """Yield a cluster with one node of two cards."""
    started.add_nodes(1, gpus=2)
    yield started
    started.request("DELETE", QUOTAS)
    for namespace in NAMESPACES:
        set_policy(started, None, namespace)
    started.clear()


def allow(cluster: Cluster, hours: int) -> None:
    """Give the namespace a budget, or another one."""
    if cluster.request("GET", QUOTAS)["items"]:
        cluster.patch(f"{QUOTAS}/hours", {"spec": {"hard": {A_DAY: str(hours)}}})
    else:
        cluster.request("POST", QUOTAS, {"metadata": {"name": "hours"}, "spec": {"hard": {A_DAY: str(hours)}}})


def explained(cluster: Cluster, name: str) -> Json:
    """Return what the operator says of a pod; nothing as long as it does not know it."""
    where = f"{cluster.installation.view_url}/v1/explain?pod=default/{name}"
    try:
        with urllib.request.urlopen(where, timeout=20) as answer:  # noqa: S310
            found: Json = json.load(answer)
    except urllib.error.HTTPError:
        return {}
    return found


def waits_for_budget(cluster: Cluster, name: str) -> bool:
    return bool((explained(cluster, name).get("quota") or {}).get("spent"))


@pytest.mark.promise("accounts")
def test_a_spent_budget_refuses_pods_gangs_and_reservations_and_a_higher_one_lets_them_go_on(
    cluster: PreemptingCluster,
) -> None:
    cluster.create(pod("before", HALF))
    cluster.wait_bound("before")
    allow(cluster, 0)
    cluster.wait(lambda: spent(cluster) == "0", "the status shows what is spent")
    cluster.create(pod("alone", HALF))
    cluster.create(*gang("two", 2, **{PERCENT: 20}))
    cluster.wait(lambda: explained(cluster, "alone").get("reason") == "budget", "the pod waits for the budget")
    for name in ("alone", "two-0", "two-1"):
        cluster.wait(partial(waits_for_budget, cluster, name), f"{name} waits for the budget")
    assert "its 0 card hours of this day are spent" in explained(cluster, "alone")["summary"]
    cluster.request("POST", RESERVATIONS, A_RESERVATION)
    cluster.wait(lambda: "are spent" in why_not_reserved(cluster), "the reservation says why it waits")
    assert bound(cluster) == {"before"}
    allow(cluster, 1000)
    cluster.wait_bound("alone", "two-0", "two-1")
    cluster.wait(lambda: not why_not_reserved(cluster), "the reservation has its cards")
    cluster.request("DELETE", f"{RESERVATIONS}/kept")


def why_not_reserved(cluster: Cluster) -> str:
    """Return the message of the reservation's condition; nothing once it has its cards."""
    conditions = (cluster.request("GET", f"{RESERVATIONS}/kept").get("status") or {}).get("conditions") or [{}]
    found: Json = next((each for each in conditions if each.get("type") == "Reserved"), {})
    return "" if found.get("status") == "True" else str(found.get("message") or "not looked at yet")


def spent(cluster: Cluster) -> str | None:
    (quota,) = cluster.request("GET", QUOTAS)["items"]
    used: Json = (quota.get("status") or {}).get("used") or {}
    return used.get(A_DAY)


def set_policy(cluster: Cluster, policy: str | None, namespace: str = "default") -> None:
    cluster.patch(
        f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": {"gpuledger.dev/idle-policy": policy}}}
    )


def say_idle(cluster: PreemptingCluster, node_name: str, *names: str) -> None:
    """Have the node's agent say that pods' shares have been idle for an hour."""
    now = datetime.now(UTC)
    pods = {each["metadata"]["name"]: each for each in cluster.all_pods()}
    shares = {
        (pods[name]["metadata"]["uid"], uuid): Idleness(now - timedelta(hours=1))
        for name in names
        for uuid in uuids(pods[name])
    }
    text = idle_annotation(shares, now, "agent")
    cluster.patch(f"/api/v1/nodes/{node_name}", {"metadata": {"annotations": {IDLE_ANNOTATION: text}}})


def with_notebook(cluster: PreemptingCluster, namespace: str = "default") -> str:
    """Run a notebook on a whole card, and a busy pod on the other one; return the name of the notebook's pod."""
    cluster.deploy("notebook", WHOLE, 1, LOW, namespace)
    (notebook,) = (each["metadata"]["name"] for each in cluster.wait_placed("notebook", 1))
    busy = pod("busy", WHOLE)
    busy["spec"]["priorityClassName"] = LOW
    cluster.create(busy)
    cluster.wait_bound("busy")
    return str(notebook)


@pytest.mark.promise("accounts")
def test_an_idle_notebook_yields_to_a_pod_of_its_own_priority_when_one_waits(cluster: PreemptingCluster) -> None:
    set_policy(cluster, "yield")
    notebook = with_notebook(cluster)
    (node_name,) = {each["spec"]["nodeName"] for each in cluster.all_pods()}
    say_idle(cluster, node_name, notebook)
    cluster.wait(lambda: any("was used for" in each for each in cluster.messages(notebook)), "its namespace is told")
    waits = pod("waits", WHOLE)
    waits["spec"]["priorityClassName"] = LOW
    cluster.create(waits)
    cluster.wait_bound("waits")
    names = [each["metadata"]["name"] for each in cluster.all_pods()]
    assert notebook not in names
    assert "busy" in names


def test_by_policy_an_idle_pod_is_evicted_and_one_that_says_no_is_not(cluster: PreemptingCluster) -> None:
    set_policy(cluster, "evict", OTHER)  # of `default`, the policy of the last test may still be remembered
    notebook = with_notebook(cluster, OTHER)
    (node_name,) = {each["spec"]["nodeName"] for each in cluster.all_pods()}
    say_idle(cluster, node_name, notebook, "busy")  # the latter has no controller
    cluster.wait(lambda: notebook not in [each["metadata"]["name"] for each in cluster.all_pods()], "it is evicted")
    assert "busy" in [each["metadata"]["name"] for each in cluster.all_pods()]
    assert cluster.metric("gpuledger_idle_evictions_total") == 1
