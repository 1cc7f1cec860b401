"""The worth of what is left of a card follows from what can still be cut from it."""

import numpy as np

from gpuledger.placement.fragmentation.prices import GRID, LENGTH, RemnantWorth


def worth(demand: dict[int, float], **remnants: int) -> RemnantWorth:
    left = np.zeros(LENGTH)
    left[LENGTH - 1] = remnants.pop("whole", 100)
    found = RemnantWorth()
    for _ in found.refresh(demand, left):
        pass
    return found


def of(found: RemnantWorth, milli: int) -> float:
    return float(found.worth[milli // GRID])


def test_a_remnant_that_no_piece_fits_into_is_worth_nothing() -> None:
    assert of(worth({500: 1.0}), 490) == 0


def test_what_is_left_beside_the_last_piece_adds_nothing() -> None:
    found = worth({300: 1.0})
    assert of(found, 900) == of(found, 990)
    assert of(found, 900) > of(found, 890)


def test_a_remnant_is_never_worth_less_than_a_smaller_one() -> None:
    found = worth({460: 3.0, 250: 1.0, 80: 2.0, 1000: 1.0})
    assert (np.diff(found.worth) >= 0).all()


def test_pieces_that_leave_nothing_of_use_make_their_place_dear() -> None:
    """Beside 810 of 1000 nothing fits: whoever takes a whole card for 190 takes away the place of an 810."""
    found = worth({810: 1.0, 190: 1.0})
    assert of(found, 1000) - of(found, 810) < of(found, 190) + 30


def test_a_size_that_is_hardly_demanded_is_not_kept_free_for() -> None:
    rare, frequent = worth({700: 0.01, 300: 5.0}), worth({700: 5.0, 300: 0.01})
    assert of(rare, 700) - of(rare, 600) < of(frequent, 700) - of(frequent, 600)


def test_without_demand_or_without_cards_the_worth_stays_as_it_was() -> None:
    found = worth({300: 1.0})
    before = found.worth.copy()
    for demand, left in (({}, np.ones(LENGTH)), ({300: 1.0}, np.zeros(LENGTH))):
        assert list(found.refresh(demand, left)) == []
        assert (found.worth == before).all()


def test_usage_follows_demand() -> None:
    """After the refresh, remnants are cut to the pieces in the proportion in which these are asked for."""
    demand = {500: 1.0, 250: 2.0, 1000: 1.0}
    found = worth(demand)
    # All cards are whole and all of their volume is demanded: 1 x 500 + 2 x 250 + 1 x 1000 = 2 cards.
    # So half of the cards are worth a whole piece, and a card is worth no more than its size.
    assert 900 < of(found, 1000) <= 1010
