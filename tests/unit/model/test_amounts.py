"""Amounts add up and compare in every dimension."""

import pytest

from gpuledger.model.card import NOTHING, Amounts

ROOM = Amounts(4_000, 50, 2)


def test_what_is_exactly_left_fits() -> None:
    assert ROOM.fits_in(ROOM)


@pytest.mark.parametrize("wanted", [Amounts(4_001, 50, 2), Amounts(4_000, 51, 2), Amounts(4_000, 50, 3)])
def test_too_much_of_one_dimension_does_not_fit(wanted: Amounts) -> None:
    assert not wanted.fits_in(ROOM)


def test_a_card_that_shrank_has_no_room_for_anything() -> None:
    assert not NOTHING.fits_in(Amounts(1_000, 100, 1) - Amounts(2_000, 0, 0))


def test_a_peak_takes_each_dimension_from_its_larger_user() -> None:
    assert Amounts(4_000, 10, 1).peak(Amounts(1_000, 60, 2)) == Amounts(4_000, 60, 2)


def test_what_is_added_can_be_taken_away_again() -> None:
    assert ROOM + Amounts(1, 2, 3) - Amounts(1, 2, 3) == ROOM
