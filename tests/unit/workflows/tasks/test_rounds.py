"""Who is tried next where there is not the time to try all: namespaces take turns, and nobody is passed over."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workflows.tasks import HEAD_EVERY, Round, by_turns

One = tuple[str, int]
"""A namespace, and a number in it."""


def a_round() -> Round[One]:
    return Round(lambda one: one, lambda one: one[0])


def a_pass(turns: Round[One], waiting: list[One], most: int, took_s: float = 0.03) -> list[One]:
    """Return who is tried in a pass that ends after so many."""
    found: list[One] = []
    for one in turns.next_pass(waiting):
        if len(found) == most:
            break
        found.append(one)
        turns.spent(one, took_s)
    return found


CROWD = [("crowd", number) for number in range(100)]
LAST = ("other", 0)


def test_where_there_is_time_for_all_their_order_counts_each_time() -> None:
    turns = a_round()
    for _ in range(3):
        assert a_pass(turns, [*CROWD, LAST], 1_000) == [*CROWD, LAST]


def test_who_stands_behind_a_crowd_of_another_namespace_is_tried_in_every_other_pass() -> None:
    turns = a_round()
    assert a_pass(turns, [*CROWD, LAST], 5) == CROWD[:5]
    found = [LAST in a_pass(turns, [*CROWD, LAST], 5) for _ in range(50)]
    assert found[0]
    assert all(one or other for one, other in pairwise(found))


def test_passes_go_on_behind_the_last_one_tried() -> None:
    turns = a_round()
    found = [a_pass(turns, CROWD, 5) for _ in range(3)]
    assert [one for each in found for one in each] == CROWD[:15]


def test_the_head_comes_again_though_others_have_not_been_tried() -> None:
    turns = a_round()
    found = [CROWD[0] in a_pass(turns, CROWD, 5) for _ in range(20)]
    assert [number for number, is_tried in enumerate(found, 1) if is_tried][1] == HEAD_EVERY


def test_who_comes_late_has_nothing_to_catch_up_on() -> None:
    turns, late = a_round(), [("late", number) for number in range(1_000)]
    for _ in range(1_000):
        a_pass(turns, [*CROWD, LAST], 5)
    for _ in range(30):
        a_pass(turns, [*CROWD, LAST, *late], 5)
    assert {namespace for namespace, _ in a_pass(turns, [*CROWD, LAST, *late], 5)} == {"crowd", "other", "late"}


@given(
    crowds=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    most=st.integers(2, 8),
    new=st.booleans(),
    took_s=st.lists(st.floats(0.001, 0.2), min_size=5, max_size=5),
)
def test_however_many_others_there_are_the_first_of_a_namespace_is_tried_after_a_few(
    crowds: list[int], most: int, new: bool, took_s: list[float]
) -> None:
    turns, tried, was_behind = a_round(), 0, False
    for number in range(30):
        names = number if new else 0  # the crowds come under new names each time
        waiting = [(f"crowd{team}", each + 100 * names) for team, size in enumerate(crowds) for each in range(size)]
        waiting += [LAST] if number > 2 else []
        found = 0
        for one in turns.next_pass(waiting):
            if found == most:
                break
            found, tried = found + 1, tried + (number > 2)
            turns.spent(one, 0.03 if one == LAST else took_s[int(one[0][-1])])
            was_behind |= one == LAST
        if was_behind:
            break
    assert was_behind
    assert tried <= (len(crowds) + 1) * most


def test_the_first_of_each_namespace_come_before_the_second_of_any() -> None:
    ones = [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("c", 1), ("b", 2)]
    assert by_turns(ones, lambda one: one[0]) == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]
