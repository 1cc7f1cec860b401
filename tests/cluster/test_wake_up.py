"""A pod that waits is tried again as soon as room for it is there, whoever sees the room first, and in its turn.

Both kube-scheduler and the operator watch the pods. A proxy before each holds its watch, so a test decides who sees the
end of a pod first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cluster.cluster import COUNT, DEADLINE_S, MEMORY, MERGE_PATCH, PODS, Cluster, pod
from cluster.shared import SharedPlane
from control_plane import ControlPlane
from effort import times
from faults.kinds import HoldEvents
from faults.proxy import Proxy
from faults.requests import FOLLOWED, watching
from installation import NO_KUBELET, Installation

PRIORITIES = (5, 4, 3, 2, 1)
WAITING_EACH = times(5, 40)
FREED_EACH = times(4, 8)
TAKEN_WITHIN_S = 2.0
"""On an idle machine it takes half a second. A pod that nobody wakes waits for minutes: kube-scheduler looks seldom."""

SHARE = {COUNT: 1, MEMORY: 1000}
FILTERS = "gpuledger_filters_total"


class WatchedCluster(Cluster):
    """A cluster with a proxy between API server and operator, and one between API server and kube-scheduler."""

    def __init__(self, plane: ControlPlane, installation: Installation, operator: Proxy, scheduler: Proxy) -> None:
        super().__init__(plane, installation)
        self.operator, self.scheduler = operator, scheduler


@pytest.fixture(scope="module")
def cluster(shared: SharedPlane) -> Iterator[WatchedCluster]:
    """Yield a full node, with some pods of each priority that wait for a share of it."""
    with shared.lent() as plane, ExitStack() as stack:
        installation = Installation(plane, NO_KUBELET)
        installation.install()
        operator, scheduler = (stack.enter_context(Proxy.before_api_server(installation.kubeconfig)) for _ in range(2))
        installation.start_operator(operator.kubeconfig_from(installation.kubeconfig))
        installation.start_scheduler(kubeconfig=scheduler.kubeconfig_from(installation.kubeconfig))
        running = WatchedCluster(plane, installation, operator, scheduler)
        stack.callback(running.close)
        for priority in PRIORITIES:
            body = {"metadata": {"name": f"priority-{priority}"}, "value": priority}
            running.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        running.add_nodes(1, gpus=3, slots=FREED_EACH)
        first = [f"first-{number}" for number in range(3 * FREED_EACH)]
        running.create(*(pod(name, SHARE, priorityClassName="priority-5") for name in first))
        running.wait_bound(*first)
        # The least important come first: whoever goes by age alone takes them first.
        for priority in reversed(PRIORITIES):
            names = [f"waiting-{priority}-{number:02}" for number in range(WAITING_EACH)]
            running.create(*(pod(name, SHARE, priorityClassName=f"priority-{priority}") for name in names))
        waiting = len(PRIORITIES) * WAITING_EACH
        running.wait(lambda: running.metric("gpuledger_waiting_pods") == waiting, "all wait", 2 * DEADLINE_S)
        running.settle()
        yield running


def bound(cluster: Cluster) -> set[str]:
    return {name for name, found in cluster.pods().items() if found["spec"].get("nodeName")}


def free_one(cluster: WatchedCluster, order: str, name: str) -> tuple[str, float]:
    """Let a pod end and delete it; return who took its share, and how long after the later of the two has seen it."""
    before, filters, wake_ups = bound(cluster), cluster.metric(FILTERS), cluster.metric("gpuledger_wake_ups_total")
    held = []
    if order == "scheduler first":
        held.append((cluster.operator, cluster.operator.arm(watching("pods", FOLLOWED), HoldEvents(), times=None)))
    elif order == "operator first":
        held.append((cluster.scheduler, cluster.scheduler.arm(watching("pods"), HoldEvents(), times=None)))
    for _, armed in held:
        armed.wait()
    ended = {"status": {"phase": "Succeeded"}}  # as its kubelet says, before it deletes it
    cluster.request("PATCH", f"{PODS}/{name}/status", ended, MERGE_PATCH)
    cluster.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    if order == "scheduler first":
        cluster.wait(lambda: cluster.metric(FILTERS) > filters, "kube-scheduler has asked for the share")
        cluster.settle()
        assert bound(cluster) == before - {name}, "it was refused: the operator does not know yet"
    elif order == "operator first":
        # On a busy machine kube-scheduler may still be trying pods because of the last share.
        cluster.wait(
            lambda: cluster.metric("gpuledger_wake_ups_total") > wake_ups or len(bound(cluster)) == len(before),
            "the operator has woken a pod, or it has come by itself",
        )
    begin_s = time.monotonic()
    for proxy, armed in held:
        proxy.disarm(armed)
    cluster.wait(lambda: len(bound(cluster)) == len(before), "somebody has taken the share")
    (taken,) = bound(cluster) - before
    return taken, time.monotonic() - begin_s


def test_a_freed_share_is_taken_at_once_by_whom_it_is_due_and_costs_one_wake_up_at_most(
    cluster: WatchedCluster, say: Callable[[str], None]
) -> None:
    offset = cluster.plane.audit_offset()
    orders = ("scheduler first", "operator first", "nobody is held up")
    due = [f"waiting-{priority}-{number:02}" for priority in PRIORITIES for number in range(WAITING_EACH)]
    took_s: dict[str, list[float]] = {order: [] for order in orders}
    for number in range(len(orders) * FREED_EACH):
        order = orders[number % len(orders)]
        taken, seconds = free_one(cluster, order, f"first-{number}")
        assert taken == due[number]
        took_s[order].append(seconds)
    cluster.settle()
    patched = [e.name for e in cluster.our_writes(offset, ["pods"]) if (e.verb, e.subresource) == ("patch", "")]
    assert len(patched) == len(set(patched)), "nobody is woken twice"
    assert patched, "somebody was woken"
    assert set(patched) <= set(due[: len(orders) * FREED_EACH]), "nobody is woken in vain"
    for order, seconds_each in took_s.items():
        say(f"a freed share is taken after {statistics.median(seconds_each):.2f} s in the middle, {order}")
        assert statistics.median(seconds_each) < TAKEN_WITHIN_S, (order, seconds_each)
