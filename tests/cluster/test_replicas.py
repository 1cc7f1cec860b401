"""Two replicas, each an operator with its kube-scheduler: one is active, and if both think so, no harm is done."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from cluster.bursts import burst
from cluster.cluster import COUNT, DEADLINE_S, MEMORY, PERCENT, Cluster, pod
from cluster.shared import SharedPlane
from control_plane import ControlPlane, on_host
from effort import times
from installation import NO_KUBELET, Installation
from requirements import require

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuledger-system/leases/gpuledger-scheduler"
FAIL_OVER_S = 20.0
"""kube-scheduler's Lease lasts for 10 s, and is looked at every 1 to 2.2 s; then comes what the operator needs."""
SPLIT_NODES, SPLIT_PODS = times(4, 20), times(24, 300)


class Replicas(Cluster):
    """A cluster with two installations. What a plain cluster asks of its installation, it asks of the first."""

    def __init__(self, plane: ControlPlane, first: Installation, second: Installation) -> None:
        super().__init__(plane, first)
        self.first, self.second = first, second


@contextmanager
def two_installations(plane: AbstractContextManager[ControlPlane], replicated: bool) -> Iterator[Replicas]:
    with plane as running_plane:
        pair = [
            Installation(running_plane, {**NO_KUBELET, "release_delay_s": 2, "longest_release_s": 4}, name, replicated)
            for name in ("replica-a", "replica-b")
        ]
        for installation in pair:
            installation.install()
            installation.start_operator()
            installation.start_scheduler()
        running = Replicas(running_plane, *pair)
        yield running
        running.close()


def stop(*installations: Installation) -> None:
    """Kill operator and scheduler at once, as a node does that loses power."""
    for installation in installations:
        assert installation.scheduler
        installation.scheduler.kill()
        installation.kill_operator()


def freeze_scheduler(installation: Installation) -> None:
    """Stop the scheduler as a hung one stands still: it does not give the Lease back."""
    assert installation.scheduler
    os.killpg(installation.scheduler.pid, signal.SIGSTOP)


def require_host_names() -> None:
    """Skip the test where a process can't have a host name of its own."""
    try:
        subprocess.run([*on_host("another"), "/bin/true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        require("a process can't have a host name of its own here", str(error))


def active_and_passive(replicas: Replicas) -> tuple[Installation, Installation]:
    """Return who has the Lease, and the other one."""
    leader = replicas.request("GET", LEASE)["spec"]["holderIdentity"].rpartition("_")[0]
    both = (replicas.first, replicas.second)
    return both if leader == "replica-a" else both[::-1]


@pytest.fixture
def replicas(shared: SharedPlane) -> Iterator[Replicas]:
    """Yield two replicas that follow one Lease."""
    require_host_names()
    with two_installations(shared.lent(), replicated=True) as running:
        yield running


@pytest.mark.promise("replicas")
@pytest.mark.parametrize("fail", [stop, pytest.param(freeze_scheduler, marks=pytest.mark.long)])
def test_the_second_replica_writes_nothing_and_takes_over_when_the_first_is_gone(
    replicas: Replicas, say: Callable[[str], None], fail: Callable[[Installation], None]
) -> None:
    active, passive = active_and_passive(replicas)
    replicas.installation = active
    replicas.add_nodes(1, gpus=4)
    names = [f"before-{number}" for number in range(8)]
    replicas.create(*(pod(name, {COUNT: 1, PERCENT: 50}) for name in names))
    replicas.wait_bound(*names)
    replicas.settle()
    assert passive.metrics()["gpuledger_ledger_patches_total"] == 0
    assert passive.metrics()["gpuledger_cards_written_total"] == 0
    assert active.metrics()["gpuledger_holders"] == 8
    replicas.wait(lambda: passive.metrics()["gpuledger_holders"] == 8, "its memory is warm")

    replicas.create(pod("waiting", {COUNT: 1, PERCENT: 50}))
    replicas.wait_refused("waiting", "no card with 50 percent memory free")
    begin_s = time.monotonic()
    fail(active)
    replicas.installation = passive
    replicas.delete("before-0")
    replicas.create(pod("after", {COUNT: 1, PERCENT: 50}))
    replicas.wait_bound("waiting", timeout_s=DEADLINE_S)
    took_s = time.monotonic() - begin_s
    say(f"{fail.__name__}: a pod was bound by the other replica after {took_s:.1f} s")
    assert took_s < FAIL_OVER_S
    replicas.wait_refused("after", "no card with 50 percent memory free")
    replicas.check_consistent()


@pytest.mark.promise("never twice")
def test_two_active_replicas_over_allocate_nothing_and_leave_nothing_behind(shared: SharedPlane) -> None:
    """Split brain: both schedulers try every pod, and both operators place it."""
    with two_installations(shared.lent(), replicated=False) as replicas:
        replicas.add_nodes(SPLIT_NODES)
        pods = burst()[:SPLIT_PODS]
        names = [body["metadata"]["name"] for body in pods]
        replicas.create(*pods)
        replicas.wait_bound(*names, timeout_s=3 * DEADLINE_S)
        expected = {p["metadata"]["uid"] for p in replicas.pods().values()}
        replicas.wait(lambda: _consistent(replicas), "ledger and annotations agree", DEADLINE_S)
        assert {h["podUID"] for held in replicas.holders().values() for h in held} == expected
        both = [i.metrics()['gpuledger_binds_total{outcome="bound"}'] for i in (replicas.first, replicas.second)]
        assert min(both) > 0, "only one has bound anything: nothing was shown"
        replicas.delete(*names)
        replicas.wait(lambda: not any(replicas.holders().values()), "no holder is left over")
        replicas.create(pod("last", {COUNT: 8, MEMORY: 100}))
        replicas.wait_bound("last")


def _consistent(replicas: Replicas) -> bool:
    try:
        replicas.check_consistent()
    except (AssertionError, KeyError):
        return False
    return True
