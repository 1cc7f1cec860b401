"""Preemption for gangs that Kubernetes' own groups name, pod by pod and where kube-scheduler tries them as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from cluster.gangs import names
from cluster.native_groups import OWN_CYCLE, POD_BY_POD, clear_groups, create_group, members, turned_on
from cluster.preempting import HIGH, PREEMPTION_TIMEOUT_S, PreemptingCluster, eight_low, preempting_cluster
from cluster.shared import SharedPlane
from native_gangs import NativeGangs


@pytest.fixture(scope="module", params=[pytest.param(POD_BY_POD, marks=pytest.mark.long), OWN_CYCLE])
def running(
    with_groups: SharedPlane, native: NativeGangs, request: pytest.FixtureRequest
) -> Iterator[PreemptingCluster]:
    with preempting_cluster(with_groups.lent(), **turned_on(native, request.param)) as running:
        yield running


@pytest.fixture
def cluster(running: PreemptingCluster, native: NativeGangs) -> Iterator[PreemptingCluster]:
    yield running
    running.clear()
    clear_groups(running, native)


def test_nobody_leaves_for_nine_on_eight_cards_and_eight_leave_once_each_for_eight(
    cluster: PreemptingCluster, native: NativeGangs, say: Callable[[str], None]
) -> None:
    lows = eight_low(cluster)
    begin = cluster.plane.audit_offset()
    create_group(cluster, native, "nine", 9, priorityClassName=HIGH)
    nine = members("nine", 9, priorityClassName=HIGH)
    cluster.create(*nine)
    cluster.wait_refused("nine-0", "fewer than 9 members of the pod's gang find cards at once")
    time.sleep(5)  # where kube-scheduler tries them as a whole, it goes on trying
    assert cluster.evictions(begin) == []
    assert cluster.placed("nine") == []
    cluster.delete(*names(nine))
    create_group(cluster, native, "eight", 8, priorityClassName=HIGH)
    begin_s = time.monotonic()
    cluster.create(*members("eight", 8, priorityClassName=HIGH))
    cluster.wait_placed("eight", 8, timeout_s=60)
    say(f"eight pods have left for a gang of eight, and it is bound, after {time.monotonic() - begin_s:.1f} s")
    assert sorted(cluster.evictions(begin)) == lows
    cluster.at_rest()


def test_victims_that_take_their_time_leave_once_and_the_gang_starts_when_the_last_is_gone(
    cluster: PreemptingCluster, native: NativeGangs, say: Callable[[str], None]
) -> None:
    """Meanwhile, kube-scheduler tries the group many times in vain."""
    lows = eight_low(cluster)
    begin = cluster.plane.audit_offset()
    cluster.kubelet.stubborn = {"low-3", "low-5"}
    create_group(cluster, native, "slow", 8, priorityClassName=HIGH)
    cluster.create(*members("slow", 8, priorityClassName=HIGH))
    cluster.wait(lambda: sorted(cluster.evictions(begin)) == lows, "all are told to leave")
    time.sleep(PREEMPTION_TIMEOUT_S)  # besides it, they have some seconds to end
    assert cluster.placed("slow") == []
    cluster.kubelet.stubborn.clear()
    begin_s = time.monotonic()
    cluster.wait_placed("slow", 8, timeout_s=60)
    say(f"the gang is bound {time.monotonic() - begin_s:.1f} s after the last of eight has left")
    assert sorted(cluster.evictions(begin)) == lows
    cluster.at_rest()
