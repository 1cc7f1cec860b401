"""Turns: who lacks something else than cards is tried alone, in an order in which nobody starves."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.gang import GangName
from gpuledger.workflows.gangs.gangs import FIRST_PAUSE_S, LONGEST_PAUSE_S, BindBackoff
from gpuledger.workflows.gangs.members import GangState
from gpuledger.workflows.gangs.turns import TURN_S, ExclusiveTurns

A, B, C = (GangName("team", name) for name in "abc")
OTHER = GangName("other", "o")
OLD, YOUNG = (0, "2030-01-01"), (0, "2030-01-02")
HIGH = (-10, "2030-01-03")


def all_wait() -> ExclusiveTurns:
    return ExclusiveTurns(lambda name: True)


def test_who_fails_first_is_tried_alone_and_the_next_one_after_a_time_for_all() -> None:
    turns = all_wait()
    assert turns.holder(0.0) is None
    turns.lacks(A, YOUNG, 1.0)
    turns.lacks(B, OLD, 1.0)
    assert turns.holder(2.0) == A
    turns.is_bound(A, 4.0)
    assert turns.holder(5.0) is None
    assert turns.holder(7.0) == B


def test_the_oldest_of_those_that_want_a_turn_gets_the_next_one() -> None:
    turns = all_wait()
    for name, rank in ((A, OLD), (C, YOUNG), (B, OLD)):
        turns.lacks(name, rank, 0.0)
    turns.is_bound(A, 1.0)
    assert turns.holder(2.0) == B


def test_a_higher_priority_takes_over_and_who_was_tried_before_gets_its_turn_again() -> None:
    turns = all_wait()
    turns.lacks(A, OLD, 0.0)
    turns.lacks(B, HIGH, 1.0)
    assert turns.holder(1.0) == B
    turns.is_bound(B, 2.0)
    assert turns.holder(3.0) == A


def test_a_turn_ends_when_its_gang_fails_alone_too_and_that_gang_rests_longer_each_time() -> None:
    turns, now_s, free_s = all_wait(), 0.0, []
    for _ in range(4):
        turns.lacks(A, OLD, now_s)
        begin_s = now_s
        while turns.holder(now_s) != A:
            now_s += 1.0
            turns.lacks(A, OLD, now_s)
        free_s.append(now_s - begin_s)
        now_s += 10.0
        turns.lacks(A, OLD, now_s)
        assert turns.holder(now_s) is None
    assert free_s == [0.0, TURN_S, 2 * TURN_S, 4 * TURN_S]


def test_a_turn_is_over_after_a_while_and_when_its_gang_waits_no_more() -> None:
    waiting = {A, B}
    turns = ExclusiveTurns(waiting.__contains__)
    turns.lacks(A, OLD, 0.0)
    assert turns.next_s() == TURN_S
    assert turns.holder(TURN_S) is None
    turns.lacks(B, OLD, 2 * TURN_S)
    assert turns.holder(2 * TURN_S) == B
    waiting.clear()
    assert turns.holder(2 * TURN_S + 1.0) is None
    assert turns.next_s() is None


def test_a_gang_that_needs_none_has_no_use_for_its_turn() -> None:
    turns = all_wait()
    turns.lacks(A, OLD, 0.0)
    turns.needs_none(B, 1.0)
    assert turns.holder(1.0) == A
    turns.needs_none(A, 1.0)
    assert turns.holder(1.0) is None


def test_who_has_had_no_turn_comes_before_who_has_had_some() -> None:
    turns = all_wait()
    turns.lacks(A, OLD, 0.0)
    turns.lacks(A, OLD, 1.0)  # alone, too
    now_s = 1.0 + TURN_S
    turns.lacks(B, YOUNG, now_s)
    turns.is_bound(B, now_s)
    turns.lacks(A, OLD, now_s)
    turns.lacks(C, YOUNG, now_s)
    assert turns.holder(now_s) in (A, C)
    turns = all_wait()
    turns.lacks(B, OLD, 0.0)
    for name, rank in ((A, OLD), (C, YOUNG)):
        turns.lacks(name, rank, 0.5)
    turns.lacks(B, OLD, 1.0)
    assert turns.holder(2.0) == A


def test_a_turn_holds_back_its_namespace_and_of_others_those_that_lack_something_too() -> None:
    turns = all_wait()
    turns.lacks(A, OLD, 0.0)
    assert turns.holding_back(A, 1.0) is None
    assert turns.holding_back(B, 1.0) is not None
    assert turns.holding_back(OTHER, 1.0) is None
    turns.lacks(OTHER, YOUNG, 1.0)
    assert turns.holding_back(OTHER, 1.0) is not None
    assert turns.holding_back(OTHER._replace(name="that has not failed"), 1.0) is not None


def test_after_a_turn_of_no_use_those_of_its_namespace_concern_no_other_one_for_a_while_longer_each_time() -> None:
    turns, now_s, seen = ExclusiveTurns(lambda name: name != OTHER), 0.0, []
    for number in range(500):
        turns.lacks(GangName("team", f"g{number}"), YOUNG, now_s)
        turn = turns.current(now_s)
        if turn is None:
            now_s += 1.0
            continue
        seen.append((turn.since_s, turn.concerns_others))
        now_s = turn.ends_s
    begun_s = [since_s for since_s, concerns in seen if concerns]
    assert len(seen) > len(begun_s) > 2
    between_s = [later - sooner for sooner, later in pairwise(begun_s)]
    assert all(each >= TURN_S * (1 + 2**number) for number, each in enumerate(between_s[:5]))


@given(
    crowds=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    old=st.lists(st.booleans(), min_size=12, max_size=12),
    ends=st.lists(st.sampled_from(["bound", "fails", "nothing", "gone"]), min_size=12, max_size=12),
)
def test_however_many_gangs_others_make_a_namespace_has_its_turn_after_one_of_each(
    crowds: list[int], old: list[bool], ends: list[str]
) -> None:
    waiting: set[GangName] = set()
    turns, now_s, had = ExclusiveTurns(waiting.__contains__), 0.0, list[GangName]()
    waiting.add(OTHER)
    for number, (is_old, end) in enumerate(zip(old, ends, strict=True)):
        for team, size in enumerate(crowds):
            for each in range(size):  # each under a new name
                name = GangName(f"crowd{team}", f"g{number}-{each}")
                waiting.add(name)
                turns.lacks(name, OLD if is_old else YOUNG, now_s)
        if number == 3:
            had.clear()
            turns.lacks(OTHER, YOUNG, now_s)
        turn = turns.current(now_s)
        while turn is None:
            now_s += 1.0
            turn = turns.current(now_s)
        if turn.name == OTHER:
            break
        had.append(turn.name)
        match end:
            case "bound":
                now_s += 5.0
                turns.is_bound(turn.name, now_s)
                waiting.discard(turn.name)
            case "fails":
                now_s += 20.0
                turns.lacks(turn.name, OLD, now_s)
            case "nothing":
                now_s = turn.ends_s
            case "gone":
                now_s += 1.0
                waiting.discard(turn.name)
    else:
        raise AssertionError(f"it had none, and these had one: {had}")
    assert len(had) <= len(crowds) + 1


def test_gangs_that_are_gone_are_forgotten() -> None:
    waiting: set[GangName] = set()
    turns = ExclusiveTurns(waiting.__contains__)
    for number in range(10_000):
        name = GangName(f"team-{number % 100}", f"g{number}")
        waiting.add(name)
        turns.lacks(name, OLD, number * 1.0)
        waiting.discard(name)
    turns.current(12_000.0)
    assert len(turns) == 0


def test_each_failure_in_a_row_makes_the_pause_longer_and_a_gang_fails_once_for_all_its_members() -> None:
    pauses, now_s, seen, gang = BindBackoff(), 0.0, [], GangState(A)
    for _ in range(6):
        pauses.failed(gang, now_s)
        pauses.failed(gang, now_s)
        seen.append(pauses.left_s(gang, now_s))
        assert pauses.next_s(now_s) == now_s + seen[-1]
        now_s += seen[-1]
        assert (pauses.left_s(gang, now_s), pauses.next_s(now_s)) == (0.0, None)
    assert seen == [FIRST_PAUSE_S, 2.0, 4.0, 8.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    pauses.forget(gang)
    pauses.failed(gang, now_s)
    assert pauses.left_s(gang, now_s) == FIRST_PAUSE_S
