"""`make test` stays short enough to be run before each merge: by the seconds that were written down last."""

from lanes import BUDGET_S, LONGEST_S, recorded

LONGER: dict[str, str] = {}
"""Test that may take longer -> why. It may only become shorter."""


def test_no_test_of_the_lane_takes_longer_than_one_may() -> None:
    assert {name: took_s for name, took_s in recorded().too_long().items() if name not in LONGER} == {}, LONGEST_S


def test_the_exceptions_are_needed() -> None:
    assert LONGER.keys() - recorded().too_long().keys() == set()


def test_the_lane_keeps_within_its_budget() -> None:
    assert recorded().over_budget_s() == 0.0, BUDGET_S
