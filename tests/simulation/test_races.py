"""The bind protocol in every order in which a few attempts can race each other: with one fault, or with none."""

from collections.abc import Iterator

import pytest

from simulation.orders import Orders, told
from simulation.prepared import prepared
from simulation.races import BY_NAME, RACES
from simulation.test_the_simulation_notices import BREAKS, give_back_without_fence

LARGE = ("bind, sweep, bind", "two pods on one card")
"""Races with thousands of orders even when nothing goes wrong."""

WITH_A_FAULT = ("bind and bind", "bind and sweep", "two pods for one card")


@pytest.fixture(autouse=True)
def _prepared() -> Iterator[None]:
    with prepared():
        yield


def nothing_goes_wrong(orders: Orders) -> None:
    for lived in orders:
        if lived.violation:
            pytest.fail(told(lived.race, lived.places))


@pytest.mark.parametrize("name", [race.name for race in RACES if race.name not in LARGE])
def test_no_order_does_harm(name: str) -> None:
    nothing_goes_wrong(Orders(BY_NAME[name], wrong=0))


@pytest.mark.parametrize("name", WITH_A_FAULT)
def test_no_order_with_a_fault_does_harm(name: str) -> None:
    nothing_goes_wrong(Orders(BY_NAME[name], wrong=1))


@pytest.mark.parametrize(
    ("name", "wrong"), [("bind and bind", 0), ("a pod on two cards", 0), ("two pods for one card", 1)]
)
def test_the_orders_that_are_left_out_lead_nowhere_else(name: str, wrong: int) -> None:
    all_of_them, some = Orders(BY_NAME[name], wrong, swaps=False), Orders(BY_NAME[name], wrong)
    assert {lived.outcome for lived in some} == {lived.outcome for lived in all_of_them}
    assert some.lives < all_of_them.lives / 2


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("the sweep", "bind and sweep"),
        ("the look at the pod", "bind and bind"),
        ("the fence", "bind and sweep"),
        ("the version in the Binding", "bind and sweep"),
        ("the rule on totals", "two pods for one card"),
        ("the tests in patches", "bind and bind"),
        ("the ledger before the Binding", "bind and bind"),
        ("taking over what another attempt has entered", "bind and sweep"),
        ("another look at what was entered before", "bind and sweep"),
        ("the names of attempts", "bind and sweep"),
        ("marks on shares, and the names of attempts", "bind and sweep"),
    ],
)
def test_a_missing_safeguard_is_noticed(what: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to think of the order in which it shows."""
    next(broken for broken in BREAKS if broken.what == what).take_away(monkeypatch)
    assert any(lived.violation for lived in Orders(BY_NAME[name], wrong=1))


def test_a_failure_is_told_with_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back_without_fence(monkeypatch)
    lived = next(lived for lived in Orders(BY_NAME["bind and sweep"], wrong=1) if lived.violation)
    story = told(lived.race, lived.places)
    assert f"VIOLATION: {lived.violation}" in story
    assert f"--race 'bind and sweep' --places {','.join(map(str, lived.places))}" in story
