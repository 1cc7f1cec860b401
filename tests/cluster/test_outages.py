"""API server, etcd or a node are away for a while, and pods go at the wrong moment.

etcd writes to the disk before it answers, as it would in production.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaos.admin import Admin
from cluster.bursts import burst, created_meanwhile
from cluster.cluster import COUNT, DEADLINE_S, DEVICES, NODES, PERCENT, PODS, Cluster, pod, uuids
from control_plane import ControlPlane
from effort import times
from faults.faulty_cluster import QUIET_S, FaultyCluster, faulty_cluster
from faults.kinds import Drop, EndWatch, Hold, HoldEvents
from faults.requests import FOLLOWED, Match, binding, entering, listing, watching

ANYTHING = Match("request", lambda _: True)
WATCHES = Match("watch", lambda request: request.is_watch)

BURST_NODES, BURST_PODS = 8, times(80, 120)
INTERRUPTED_AT = 30
"""Pods that are bound when the others begin to come, and the server is killed."""

NAMESPACE_PODS = times(200, 500)
REQUESTS_REFUSED = 5
"""How often an operator that starts finds the API server away."""

AWAY_S = times(8, 20)
IDLE_S = times(5, 10)
KINDS = ("pods", "nodes", "gpuallocations")


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[FaultyCluster]:
    own = ControlPlane.run(durable=True)  # etcd and the API server are killed
    with faulty_cluster(own, {"release_delay_s": 2, "longest_release_s": 4}) as running:
        yield running


@pytest.fixture
def cluster(module_cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """Yield a cluster without nodes and pods, and leave it so, and without faults."""
    yield module_cluster
    module_cluster.calm()
    try:
        module_cluster.clear()
    except AssertionError:
        module_cluster.crash_operator()  # what it has forgotten must not fail the next test, too
        raise


def start_running(cluster: Cluster, *names: str) -> None:
    """Show pods as their kubelet does that has taken them up."""
    for name in names:
        cluster.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}})
    cluster.settle(QUIET_S)


def states(cluster: Cluster, uuid: str) -> list[tuple[str, str]]:
    """Return UID and state of each holder of a card."""
    return [(holder["podUID"], holder["state"]) for holder in cluster.holders()[uuid]]


def bound(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return pod name -> its node and its cards."""
    return {
        name: (found["spec"]["nodeName"], found["metadata"]["annotations"][DEVICES])
        for name, found in cluster.pods().items()
        if found["spec"].get("nodeName")
    }


@contextmanager
def operator_cut_off(cluster: FaultyCluster) -> Iterator[None]:
    """Let nothing through between the operator and the API server."""
    dropped = cluster.api.arm(ANYTHING, Drop(), times=None)
    ended = cluster.api.arm(WATCHES, EndWatch(None), times=None)
    dropped.wait()
    yield
    cluster.api.disarm(dropped, ended)


def restart(cluster: Cluster, server: str) -> None:
    """Kill a server, "api_server" or "etcd", and start it again; return when it answers about our resources, too."""
    getattr(cluster.plane, f"restart_{server}")()
    cluster.close()
    admin = Admin(cluster.plane)
    admin.cards()
    admin.pods()
    admin.close()


# A pod goes while it is bound.


@pytest.mark.parametrize("held_up", [Hold("request"), Hold("answer")], ids=["on its way", "answered"])
@pytest.mark.parametrize("match", [entering("pod"), binding("pod")], ids=str)
def test_a_pod_that_is_deleted_while_it_is_bound_leaves_nothing_in_the_ledger(
    cluster: FaultyCluster, match: Match, held_up: Hold
) -> None:
    cluster.add_nodes(1, gpus=1)
    held = cluster.api.arm(match, held_up)
    cluster.create(pod("pod", {COUNT: 1}))
    held.wait()
    cluster.delete("pod")
    cluster.settle(QUIET_S)  # the operator has seen it
    held.release()
    cluster.create(pod("next", {COUNT: 1}))
    cluster.wait_bound("next")
    cluster.check_consistent()


# A pod goes while it runs.


def test_a_pod_created_anew_at_once_waits_until_its_predecessor_has_left_the_card(cluster: FaultyCluster) -> None:
    (node,) = cluster.add_nodes(1, gpus=1)
    (uuid,) = (card.uuid for card in node.cards)
    cluster.create(pod("twin", {COUNT: 1}))
    (first,) = cluster.wait_bound("twin")
    start_running(cluster, "twin")
    cluster.delete("twin")
    cluster.create(pod("twin", {COUNT: 1}))
    cluster.wait(lambda: states(cluster, uuid) == [(first["metadata"]["uid"], "releasing")], "the first is releasing")
    cluster.wait_refused("twin", "no card entirely free")
    (second,) = cluster.wait_bound("twin")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    cluster.check_consistent()


def test_running_pods_of_a_node_that_is_gone_free_their_cards_when_they_are_deleted(cluster: FaultyCluster) -> None:
    nodes = cluster.add_nodes(2, gpus=1)
    cluster.create(*(pod(name, {COUNT: 1, PERCENT: 50}) for name in ("first", "second")))
    found = cluster.wait_bound("first", "second")
    start_running(cluster, "first", "second")
    (uuid,) = {card for each in found for card in uuids(each)}
    (lost,) = {each["spec"]["nodeName"] for each in found}
    cluster.request("DELETE", f"{NODES}/{lost}")
    cluster.wait(lambda: cluster.cards()[uuid]["status"]["phase"] == "Unavailable", "its card is unavailable")
    cluster.delete("first", "second")  # as Kubernetes does with the pods of a node that is gone
    uids = [each["metadata"]["uid"] for each in found]
    cluster.wait(
        lambda: sorted(states(cluster, uuid)) == sorted((uid, "releasing") for uid in uids), "they are leaving"
    )
    kept = {card.uuid for node in nodes for card in node.cards} - {uuid}
    cluster.wait(lambda: set(cluster.cards()) == kept, "the card is gone with its holders")


def test_pods_that_end_together_are_freed_with_few_writes(cluster: FaultyCluster) -> None:
    """A namespace's end is seen at once after a gap of the watch: each card is written a few times, not once a pod.

    No kubelet has said that the pods have ended: their shares are marked first, and go after a while.
    """
    cluster.add_nodes(3, slots=50)
    path = "/api/v1/namespaces"
    cluster.request("POST", path, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "crowd"}})
    for number in range(NAMESPACE_PODS):
        body = pod(f"pod-{number}", {COUNT: 1, PERCENT: 2}, terminationGracePeriodSeconds=0)
        body["metadata"]["namespace"] = "crowd"
        cluster.request("POST", f"{path}/crowd/pods", body)
    cluster.wait(lambda: cluster.metric("gpuledger_holders") == NAMESPACE_PODS, "all are entered", 3 * DEADLINE_S)
    cluster.settle()
    writes = cluster.metric("gpuledger_ledger_patches_total")
    unseen = cluster.api.arm(watching("pods", FOLLOWED), HoldEvents())
    cluster.request("DELETE", f"{path}/crowd")
    unseen.wait()
    pods = f"{path}/crowd/pods?limit=1"
    cluster.wait(lambda: not cluster.request("GET", pods)["items"], "all pods are gone", 3 * DEADLINE_S)
    cluster.api.disarm(unseen)
    cluster.wait(lambda: cluster.metric("gpuledger_holders") == 0, "all shares are free", 3 * DEADLINE_S)
    assert not any(cluster.holders().values())
    assert cluster.metric("gpuledger_ledger_patches_total") - writes < 2 * NAMESPACE_PODS / 4


# Servers that go and come back.


@pytest.mark.promise("API server outages")
@pytest.mark.parametrize("server", ["api_server", pytest.param("etcd", marks=pytest.mark.long)])
def test_a_server_that_is_killed_in_a_burst_loses_no_share_and_no_binding(cluster: FaultyCluster, server: str) -> None:
    cluster.add_nodes(BURST_NODES)
    pods = burst()[:BURST_PODS]
    with created_meanwhile(cluster, pods) as let_come:
        let_come(INTERRUPTED_AT)
        cluster.wait(lambda: len(bound(cluster)) == INTERRUPTED_AT, "some pods are bound")
        before = bound(cluster)
        let_come(BURST_PODS - INTERRUPTED_AT)
        restart(cluster, server)
    cluster.wait_bound(*(body["metadata"]["name"] for body in pods), timeout_s=3 * DEADLINE_S)
    assert before.items() <= bound(cluster).items()
    cluster.settle()
    cluster.check_consistent()


def test_a_share_is_free_soon_although_its_pod_has_ended_unseen_before_the_api_server_died(
    cluster: FaultyCluster,
) -> None:
    """The API server that comes back can't tell of a deletion before its own time."""
    cluster.add_nodes(1, gpus=1)
    cluster.create(pod("pod", {COUNT: 1}))
    cluster.wait_bound("pod")
    cluster.settle(QUIET_S)
    unseen = cluster.api.arm(watching("pods", FOLLOWED), HoldEvents())
    unseen.wait()
    cluster.delete("pod")
    restart(cluster, "api_server")
    cluster.api.disarm(unseen, cut=True)
    cluster.wait(lambda: not any(cluster.holders().values()), "its share is free")


def test_what_happens_while_the_api_server_is_away_is_caught_up_with_and_then_there_is_rest(
    cluster: FaultyCluster,
) -> None:
    cluster.add_nodes(1, gpus=4)
    cluster.create(*(pod(name, {COUNT: 1}) for name in ("deleted", "finished", "forced", "stays")))
    cluster.wait_bound("deleted", "finished", "forced", "stays")
    start_running(cluster, "forced")
    with operator_cut_off(cluster):
        end_s = time.monotonic() + AWAY_S
        cluster.delete("deleted", "forced")
        cluster.finish("finished")
        cluster.create(*(pod(name, {COUNT: 1}) for name in ("first", "second", "third")))
        time.sleep(max(0.0, end_s - time.monotonic()))
    cluster.wait_bound("first", "second", "third")
    cluster.delete("finished")
    cluster.settle()
    cluster.check_consistent()
    offset = cluster.plane.audit_offset()
    time.sleep(IDLE_S)
    assert cluster.our_writes(offset, KINDS) == []


def test_an_operator_that_starts_while_the_api_server_is_away_waits_for_it(cluster: FaultyCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.create(*(pod(name, {COUNT: 1}) for name in ("gone", "stays")))
    cluster.wait_bound("gone", "stays")
    cluster.installation.kill_operator()
    cluster.delete("gone")
    cluster.create(pod("next", {COUNT: 1}))
    away = cluster.api.arm(ANYTHING, Drop(), times=REQUESTS_REFUSED)
    cluster.start_operator()
    away.wait_done()
    cluster.wait_bound("next")
    cluster.check_consistent()


def test_nothing_is_written_about_cards_before_the_ledger_is_read(cluster: FaultyCluster) -> None:
    """An operator that starts can see the nodes first. Their cards are in the ledger; it only does not know yet."""
    cluster.add_nodes(2, gpus=2)
    cluster.create(pod("running", {COUNT: 1}))
    cluster.wait_bound("running")
    cluster.settle(QUIET_S)
    cluster.installation.kill_operator()
    offset = cluster.plane.audit_offset()
    unread = cluster.api.arm(listing("gpuallocations"), Hold(), times=None)
    nodes_seen = cluster.api.arm(watching("nodes"), Hold())

    def show_ledger() -> None:
        nodes_seen.wait()
        time.sleep(QUIET_S)
        cluster.api.disarm(nodes_seen, unread)

    thread = threading.Thread(target=show_ledger)
    thread.start()
    cluster.start_operator()
    thread.join()
    cluster.settle()
    assert cluster.our_writes(offset, KINDS) == []
