"""The bind protocol under every order of events that these explorers can think of.

Random lives are others in each run, as many as `make test` has time for, and thousands by `make test-long`; for more of
them there is `python -m simulation`. What fails tells the command that repeats it.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import fresh_seeds, times
from fakes.card_rules import check_card
from gpuledger.model.errors import Invalid
from simulation.api_server import ApiServer, Change, Json
from simulation.card_checks import broken_rule
from simulation.explorers import Life, Repeat, all_lives, live, random_lives, shortened, story
from simulation.prepared import prepared
from simulation.scenario import Scenario
from simulation.scenarios import BY_NAME, SMALL, random_scenario

LIVES = times(20, 200, check=4)
"""Random lives of each small scenario."""

RANDOM_SCENARIOS_AT_ONCE = 10

FOUND = {
    ("the Lease moves", 700_000_250): "nobody woke a pod whose refusal a scheduler that was to stop had written over",
}
"""Scenario and seed of a random life -> what was wrong in it. It is lived again in each run."""


@pytest.fixture(autouse=True)
def _prepared() -> Iterator[None]:
    with prepared():
        yield


def nothing_goes_wrong(lives: Iterable[Life]) -> None:
    for life in lives:
        if life.violation:
            pytest.fail(story(shortened(life)))


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_no_single_deviation_does_harm(scenario: Scenario) -> None:
    nothing_goes_wrong(all_lives(scenario, 1))


@pytest.mark.parametrize(
    ("scenario", "seed"),
    list(zip(SMALL, fresh_seeds("lives", len(SMALL)), strict=True)),
    ids=lambda of: getattr(of, "name", of),
)
def test_no_random_life_does_harm(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(random_lives(scenario, range(seed, seed + LIVES)))


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_what_random_lives_have_found_does_no_harm_any_more(name: str, seed: int) -> None:
    nothing_goes_wrong(random_lives(BY_NAME[name], range(seed, seed + 1)))


@pytest.mark.parametrize("first", fresh_seeds("random scenarios", times(5, 200, check=1)))
def test_no_random_life_of_a_random_scenario_does_harm(first: int) -> None:
    for seed in range(first, first + RANDOM_SCENARIOS_AT_ONCE):
        nothing_goes_wrong(random_lives(random_scenario(seed), range(2)))


@pytest.mark.parametrize("name", ["two pods for one card", "two operators, two pods"])
@given(gaps=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=8))
@settings(max_examples=times(30, 30, check=6))
def test_no_handful_of_deviations_does_harm(name: str, gaps: list[tuple[int, int]]) -> None:
    """Each deviation comes so many steps after the last one; Hypothesis leaves out what a failure does not need."""
    deviations, step = [], 0
    for gap, choice in gaps:
        step += gap
        deviations.append((step, choice))
    nothing_goes_wrong([live(BY_NAME[name], Repeat(tuple(deviations)))])


def test_a_life_is_the_same_whenever_it_is_repeated_even_by_another_process() -> None:
    """No order of a set may show: strings hash to other numbers in each process."""
    run = [sys.executable, "-m", "simulation", "--scenario", "random 11", "--choices", "3:1,9:2,20:1,31:4,44:1,60:3"]
    told = {
        subprocess.run(
            run,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "operator 1" in told.pop()


@pytest.mark.parametrize("seed", fresh_seeds("given objects", 1))
def test_nobody_changes_an_object_that_was_given_to_him(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All share the API server's objects; a change in place would be one that nobody has sent."""
    told: list[tuple[Change, str]] = []
    tell = ApiServer._tell

    def remember(self: ApiServer, change: Change) -> None:
        told.append((change, repr(change)))
        tell(self, change)

    monkeypatch.setattr(ApiServer, "_tell", remember)
    for _ in random_lives(BY_NAME["the Lease moves"], range(seed, seed + 10)):
        assert [repr(change) for change, _ in told] == [before for _, before in told]
        told.clear()


@pytest.mark.parametrize("seed", fresh_seeds("rules of the CRD", 1))
def test_the_rules_of_the_crd_agree_at_every_write(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(new: Json, old: Json | None) -> str | None:
        try:
            check_card(new, old)
        except Invalid:
            assert broken_rule(new, old)
            return "refused by both"
        assert broken_rule(new, old) is None
        return None

    monkeypatch.setattr("simulation.api_server.broken_rule", both)
    nothing_goes_wrong(random_lives(BY_NAME["equal pods come and go"], range(seed, seed + 15)))


def test_a_failure_is_told_with_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.checker.devices", lambda pod: {})
    lives = random_lives(BY_NAME["two pods on one card"], range(20))
    life = shortened(next(life for life in lives if life.violation))
    again = live(life.scenario, Repeat(life.deviations))
    assert again == life
    assert life.deviations == ()
    assert story(life).count("VIOLATION: pod uid-a is bound with 0 cards") == 1
    assert "--scenario 'two pods on one card' --choices none" in story(life)
