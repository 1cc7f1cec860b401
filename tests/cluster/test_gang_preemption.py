"""Preemption for gangs, and of gangs, on a real control plane: what the API server's audit log says of evictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from cluster.gangs import gang, names
from cluster.preempting import HIGH, HIGHER, LOW, WHOLE, PreemptingCluster, a_pod, eight_low


@pytest.fixture
def cluster(preempting: PreemptingCluster) -> Iterator[PreemptingCluster]:
    yield preempting
    preempting.clear()


def test_eight_single_pods_leave_once_each_for_a_gang_of_eight(
    cluster: PreemptingCluster, say: Callable[[str], None]
) -> None:
    lows = eight_low(cluster)
    begin, begin_s = cluster.plane.audit_offset(), time.monotonic()
    cluster.create(*gang("train", 8, priority=HIGH))
    cluster.wait_placed("train", 8, timeout_s=60)
    say(f"eight pods have left for a gang of eight, and it is bound, after {time.monotonic() - begin_s:.1f} s")
    assert sorted(cluster.evictions(begin)) == lows
    cluster.at_rest()


def test_nobody_leaves_for_a_gang_that_does_not_fit_even_then(cluster: PreemptingCluster) -> None:
    eight_low(cluster)
    begin = cluster.plane.audit_offset()
    cluster.create(*gang("nine", 9, priority=HIGH))
    cluster.wait_refused("nine-0", "fewer than 9 members of the pod's gang find cards at once")
    cluster.settle(5.0)
    assert cluster.evictions(begin) == []
    assert len(cluster.placed("nine")) == 0
    cluster.at_rest()


def test_a_gang_leaves_whole_and_a_spare_member_alone(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(2, gpus=4)
    old, spare = gang("old", 4, priority=LOW), gang("spare", 4, priority=LOW, minimum=3)
    cluster.create(*old)
    cluster.wait_bound(*names(old))
    cluster.create(*spare)
    cluster.wait_bound(*names(spare))
    begin = cluster.plane.audit_offset()
    cluster.create(a_pod("high", WHOLE, HIGH))
    cluster.wait_placed("high", 1, timeout_s=60)
    (evicted,) = cluster.evictions(begin)
    assert evicted in names(spare)
    begin = cluster.plane.audit_offset()
    cluster.create(*gang("train", 2, priority=HIGH))
    cluster.wait_placed("train", 2, timeout_s=60)
    evicted_now = sorted(cluster.evictions(begin))
    assert evicted_now in (names(old), sorted({*names(spare)} - {evicted}))
    cluster.at_rest()


def test_gangs_of_equal_priority_never_chase_each_other(cluster: PreemptingCluster) -> None:
    cluster.add_nodes(2, gpus=4)
    first, second = gang("first", 5, priority=HIGH), gang("second", 5, priority=HIGH)
    begin = cluster.plane.audit_offset()
    cluster.create(*[each for pair in zip(first, second, strict=True) for each in pair])
    cluster.wait(lambda: len(cluster.placed("first")) + len(cluster.placed("second")) == 5, "one of them is placed")
    cluster.settle(5.0)
    assert cluster.evictions(begin) == []
    winner = "first" if cluster.placed("first") else "second"
    cluster.create(*gang("higher", 6, priority=HIGHER))
    cluster.wait_placed("higher", 6, timeout_s=60)
    assert sorted(cluster.evictions(begin)) == names(first if winner == "first" else second)
    cluster.at_rest()


def test_an_operator_that_is_killed_in_between_has_nobody_leave_twice(cluster: PreemptingCluster) -> None:
    lows = eight_low(cluster)
    begin = cluster.plane.audit_offset()
    cluster.kubelet.stubborn = {"low-3", "low-5"}
    cluster.create(*gang("train", 8, priority=HIGH))
    cluster.wait(lambda: len(cluster.evictions(begin)) >= 1, "somebody is evicted", 30)
    cluster.restart_operator()
    time.sleep(2)
    cluster.restart_operator()
    cluster.kubelet.stubborn.clear()
    cluster.wait_placed("train", 8, timeout_s=90)
    assert sorted(cluster.evictions(begin)) == lows
    cluster.at_rest()


def test_two_gangs_of_high_priority_and_room_for_one_cost_no_pod_its_life_in_vain(cluster: PreemptingCluster) -> None:
    lows = eight_low(cluster)
    begin = cluster.plane.audit_offset()
    one, two = gang("one", 5, priority=HIGH), gang("two", 5, priority=HIGH)
    cluster.create(*[each for pair in zip(one, two, strict=True) for each in pair])
    cluster.wait(lambda: len(cluster.placed("one")) + len(cluster.placed("two")) == 5, "one of them is placed", 60)
    cluster.settle(3.0)
    evicted = cluster.evictions(begin)
    assert len(evicted) == len(set(evicted).intersection(lows)) == 5
    cluster.at_rest()
