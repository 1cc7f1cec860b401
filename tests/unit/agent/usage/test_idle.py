"""A share is idle after minutes without use, from when it was used last, and only where something tells of that."""

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.grants import a_grant
from fakes.virtual_time import EPOCH
from gpuledger.agent.usage.idle import BEGINS_AFTER_S, LONGEST_GAP_S, IdleShares
from gpuledger.agent.usage.regions import NVML, ContainerUse, granted_parts
from gpuledger.formats.idle import (
    IDLE_ANNOTATION,
    LONGEST_TEXT,
    MOST_SHARES,
    Idleness,
    ShareKey,
    idle_annotation,
    read_idle,
)
from gpuledger.model.errors import BadInput

HELD = {"env": ["GPULEDGER_MEMORY_MIB=3000"]}
A: ShareKey = ("uid-a", "GPU-1")
EVERY_S = 30


def used(percent: int | None, pod: str = "a", container: str = "main", **told: object) -> ContainerUse:
    grant = a_grant(pod=pod, container=container, edits=HELD)
    (part,) = granted_parts(grant)
    return ContainerUse(grant, part, 0, percent, NVML, **told)  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def watch(idle: IdleShares, seconds: range, *uses: ContainerUse, unclear: tuple[str, ...] = ()) -> None:
    for second in seconds:
        idle.observe(uses, at(second), unclear)


def known(idle: IdleShares, second: float, *uses: ContainerUse) -> dict[ShareKey, Idleness]:
    return dict(idle.observe(uses, at(second)))


def minutes(first: int, last: int) -> range:
    return range(first * 60, last * 60, EVERY_S)


def test_it_is_idle_after_ten_minutes_and_from_when_they_began() -> None:
    idle = IdleShares()
    watch(idle, minutes(0, 10), used(0))
    assert known(idle, BEGINS_AFTER_S - 1, used(0)) == {}
    assert known(idle, BEGINS_AFTER_S, used(0)) == {A: Idleness(at(0))}


def test_one_use_ends_it_and_what_it_was_is_kept_until_the_share_ends() -> None:
    idle = IdleShares()
    watch(idle, minutes(0, 20), used(0))
    assert known(idle, 1200, used(7)) == {A: Idleness(None, 1200)}
    watch(idle, minutes(21, 40), used(0))
    assert known(idle, 2400, used(0)) == {A: Idleness(at(21 * 60), 1200)}
    assert known(idle, 2430) == {}, "its container is gone"


def test_a_kernel_that_began_since_the_last_look_is_use_though_the_driver_saw_none() -> None:
    idle = IdleShares()
    watch(idle, minutes(0, 30), used(0, last_kernel_s_ago=29))
    assert known(idle, 1800, used(0, last_kernel_s_ago=29)) == {}
    watch(idle, minutes(30, 50), used(None, last_kernel_s_ago=1000))
    assert known(idle, 3000, used(None, last_kernel_s_ago=1000)) == {A: Idleness(at(1800))}


@pytest.mark.parametrize(
    ("use", "unclear"),
    [(used(None), ()), (used(0), ("GPU-1",)), (used(0, paused=True, last_kernel_s_ago=900), ())],
    ids=["nothing tells", "processes of nobody known", "it waits for others"],
)
def test_without_evidence_no_share_is_idle(use: ContainerUse, unclear: tuple[str, ...]) -> None:
    idle = IdleShares()
    watch(idle, minutes(0, 60), use, unclear=unclear)
    assert idle.observe([use], at(3600), unclear) == {}


def test_a_share_of_two_containers_is_idle_if_both_are() -> None:
    idle, busy = IdleShares(), used(3, container="busy")
    watch(idle, minutes(0, 30), used(0), busy)
    assert known(idle, 1800, used(0), busy) == {}
    watch(idle, minutes(31, 45), used(0), used(0, container="busy"))
    assert known(idle, 2700, used(0), used(0, container="busy")) == {A: Idleness(at(31 * 60))}


def test_after_a_gap_nothing_is_known_of_the_time_between() -> None:
    idle = IdleShares()
    watch(idle, minutes(0, 5), used(0))
    late = 300 + LONGEST_GAP_S + 60
    assert known(idle, late, used(0)) == {}
    assert known(idle, late + BEGINS_AFTER_S - 200, used(0)) == {}


def test_an_agent_that_begins_goes_on_with_what_the_node_shows() -> None:
    idle = IdleShares()
    idle.resume({A: Idleness(at(0), 100), ("uid-gone", "GPU-1"): Idleness(None, 5)}, at(5000))
    assert known(idle, 5030, used(0)) == {A: Idleness(at(0), 100)}
    assert known(idle, 5060, used(1)) == {A: Idleness(None, 5160)}


def test_a_notebook_that_is_used_now_and_then_causes_few_writes() -> None:
    """Whoever makes his share idle and busy in turns is written of twice in ten minutes at most."""
    idle, texts = IdleShares(), list[str]()
    for second in range(0, 24 * 3600, EVERY_S):
        is_busy = second % 630 < EVERY_S
        text = idle_annotation(idle.observe([used(50 if is_busy else 0)], at(second)), at(second), "agent")
        if not texts or texts[-1] != text:
            texts.append(text)
    assert len(texts) <= 2 * 24 * 6 + 1


def test_the_annotation_says_the_same_when_it_is_read_and_stays_in_its_bound() -> None:
    shares = {(f"uid-{number}", "GPU-1"): Idleness(at(number), number) for number in range(2 * MOST_SHARES)}
    text = idle_annotation(shares, at(10_000), "agent")
    found = read_idle({"metadata": {"annotations": {IDLE_ANNOTATION: text}}})
    assert found.agent_uid == "agent"
    assert len(found.shares) == MOST_SHARES
    assert found.shares.items() <= shares.items()
    assert len(text) < LONGEST_TEXT
    assert idle_annotation({}, at(0), "agent") == ""


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_annotation_does_more_than_to_be_refused(text: str) -> None:
    refusals: list[str] = []
    try:
        read_idle({"metadata": {"annotations": {IDLE_ANNOTATION: text}}})
    except BadInput as error:
        refusals.append(str(error))
    assert all(len(each) < 1000 for each in refusals)
