"""The bind protocol under every order of events that these explorers can think of.

Random lives are others in each run, as many as `make test` has time for, and thousands by `make test-all`; for more of
them there is `python -m simulation`. What fails tells the command that repeats it.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import seeds_for, times
from fakes.card_rules import check_card
from gpuledger.model.errors import Invalid
from simulation.__main__ import read_choices
from simulation.api_server import ApiServer, Change, Json
from simulation.card_checks import broken_rule
from simulation.explorers import (
    BREAKING,
    EXPIRING,
    Life,
    Mood,
    Moody,
    Repeat,
    all_lives,
    live,
    random_lives,
    shortened,
    story,
)
from simulation.prepared import prepared
from simulation.scenario import Scenario
from simulation.scenarios import BY_NAME, FAULTS, GANGS, SMALL, named, random_scenario

LIVES = times(8, 200, check=2)
"""Random lives of each small scenario."""

LIVES_WITH_FAULTS = times(4, 200, check=1)
"""The same of each scenario with more faults."""

PARTS, PARTS_WITH_FAULTS = times(16, 1), times(40, 1)
"""Of everything that differs from their normal course in one thing, each run tries one of so many parts."""

RANDOM_SCENARIOS_AT_ONCE = 10

FOUND = {
    "nobody woke a pod whose refusal a scheduler that was to stop had written over": (
        "the Lease moves",
        "6:1,12:1,13:1,14:1,15:1,16:4,18:1,19:1,21:1,22:1,24:1,25:1,27:1,29:1,30:1,31:1,33:1,36:1,39:5,41:1,42:1,44:6,"
        "45:1,47:1,50:1,51:1,52:1,53:1,55:1,56:1,58:1,59:1,60:1,62:1,63:1,64:1,66:1,69:1,70:1,71:1,72:1,73:1,75:1,"
        "77:1,78:1,79:1,80:1,81:1,86:1,87:1,88:1,89:1,91:1,92:1,93:1,94:1,96:1,97:8,99:1,102:1,104:1,105:1,106:1,"
        "108:1,109:1,110:1,111:1,114:1,116:1,118:1,119:1,120:1,122:1,123:1,124:1,126:1,128:1,129:1,130:1,131:1,132:1,"
        "134:1,136:1,137:1,144:1,146:1,150:1,152:1,153:1,155:1,156:1,157:1,166:1,168:1,169:1,171:1,172:1,173:1,175:1,"
        "178:1,179:1,180:1,183:1,184:1,185:1,186:1,187:1,188:1,189:1,191:1,192:1,193:1,194:1,201:1,209:1,210:1,211:1,"
        "212:1,217:1,219:1,220:1,221:1,222:1,230:1,232:1,233:1,238:1,239:1,241:1,242:1,246:1,247:1,251:1,252:1,254:1,"
        "257:1,258:1,259:1",
    ),
    "nobody left for a pod after kube-scheduler could not be called to say again where the pod may go": (
        "a more important pod and two operators",
        "11:5,13:1,19:1,22:5,29:3,31:5,32:5,70:5,72:5,84:1,89:1,96:5,106:5,108:5,114:5,134:9",
    ),
    "a pod that was gone before the operator listed stayed a member of its gang, which never started": (
        "a gang that is larger than it has to be",
        "2:1,4:1,5:3,9:5,10:1,11:3,12:2,15:3,21:5",
    ),
    "a member was bound although another one had lost its cards after all had entered theirs": (
        "a gang and a pod",
        "2:1,4:1,6:1,11:1,12:1,13:1,17:11,22:1,23:1,24:1,25:2,28:4,43:1,46:1,47:1,48:1,50:1,54:1,56:1,59:1,60:1,"
        "64:1,65:1,66:1,67:1,69:3,71:4,79:2,81:1,83:1,89:1,91:1,93:1,100:1,101:1,102:1,104:1,105:1,107:1,108:1,"
        "109:3,115:1,117:1,118:1,125:1,126:1,127:1,129:1,136:1,137:1,139:1,142:1,144:1,147:1,148:2,149:1,150:1,"
        "151:1,153:7,156:1,157:1,158:4,164:1,169:10,170:3",
    ),
    "a pod whose room was reserved on a node without its agent was called four times a second": (
        "random 1875814962",
        "16:1,22:1,28:1,34:1,53:1,56:1,62:5,74:4,95:5",
    ),
}
"""What was wrong in a random life -> its scenario and deviations. It is lived again in each run."""


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with prepared():
        yield


def nothing_goes_wrong(lives: Iterable[Life]) -> None:
    for life in lives:
        if life.violation:
            pytest.fail(story(shortened(life)))


def with_seeds(scenarios: Sequence[Scenario], purpose: str) -> pytest.MarkDecorator:
    """Have each of some scenarios tried from a seed of its own."""
    pairs = list(zip(scenarios, seeds_for(purpose, len(scenarios)), strict=True))
    return pytest.mark.parametrize(("scenario", "seed"), pairs, ids=lambda of: getattr(of, "name", of))


@pytest.mark.thorough
@with_seeds(SMALL, "parts of small ones")
def test_no_single_deviation_does_harm(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(all_lives(scenario, 1, seed % PARTS, PARTS))


@with_seeds(SMALL, "lives")
def test_no_random_life_does_harm(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(random_lives(scenario, range(seed, seed + LIVES)))


@pytest.mark.thorough
@with_seeds(FAULTS, "parts")
def test_no_single_deviation_does_harm_where_more_can_go_wrong(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(all_lives(scenario, 1, seed % PARTS_WITH_FAULTS, PARTS_WITH_FAULTS))


@pytest.mark.thorough
@with_seeds(GANGS, "parts of gangs")
def test_no_single_deviation_leaves_half_a_gang_or_makes_one_wait_that_fits(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(all_lives(scenario, 1, seed % PARTS_WITH_FAULTS, PARTS_WITH_FAULTS))


@with_seeds(GANGS, "lives of gangs")
def test_no_random_life_leaves_half_a_gang_or_makes_one_wait_that_fits(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(random_lives(scenario, range(seed, seed + LIVES_WITH_FAULTS)))


@with_seeds(FAULTS, "lives with faults")
def test_no_random_life_does_harm_where_more_can_go_wrong(scenario: Scenario, seed: int) -> None:
    nothing_goes_wrong(random_lives(scenario, range(seed, seed + LIVES_WITH_FAULTS)))


@pytest.mark.parametrize(("name", "choices"), FOUND.values(), ids=list(FOUND))
def test_what_random_lives_have_found_does_no_harm_any_more(name: str, choices: str) -> None:
    nothing_goes_wrong([live(named(name), Repeat(read_choices(choices)))])


@pytest.mark.parametrize("first", seeds_for("random scenarios", times(5, 200, check=1)))
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


HAPPENS = {
    "a card fails": ("ACT: CardFails", "ACT: CardRecovers"),
    "a card shrinks": ("ACT: CardShrinks",),
    "a card vanishes": ("ACT: CardVanishes",),
    "a card moves": ("ACT: CardComes",),
    "etcd is restored": ("ACT: EtcdRestored",),
    "etcd is restored under two operators": ("ended: StateRolledBack",),
    "a clock jumps while others leave": ("ACT: ClockJumps",),
    "a budget protects who is to leave": ("ACT: BudgetAllows", "operator 1: evict pod"),
    "kube-scheduler preempts": ("scheduler 1: deletes victim",),
    "lists come in pages": (", the next page",),
    "a card of a gang fails": ("ACT: CardFails", "ACT: CardRecovers"),
    "a gang whose last member comes late": ("ACT: Create",),
}
"""Scenario -> what its stories tell of."""


@pytest.mark.parametrize("name", HAPPENS)
def test_what_can_go_wrong_does_in_a_fair_share_of_lives(name: str) -> None:
    """Seeds are the same in each run here: it is about the explorer."""
    told = Counter[str]()
    for seed in range(20):
        trace: list[str] = []
        live(BY_NAME[name], Moody(f"{name} {seed}"), trace)
        told.update(what for what in HAPPENS[name] if any(what in line for line in trace))
    assert min(told[what] for what in HAPPENS[name]) >= 3


@pytest.mark.parametrize(
    ("name", "mood", "what"),
    [("an API server is behind", BREAKING, "-- breaks"), ("lists come in pages", EXPIRING, "answered with 410")],
)
def test_watches_that_begin_anew_from_older_data_and_lists_that_expire_do_no_harm(
    name: str, mood: Mood, what: str
) -> None:
    told = 0
    for seed in seeds_for(name, LIVES_WITH_FAULTS):
        trace: list[str] = []
        life = live(BY_NAME[name], Moody(f"{name} {seed}", mood), trace)
        nothing_goes_wrong([life])
        told += any(what in line for line in trace)
    assert told >= LIVES_WITH_FAULTS / 2


@pytest.mark.thorough
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


@pytest.mark.parametrize("seed", seeds_for("given objects", 1))
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


@pytest.mark.parametrize("seed", seeds_for("rules of the CRD", 1))
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
