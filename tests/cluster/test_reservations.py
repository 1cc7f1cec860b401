"""Reservations on a real control plane: kept by the API server's rules, taken by the pods of their owners alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cluster.cluster import COUNT, PERCENT, PODS, Cluster, RequestFailed, container, pod
from cluster.shared import SharedPlane
from installation import NOTHING_RUNS

Json = dict[str, Any]

RESERVATIONS = "/apis/gpuledger.dev/v1alpha1/namespaces/default/gpureservations"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
WHOLE = {COUNT: 1}
HALF = {COUNT: 1, PERCENT: 50}
NO_CARD = "no card entirely free"


@pytest.fixture(scope="module")
def started(shared: SharedPlane) -> Iterator[Cluster]:
    with shared.cluster(NOTHING_RUNS) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """Yield a cluster with one node of four cards, without pods or reservations."""
    started.add_nodes(1, gpus=4)
    yield started
    started.request("DELETE", RESERVATIONS)
    started.clear()


def a_reservation(name: str, limits: Json, **spec: Any) -> Json:
    owners = [{"selector": {"matchLabels": {"app": name}}}]
    template = {"spec": {"containers": [container(limits)]}}
    return {
        "apiVersion": "gpuledger.dev/v1alpha1",
        "kind": "GPUReservation",
        "metadata": {"name": name},
        "spec": {"template": template, "owners": owners, **spec},
    }


def reserve(cluster: Cluster, name: str, limits: Json, phase: str = "Reserved", **spec: Any) -> None:
    """Reserve, and wait until it is said to have come so far."""
    cluster.request("POST", RESERVATIONS, a_reservation(name, limits, **spec))
    wait_for(cluster, name, phase)


def status(cluster: Cluster, name: str) -> Json:
    return dict(cluster.request("GET", f"{RESERVATIONS}/{name}").get("status") or {})


def wait_for(cluster: Cluster, name: str, phase: str) -> None:
    cluster.wait(lambda: status(cluster, name).get("phase") == phase, f"reservation {name} is {phase}")


def mine(name: str, limits: Json, app: str) -> Json:
    return pod(name, limits) | {"metadata": {"name": name, "labels": {"app": app}}}


def holders(cluster: Cluster) -> list[Json]:
    return [each for card in cluster.cards().values() for each in card["status"]["holders"]]


def seats(cluster: Cluster) -> int:
    return sum(each["podUID"].startswith("seat-") for each in holders(cluster))


@pytest.mark.promise("reservations")
@pytest.mark.parametrize("limits", [WHOLE, HALF], ids=["whole cards", "shares"])
def test_cards_wait_for_the_pods_of_their_owner_and_each_pod_takes_one_place(cluster: Cluster, limits: Json) -> None:
    reserve(cluster, "web", limits, count=4 if limits == WHOLE else 8)
    number = seats(cluster)
    used = {name: card["status"]["used"] for name, card in cluster.cards().items()}
    cluster.create(pod("stranger", limits))
    cluster.wait_refused("stranger", NO_CARD if limits == WHOLE else "no card with 50 percent memory free")
    names = [f"web-{each}" for each in range(number)]
    cluster.create(*(mine(name, limits, "web") for name in names))
    cluster.wait_bound(*names)
    wait_for(cluster, "web", "Taken")
    assert seats(cluster) == 0
    assert {name: card["status"]["used"] for name, card in cluster.cards().items()} == used
    assert {each["seat"]["name"] for each in holders(cluster)} == {"web"}
    assert "nodeName" not in cluster.pod("stranger")["spec"]
    cluster.check_consistent()


@pytest.mark.promise("reservations")
def test_what_is_reserved_outlives_the_operator_and_what_is_deleted_meanwhile_is_free(cluster: Cluster) -> None:
    reserve(cluster, "web", WHOLE, count=2)
    reserve(cluster, "gone", WHOLE, count=2)
    cluster.installation.kill_operator()
    cluster.request("DELETE", f"{RESERVATIONS}/gone")
    cluster.create(*(pod(f"stranger-{number}", WHOLE) for number in range(4)))
    cluster.installation.start_operator()
    cluster.wait(lambda: sum("nodeName" in each["spec"] for each in cluster.pods().values()) == 2, "two are bound")
    cluster.create(*(mine(f"web-{number}", WHOLE, "web") for number in range(2)))
    cluster.wait_bound("web-0", "web-1")
    cluster.check_consistent()


def test_it_ends_when_it_says_so_and_others_get_the_cards(cluster: Cluster) -> None:
    reserve(cluster, "web", WHOLE, count=4, expires=(datetime.now(UTC) + timedelta(seconds=8)).isoformat())
    cluster.create(pod("stranger", {COUNT: 4}))
    cluster.wait_bound("stranger")
    wait_for(cluster, "web", "Expired")


def test_one_that_can_be_taken_again_is_reserved_anew_when_its_pod_has_ended(cluster: Cluster) -> None:
    reserve(cluster, "web", {COUNT: 4}, allocateOnce=False)
    for number in range(3):
        cluster.create(mine(f"web-{number}", {COUNT: 4}, "web"))
        cluster.wait_bound(f"web-{number}")
        wait_for(cluster, "web", "Taken")
        cluster.delete(f"web-{number}")
        wait_for(cluster, "web", "Reserved")


def test_a_gang_takes_all_places_at_once_and_nothing_is_reserved_again(cluster: Cluster) -> None:
    reserve(cluster, "train", WHOLE, count=2)
    places = {uuid for uuid, card in cluster.cards().items() if card["status"]["holders"]}
    labels = {"app": "train", "gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
    cluster.create(*(pod(name, WHOLE) | {"metadata": {"name": name, "labels": labels}} for name in ("one", "two")))
    cluster.wait_bound("one", "two")
    wait_for(cluster, "train", "Taken")
    cluster.settle()
    assert {uuid for uuid, card in cluster.cards().items() if card["status"]["holders"]} == places
    assert seats(cluster) == 0
    assert status(cluster, "train")["taken"] == 2
    cluster.check_consistent()


def test_a_quota_counts_what_is_reserved(cluster: Cluster) -> None:
    body = {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpu": "3"}}}
    cluster.request("POST", QUOTAS, body)
    try:
        limit = 'gpuledger_namespace_quota_limit{key="limits.nvidia.com/gpu",namespace="default",quota="gpus"}'
        cluster.wait(lambda: cluster.metric(limit) == 3, "the operator knows the quota")
        reserve(cluster, "web", WHOLE, "Waiting", count=4)
        cluster.wait(lambda: seats(cluster) == 3, "as much is reserved as may be")
        assert "limits.nvidia.com/gpu of ResourceQuota gpus" in status(cluster, "web")["conditions"][0]["message"]
        cluster.create(pod("stranger", WHOLE))
        cluster.wait_refused("stranger", "the quota of the pod's namespace does not allow it")
        cluster.create(mine("web-0", WHOLE, "web"))
        cluster.wait_bound("web-0")
    finally:
        cluster.request("DELETE", f"{QUOTAS}/gpus")


def test_what_waits_takes_what_becomes_free(cluster: Cluster) -> None:
    cluster.create(pod("first", {COUNT: 3}))
    cluster.wait_bound("first")
    reserve(cluster, "web", {COUNT: 2}, "Waiting", count=2)
    assert status(cluster, "web")["conditions"][0]["message"] == "2 of 2 pods find no cards at the moment"
    cluster.delete("first")
    wait_for(cluster, "web", "Reserved")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"owners": [{}]}, "an owner needs a selector, a controller, or both"),
        ({"owners": []}, "should have at least 1 items"),
        ({"count": 257}, "should be less than or equal to 256"),
    ],
)
def test_the_api_server_refuses_what_names_no_pods_or_too_many(cluster: Cluster, change: Json, message: str) -> None:
    with pytest.raises(RequestFailed, match=message):
        cluster.request("POST", RESERVATIONS, a_reservation("odd", WHOLE, **change))


def test_count_and_owners_stay_and_another_template_is_reserved_anew(cluster: Cluster) -> None:
    reserve(cluster, "web", WHOLE, count=2)
    with pytest.raises(RequestFailed, match="count and owners stay as they are"):
        cluster.patch(f"{RESERVATIONS}/web", {"spec": {"count": 3}})
    cluster.patch(f"{RESERVATIONS}/web", {"spec": {"template": {"spec": {"containers": [container({COUNT: 2})]}}}})
    cluster.wait(lambda: seats(cluster) == 4, "two cards are reserved for each")
    cluster.create(*(mine(f"web-{number}", {COUNT: 2}, "web") for number in range(2)))
    cluster.wait_bound("web-0", "web-1")


def test_a_template_that_can_not_be_had_stops_nothing_else(cluster: Cluster) -> None:
    odd: list[Json] = [{"cpu": "1"}, {COUNT: 1, PERCENT: 1_000}, {}]
    for number, limits in enumerate(odd):
        reserve(cluster, f"odd-{number}", limits, "Refused")
    long = {"spec": {"containers": [container({COUNT: 1}) | {"name": "x" * 40_000}]}}
    templates = {
        "null": {"spec": {"containers": None}},
        "text": {"spec": {"containers": "x"}},
        "nothing": {"spec": {"containers": [None]}},
        "labels": {"metadata": {"labels": 1}, "spec": {}},
        "long": long,
    }
    for name, template in templates.items():
        body = a_reservation(name, WHOLE)
        body["spec"]["template"] = template
        cluster.request("POST", RESERVATIONS, body)
        wait_for(cluster, name, "Refused")
    reserve(cluster, "web", WHOLE, count=4)
    assert cluster.request("GET", PODS)["items"] == []


# kubectl gpuledger reserve


def command(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    """Run `gpuledger reserve`; return what it prints."""
    run = [sys.executable, "-m", "gpuledger", "reserve", *arguments, "--kubeconfig", str(cluster.plane.kubeconfig)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.mark.promise("reservations")
def test_what_a_deployment_is_about_to_need_is_reserved_by_a_command(cluster: Cluster) -> None:
    labels = {"app": "chat"}
    spec = {"schedulerName": "gpuledger", "containers": [container(HALF)]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {
        "metadata": {"name": "chat"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    cluster.request("POST", path, body)
    try:
        assert "chat makes 0 pods: --count says" in command(cluster, "deploy/chat", status=2)
        told = command(cluster, "deploy/chat", "--count", "3", "--for", "8h")
        assert told.startswith(f"reservation/chat created, for 3 pods: {COUNT}: 1, {PERCENT}: 50\n")
        wait_for(cluster, "chat", "Reserved")
        assert "there is a reservation 'chat' already" in command(cluster, "deploy/chat", "--count", "1", status=2)
        found = cluster.request("GET", f"{RESERVATIONS}/chat")
        assert found["spec"]["owners"] == [{"controller": {"kind": "Deployment", "name": "chat"}}]
        cluster.create(*(pod(f"stranger-{number}", WHOLE) for number in range(3)))
        cluster.wait(lambda: sum("nodeName" in each["spec"] for each in cluster.pods().values()) == 2, "two are bound")
        cluster.patch(f"{path}/chat", {"spec": {"replicas": 3}})
        wait_for(cluster, "chat", "Taken")
    finally:
        cluster.request("DELETE", f"{path}/chat")


def test_the_command_says_what_it_would_create_and_what_it_can_not(cluster: Cluster) -> None:
    cluster.create(mine("like", WHOLE, "like"), pod("bare", WHOLE))
    printed = command(cluster, "pod/like", "--dry-run", "--in", "1h", "--for", "30m", "--again", "-o", "json")
    found = json.loads(printed)
    spec = found["spec"]
    assert spec["owners"] == [{"selector": {"matchLabels": {"app": "like"}}}]
    assert (spec["count"], spec["allocateOnce"]) == (1, False)
    times = [datetime.fromisoformat(spec[each]) for each in ("notBefore", "expires")]
    assert times[1] - times[0] == timedelta(minutes=30)
    assert "image" not in printed
    assert "has no labels" in command(cluster, "pod/bare", status=2)
    assert "there is no deployment 'none'" in command(cluster, "deploy/none", status=2)
    assert "'depoly/x' names nothing to reserve for: write deploy/NAME" in command(cluster, "depoly/x", status=2)
    assert "--for must be a duration, such as 8h" in command(cluster, "pod/like", "--for", "soon", status=2)
    assert cluster.request("GET", RESERVATIONS)["items"] == []
