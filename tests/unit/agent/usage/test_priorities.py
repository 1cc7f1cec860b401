"""Who pauses, who goes on, and whose core limits are enforced."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.usage.regions import Controls, Observed, decide
from gpuledger.formats.runtime.shared_region import ACTIVE, IDLE, LIMITER_OFF, LIMITER_ON, PAUSED

NOW_S = 1_800_000_000.0
RECENT_S = 6.0


def a_container(priority: int = 1, *uuids: str, **changes: Any) -> Observed:
    fields: dict[str, Any] = {
        "uuids": uuids or ("GPU-1",),
        "priority": priority,
        "recent_kernel": IDLE,
        "utilization_switch": LIMITER_ON,
        "last_kernel_s": None,
        "lives": True,
    }
    return Observed(**(fields | changes))


def active(priority: int, *uuids: str) -> Observed:
    return a_container(priority, *uuids, last_kernel_s=int(NOW_S))


def decided(*containers: Observed) -> list[Controls]:
    return decide(containers, NOW_S, RECENT_S)


def paused(*containers: Observed) -> list[bool]:
    return [controls.recent_kernel == PAUSED for controls in decided(*containers)]


def test_a_container_pauses_while_a_more_important_one_computes_on_its_card() -> None:
    assert paused(active(0), active(1)) == [False, True]
    assert paused(active(0), a_container(1)) == [False, True]
    assert paused(a_container(0), active(1)) == [False, False]


def test_nobody_pauses_for_an_equal_or_on_another_card() -> None:
    assert paused(active(0), active(0)) == [False, False]
    assert paused(active(1), active(1)) == [False, False]
    assert paused(active(0, "GPU-1"), active(1, "GPU-2")) == [False, False]


def test_one_card_in_common_is_enough() -> None:
    assert paused(active(0, "GPU-1", "GPU-2"), active(1, "GPU-2", "GPU-3"), active(1, "GPU-3")) == [False, True, False]


def test_a_kernel_counts_for_a_while_whichever_way_it_is_told() -> None:
    low = a_container(1, recent_kernel=PAUSED)
    for age_s, pauses in {0: True, 6: True, 7: False, 3600: False}.items():
        assert paused(a_container(0, last_kernel_s=int(NOW_S) - age_s), low) == [False, pauses]
    for recent_kernel, pauses in {ACTIVE: True, 9: True, 1: False, IDLE: False}.items():
        assert paused(a_container(0, recent_kernel=recent_kernel), low) == [False, pauses]


def test_a_count_goes_down_by_one_each_time() -> None:
    alone = a_container(0, recent_kernel=ACTIVE)
    counts = []
    for _ in range(3):
        (controls,) = decided(alone)
        counts.append(controls.recent_kernel)
        alone = replace(alone, recent_kernel=controls.recent_kernel)
    assert counts == [1, IDLE, IDLE]


def test_a_time_to_come_is_no_kernel() -> None:
    assert paused(a_container(0, last_kernel_s=int(NOW_S) + 3600), active(1)) == [False, False]


def test_a_container_whose_processes_have_ended_makes_nobody_wait() -> None:
    assert paused(replace(active(0), lives=False), a_container(1, recent_kernel=PAUSED)) == [False, False]


def test_one_that_pauses_makes_nobody_wait() -> None:
    """On the first card it waits for a more important one; on the second, it would only be in the way."""
    middle = replace(active(1, "GPU-1", "GPU-2"), recent_kernel=PAUSED)
    assert paused(active(0, "GPU-1"), middle, active(2, "GPU-2")) == [False, True, False]


def test_core_limits_are_enforced_only_where_somebody_of_the_same_or_a_higher_priority_computes() -> None:
    def switches(*containers: Observed) -> list[int]:
        return [controls.utilization_switch for controls in decided(*containers)]

    assert switches(active(1)) == [LIMITER_OFF]
    assert switches(active(1), active(1)) == [LIMITER_ON, LIMITER_ON]
    assert switches(active(1), a_container(1)) == [LIMITER_OFF, LIMITER_ON]
    assert switches(active(0), active(1)) == [LIMITER_OFF, LIMITER_ON]
    assert switches(active(1), active(1, "GPU-2")) == [LIMITER_OFF, LIMITER_OFF]


OBSERVED = st.builds(
    Observed,
    uuids=st.lists(st.sampled_from(["GPU-1", "GPU-2", "GPU-3"]), min_size=1, unique=True).map(tuple),
    priority=st.integers(0, 2),
    recent_kernel=st.integers(-(2**31), 2**31 - 1),
    utilization_switch=st.integers(-(2**31), 2**31 - 1),
    last_kernel_s=st.none() | st.integers(0, 2**64 - 1) | st.integers(int(NOW_S) - 20, int(NOW_S) + 20),
    lives=st.booleans(),
)


@given(st.lists(OBSERVED, max_size=8))
def test_whatever_containers_say_one_pauses_only_for_a_more_important_one_on_its_card(
    containers: list[Observed],
) -> None:
    found = decided(*containers)
    assert len(found) == len(containers)
    for container, controls in zip(containers, found, strict=True):
        above = [each for each in containers if each.priority < container.priority]
        if controls.recent_kernel == PAUSED:
            assert any(each.lives and {*each.uuids} & {*container.uuids} for each in above)
        else:
            assert controls.recent_kernel in (IDLE, 1)
        assert controls.utilization_switch in (LIMITER_ON, LIMITER_OFF)


@given(st.lists(OBSERVED, max_size=8))
def test_nobody_waits_for_ever(containers: list[Observed]) -> None:
    """When nobody launches kernels any more, all go on: after a few passes, and for good."""
    now_s = NOW_S
    for _ in range(4):
        now_s += 30.0
        quiet = [replace(each, last_kernel_s=None) for each in containers]
        containers = [
            replace(each, recent_kernel=controls.recent_kernel, utilization_switch=controls.utilization_switch)
            for each, controls in zip(quiet, decide(quiet, now_s, RECENT_S), strict=True)
        ]
    assert all(each.recent_kernel == IDLE for each in containers)
