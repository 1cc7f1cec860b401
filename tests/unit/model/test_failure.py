"""When a failure is one of a storm, and how long a pod may stay on a card that has failed."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.clock import rfc3339, time_of
from gpuledger.model.failure import Failure, FaultClass, StormLimits, patience_s, storm

START = datetime(2026, 1, 1, tzinfo=UTC)


def failed(at_s: float) -> Failure:
    return Failure(FaultClass.LOST, rfc3339(START + timedelta(seconds=at_s)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1_000)), min_size=1, max_size=8), st.integers(8, 40))
def test_a_storm_is_more_nodes_or_a_larger_part_of_the_cards_within_five_minutes(
    faults: list[tuple[int, int]], cards: int
) -> None:
    limits = StormLimits(most_nodes=2, most_cards_percent=20)
    by_node: dict[str, list[Failure]] = {}
    for node, at_s in faults:
        by_node.setdefault(f"node-{node}", []).append(failed(at_s))
    for _, at_s in faults:
        near = [(node, other_s) for node, other_s in faults if abs(other_s - at_s) <= 300]
        too_many = len({node for node, _ in near}) > 2 or (len(near) > 1 and len(near) / cards > 0.2)
        assert bool(storm(failed(at_s), by_node, lambda: cards, limits)) is too_many


def test_a_single_card_is_no_storm_where_there_is_no_other() -> None:
    assert storm(failed(0), {"node-1": [failed(0)]}, lambda: 1, StormLimits()) == ""


def test_a_failure_without_a_time_can_not_be_told_from_a_storm() -> None:
    undated = Failure(FaultClass.LOST, "yesterday")
    assert storm(undated, {}, lambda: 100, StormLimits()) == "its node does not say when it began"


@pytest.mark.parametrize(
    ("default_s", "own_s", "longest_s", "stays_s"),
    [
        (None, 0.0, 3_600.0, None),  # the administrator has nobody leave
        (60.0, None, 3_600.0, 60.0),
        (60.0, 0.0, 3_600.0, 0.0),
        (60.0, 600.0, 3_600.0, 600.0),
        (60.0, math.inf, 3_600.0, 3_600.0),
        (60.0, math.inf, 10.0, 60.0),  # the limit shortens no default
    ],
)
def test_a_pods_word_counts_up_to_the_administrators_limit(
    default_s: float | None, own_s: float | None, longest_s: float, stays_s: float | None
) -> None:
    assert patience_s(default_s, own_s, longest_s) == stays_s


def test_a_class_that_only_a_later_release_knows_has_no_consequence() -> None:
    assert FaultClass("melted") is FaultClass.OTHER


@pytest.mark.parametrize(
    ("text", "found"), [("2026-01-01T00:00:00Z", START), ("2026-01-01T00:00:00", None), ("soon", None), ("", None)]
)
def test_a_time_has_a_zone(text: str, found: datetime | None) -> None:
    assert time_of(text) == found
