"""Two operators that are both active, on a real API server: a quota holds whatever each of them has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, pod
from cluster.gangs import bound
from cluster.shared import SharedPlane
from cluster.test_quotas import GPUMEM, QUOTAS, set_quota
from control_plane import ControlPlane
from effort import times
from faults.kinds import HoldEvents
from faults.proxy import Proxy
from faults.requests import watching
from installation import NO_KUBELET, Installation

SETTINGS = {**NO_KUBELET, "release_delay_s": 2, "longest_release_s": 4}
SHARE = {COUNT: 1, MEMORY: 1_000}
PODS_EACH = times(20, 60)
SECONDS, ANSWERS = "gpuledger_bind_seconds_sum", "gpuledger_bind_seconds_count"


class TwoActive(Cluster):
    """A cluster with two operators, each with a kube-scheduler of its own, whose profile pods choose."""

    def __init__(self, plane: ControlPlane, first: Installation, second: Installation, api: Proxy) -> None:
        super().__init__(plane, first)
        self.first, self.second = first, second
        self.api = api
        """Between the second operator and the API server."""

    def allow(self, mib: int) -> None:
        """Set the namespace's quota, and wait until both operators know it."""
        for each in (self.second, self.first):
            self.installation = each
            set_quota(self, GPUMEM, mib)


@pytest.fixture(scope="module")
def cluster(shared: SharedPlane) -> Iterator[TwoActive]:
    with shared.lent() as plane, ExitStack() as stack:
        first = Installation(plane, SETTINGS)
        second = Installation(plane, {**SETTINGS, "scheduler_name": "second"}, "second")
        for installation in (first, second):
            installation.install()
        api = stack.enter_context(Proxy.before_api_server(second.kubeconfig))
        first.start_operator()
        second.start_operator(api.kubeconfig_from(second.kubeconfig))
        for installation in (first, second):
            installation.start_scheduler()
        running = TwoActive(plane, first, second, api)
        stack.callback(running.close)
        running.add_nodes(2, gpus=1, slots=PODS_EACH)
        yield running


@pytest.mark.promise("quotas")
def test_the_operator_whose_share_comes_second_gives_it_back_and_binds_nothing(cluster: TwoActive) -> None:
    """It has not seen what the other one has entered, on another card: it finds that the quota allows its pod."""
    cluster.allow(1_000)
    held = cluster.api.arm(watching("gpuallocations"), HoldEvents())
    held.wait()
    cluster.create(pod("mine", SHARE))
    cluster.wait_bound("mine")
    cluster.create(pod("theirs", SHARE, schedulerName="second"))

    def holders() -> set[str]:
        return {each["pod"] for holders in cluster.holders().values() for each in holders}

    cluster.wait(lambda: holders() == {"mine", "theirs"}, "both shares are in the ledger")
    assert set(bound(cluster)) == {"mine"}
    cluster.api.disarm(held)
    cluster.wait(lambda: holders() == {"mine"}, "the later one is given back")
    assert set(bound(cluster)) == {"mine"}
    cluster.delete("mine")
    cluster.wait_bound("theirs")
    cluster.delete("theirs")
    cluster.wait(lambda: not holders(), "nobody is left")


def test_a_quota_costs_no_write_and_one_event_of_the_watch(cluster: TwoActive, say: Callable[[str], None]) -> None:
    """Pods come one after the other, so that each waits for its own event."""

    def bind_all(prefix: str) -> tuple[int, float]:
        """Return how many writes it took to enter and bind the pods, and how long a Bind took, in milliseconds."""
        offset, before = cluster.plane.audit_offset(), cluster.installation.metrics()
        names = [f"{prefix}-{number}" for number in range(PODS_EACH)]
        for name in names:
            cluster.create(pod(name, {COUNT: 1, MEMORY: 100}))
            cluster.wait_bound(name)
        after = cluster.installation.metrics()
        took_s = (after[SECONDS] - before[SECONDS]) / (after[ANSWERS] - before[ANSWERS])
        writes = len(cluster.our_writes(offset, ["gpuallocations", "pods"]))
        for name in names:
            cluster.delete(name)
        cluster.wait(lambda: not any(cluster.holders().values()), "nobody is left")
        return writes, took_s * 1000

    cluster.allow(1_000_000)
    with_quota = bind_all("with")
    cluster.request("DELETE", f"{QUOTAS}/gpus")
    cluster.wait(lambda: 'namespace="default",quota="gpus"' not in str(cluster.installation.metrics()), "it is gone")
    without = bind_all("without")
    for what, (writes, took_ms) in (("with a quota", with_quota), ("without", without)):
        say(f"{PODS_EACH} pods {what}: {writes} writes, {took_ms:.1f} ms a Bind")
    assert with_quota[0] == without[0]
