"""The bind protocol in every order in which a few attempts can race each other: with one fault, or with none."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import pytest

from effort import times
from simulation.acts import ForceDelete
from simulation.orders import Lived, Orders, told
from simulation.prepared import prepared
from simulation.race import Bind, Race, Step
from simulation.races import BY_NAME, RACES
from simulation.scenarios import A, B
from simulation.test_the_simulation_notices import BREAKS, LEFT, LOST, NOTHING, give_back_without_fence

LARGE = ("bind, sweep, bind", "two pods on one card")
"""Races with thousands of orders even when nothing goes wrong."""

WIDE = ("a pod on two cards", "a pod on two cards, twice")
"""Races that take half a minute even when nothing goes wrong."""

WITH_A_FAULT = ("bind and sweep", "two pods for one card")

SOME_ORDERS, EVERY_ORDER = 250, 1_000_000
"""How many orders are tried at most. `bind and sweep` has about 20,000 with a fault, which takes three minutes; where a
safeguard is missing, that shows within the first 210."""


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with prepared():
        yield


def nothing_goes_wrong(orders: Iterable[Lived]) -> None:
    for lived in orders:
        if lived.violation:
            pytest.fail(told(lived.race, lived.places)[1])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(race.name, marks=pytest.mark.long if race.name in WIDE else ())
        for race in RACES
        if race.name not in LARGE
    ],
)
def test_no_order_does_harm(name: str) -> None:
    nothing_goes_wrong(Orders(BY_NAME[name], wrong=0))


@pytest.mark.thorough
@pytest.mark.timeout(1_800)  # three minutes, on two cores that nothing else uses
@pytest.mark.parametrize("name", WITH_A_FAULT)
def test_no_order_with_a_fault_does_harm(name: str) -> None:
    nothing_goes_wrong(islice(Orders(BY_NAME[name], wrong=1), times(SOME_ORDERS, EVERY_ORDER)))


def normal_form(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return the order that comes first in the alphabet among those that differ from this one by swaps."""
    left, ordered = list(steps), []
    while left:
        ready = [step for place, step in enumerate(left) if all(other.can_swap(step) for other in left[:place])]
        first = min(ready, key=lambda step: step.what)
        ordered.append(first.what)
        left.remove(first)
    return tuple(ordered)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("race", "wrong"),
    [
        (BY_NAME["bind and bind"], 0),
        (Race("bind and delete", (A,), (Bind("a"),), (ForceDelete("a"),)), times(1, 2)),
        pytest.param(
            Race("bind, bind, delete", (A, B), (Bind("a"), Bind("b")), (ForceDelete("b"),)), 1, marks=pytest.mark.long
        ),
    ],
    ids=lambda of: getattr(of, "name", of),
)
def test_the_orders_that_are_left_out_differ_only_by_swaps(race: Race, wrong: int) -> None:
    every, some = Orders(race, wrong, swaps=False), Orders(race, wrong)
    all_of_them = [(normal_form(lived.steps), lived.outcome) for lived in every]
    assert set(all_of_them) == {(normal_form(lived.steps), lived.outcome) for lived in some}
    assert some.lives < len(all_of_them)


WITHOUT = {
    "the sweep": "bind and sweep",
    "the look at the pod": "bind and bind",
    "the fence": "bind and sweep",
    "the rule on totals": "two pods for one card",
    "the ledger before the Binding": "bind and bind",
}
"""Safeguard -> a race in which it shows that it is missing."""

LATE = {
    "the version in the Binding": "bind and sweep",
    "taking over what another attempt has entered": "bind and sweep",
    "another look at what was entered before": "bind and sweep",
    "the names of attempts": "bind and sweep",
    "marks on shares, and the names of attempts": "bind and sweep",
}
"""The same, where only one of the last orders shows it; test_the_simulation_notices.py tries them in each run."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "name"),
    [*WITHOUT.items(), *(pytest.param(*late, marks=pytest.mark.long) for late in LATE.items())],
)
def test_a_missing_safeguard_is_noticed(what: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to think of the order in which it shows."""
    next(broken for broken in BREAKS if broken.what == what).take_away(monkeypatch)
    symptom = f"{LEFT}|{LOST}|{NOTHING}|over-allocated"
    assert any(re.search(symptom, lived.violation) for lived in Orders(BY_NAME[name], wrong=1))


@pytest.mark.thorough
def test_a_failure_is_told_with_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back_without_fence(monkeypatch)
    lived = next(lived for lived in Orders(BY_NAME["bind and sweep"], wrong=1) if lived.violation)
    violation, story = told(lived.race, lived.places)
    assert violation == lived.violation
    assert f"VIOLATION: {violation}" in story
    assert f"--race 'bind and sweep' --places {','.join(map(str, lived.places))}" in story
