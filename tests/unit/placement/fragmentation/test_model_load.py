"""Demand is poured over the kinds of cards that can meet it, where there is least."""

import pytest

from gpuledger.placement.fragmentation.prices import LARGEST_LOAD, loads

ANY = frozenset({0, 1})


def test_demand_that_any_card_meets_loads_all_alike() -> None:
    assert loads({ANY: 1.0}, [1000.0, 3000.0]) == pytest.approx([1.0, 1.0])


def test_the_free_ones_leave_a_kind_that_others_need() -> None:
    """Of 4,000 in all, 3,000 are claimed of the first kind: the others go to the second."""
    first, second = loads({frozenset({0}): 3.0, ANY: 1.0}, [2000.0, 2000.0])
    assert first == pytest.approx(1.5)
    assert second == pytest.approx(0.5)


def test_the_load_is_bounded() -> None:
    assert loads({frozenset({0}): 1.0}, [1.0, 100_000.0]) == [LARGEST_LOAD, 0.0]


def test_a_kind_that_nobody_asks_for_costs_nothing() -> None:
    assert loads({frozenset({0}): 1.0}, [1000.0, 1000.0])[1] == 0


def test_without_demand_all_kinds_cost_the_same() -> None:
    assert loads({}, [1000.0, 10.0]) == [1.0, 1.0]
    assert loads({frozenset(): 1.0}, [1000.0]) == [1.0]


def test_overlapping_claims_are_settled_between_each_other() -> None:
    """Two sets that share a kind: each goes first where the other can't."""
    found = loads({frozenset({0, 1}): 1.0, frozenset({1, 2}): 1.0, frozenset({0, 1, 2}): 0.0}, [1000.0, 1000.0, 1000.0])
    assert found == pytest.approx([1.0, 1.0, 1.0])
