"""Single stories, told exactly so: what random lives find too rarely to rely on it."""

import sys
from collections.abc import Iterator

import pytest

from simulation.acts import AgentAway, Crash, Create, Delete, Finish, ForceDelete, LeaseMoves
from simulation.card_acts import CardComes, CardFails
from simulation.explorers import Planned, Rule, live
from simulation.prepared import prepared
from simulation.scenario import Scenario, Wish
from simulation.scenarios import A0, HIGH, LOW, ONE_CARD, TWO_CARDS, TWO_NODES, A, B

LATE, ENDS, FAILS_BEFORE, SKIPPED, REFUSED = 2, 3, 3, 4, 9
"""Ways of a request, of a watch, of a Bind, of an event of a watch, and of a request again."""

LISTS_BOUND_PODS = "operator 1: list pods spec.schedulerName!=default-scheduler,spec.nodeName!="


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    with prepared():
        yield


def told(scenario: Scenario, *rules: Rule) -> str:
    """Tell a story; return what was wrong in it."""
    trace: list[str] = []
    planned = Planned(*rules)
    life = live(scenario, planned, trace)
    sys.stdout.write("\n".join(trace))
    assert life.violation or not planned.untold(), f"the story went another way: {planned.untold()}"
    return life.violation


def test_late_writes_of_an_attempt_that_was_given_up_do_not_touch_a_newer_one() -> None:
    """Mark and removal arrive twice: at once, by the retry, and after a newer attempt has bound the pod."""
    assert not told(
        Scenario("given up", ONE_CARD, (A,)),
        Rule("operator 1: bind pod", way=REFUSED),
        Rule("operator 1: write status of card gpu-node-a-0 (makes no. 0 releasing)", way=LATE),
        Rule("operator 1: write status of card gpu-node-a-0 (removes no. 0)", way=LATE),
    )


def test_a_pod_that_ran_keeps_its_share_for_a_while_even_if_nobody_saw_it_run() -> None:
    """A watch may leave out the event that says that a pod has started, if that of its deletion is there already."""
    assert not told(
        Scenario("unseen", ONE_CARD, (A,), (ForceDelete("a"),)),
        Rule("operator 1: sees MODIFIED pod a", skip=1, until=("scheduler 1: sees DELETED pod a",), way=SKIPPED),
        Rule("scheduler 1: sees MODIFIED pod a", skip=1, act=True),
    )


def test_an_attempt_that_came_too_late_does_not_give_away_what_another_operator_has_bound() -> None:
    """The other one's pod runs, and is deleted by force; only then does the Binding of this one arrive."""
    assert not told(
        Scenario("too late", ONE_CARD, (A,), (ForceDelete("a"),), replicas=2),
        Rule("operator 2: bind pod", until=("scheduler 1: sees DELETED pod a",)),
        Rule("scheduler 1: sees MODIFIED pod a", skip=1, act=True),
    )


def test_an_attempt_that_was_overtaken_does_not_give_away_what_the_other_operator_has_bound() -> None:
    """It has entered the share; the other one relies on it, and binds the pod, which is deleted by force."""
    assert not told(
        Scenario("overtaken", ONE_CARD, (A,), (ForceDelete("a"),), replicas=2),
        Rule("operator 1: bind pod", until=("scheduler 1: sees DELETED pod a",)),
        Rule("scheduler 1: sees MODIFIED pod a", skip=1, act=True),
    )


def test_room_that_was_kept_for_a_pod_is_free_again_when_another_operator_has_bound_it() -> None:
    """Both keep the room of `a` for `b`; this one is still reading the pod when it learns that it is bound."""
    assert not told(
        Scenario("kept twice", ONE_CARD, (A, B), (Finish("a"),), replicas=2),
        Rule("scheduler 1: sees MODIFIED pod a", skip=1, act=True),
        Rule("scheduler 2: Filter uid-b", skip=1, until=("operator 1: .*adds uid-b", "operator 2: sees MODIFIED card")),
        Rule("operator 2: read pod default/b", until=("operator 1: bind pod default/b",) * 2),
    )


def test_a_pod_that_was_seen_to_run_has_run_whatever_an_older_list_says() -> None:
    """The list was read before it began to run; its answer comes when the pod is gone already."""
    assert not told(
        Scenario("older list", TWO_CARDS, (A, B), (ForceDelete("a"),)),
        Rule("scheduler 1: Bind uid-b", way=LATE),
        Rule("operator 1: sees MODIFIED card", way=ENDS),
        Rule("kubelet: starts uid-a", until=(LISTS_BOUND_PODS,)),
        Rule("operator 1: hears of list pods", until=("operator 1: sees DELETED pod a",)),
        Rule("operator 1: sees MODIFIED pod a", skip=1, act=True),
        Rule("operator 1: hears of read pod default/a", until=("operator 1: hears of list pods",)),
    )


def test_the_time_of_a_pod_that_is_gone_does_not_begin_before_it_is_gone() -> None:
    """Its share was marked because its bind had failed, as it seemed; the Binding arrives late, and the pod runs."""
    assert not told(
        Scenario("marked before", ONE_CARD, (A,), (Crash(), ForceDelete("a"))),
        Rule("operator 1: bind pod", way=LATE),
        Rule("operator 1: read pod", skip=1, act=True),
        Rule("operator 1: starts again", way=LATE),
        Rule("scheduler 1: writes status", way=LATE),
        Rule("scheduler 1: writes status", skip=1, way=LATE),
        Rule("scheduler 1: sees MODIFIED pod a", act=True, skip=1),
    )


def test_a_pod_whose_refusal_is_written_down_while_those_who_wait_are_being_listed_is_woken_too() -> None:
    """It is not in the list, and the watch shows it before the answer is there."""
    bound, waits = r"operator 1': list pods .*nodeName!=$", r"operator 1': list pods .*nodeName=$"
    assert not told(
        Scenario("refused meanwhile", ONE_CARD, (A, B), (Crash(), Delete("a"))),
        Rule("scheduler 1: Bind uid-a", until=("scheduler 1: Filter uid-b",), act=True),
        Rule("scheduler 1: writes status of uid-a", act=True),
        Rule("scheduler 1: writes status of uid-b", until=(bound, waits)),
        Rule("operator 1': hears of list pods", skip=1, until=(r"operator 1': sees MODIFIED pod b",)),
    )


def test_a_pod_that_was_refused_just_before_a_restart_is_woken_too() -> None:
    """Its refusal is written down only after the operator has read who waits; then nothing calls the scheduler."""
    assert not told(
        Scenario("refused before", ONE_CARD, (A, B), (Crash(), Delete("a"))),
        Rule("scheduler 1: Bind uid-a", until=("scheduler 1: Filter uid-b",), act=True),
        Rule("scheduler 1: writes status of uid-a", act=True),
        Rule("scheduler 1: writes status of uid-b", way=LATE),
    )


def test_two_operators_that_see_a_node_differently_do_not_write_as_fast_as_they_can() -> None:
    """The watch of one stalls while the agent of a node goes away."""
    assert not told(
        Scenario("seen differently", ONE_CARD, (A,), (AgentAway("node-a"),), replicas=2),
        Rule("scheduler 1: sees MODIFIED pod a", act=True),
        Rule("operator 2: sees MODIFIED node", way=LATE),
    )


def test_a_pod_whose_prebind_fails_on_one_node_goes_to_another() -> None:
    story = Scenario("PreBind", {"node-a": 1, "node-b": 1}, (A,))
    trace: list[str] = []
    life = live(story, Planned(Rule("scheduler 1: Bind uid-a", way=FAILS_BEFORE)), trace)
    assert not life.violation
    asked = [line.split()[-1] for line in trace if "scheduler 1: Bind uid-a to" in line and "fails" not in line]
    failed = [line for line in trace if "fails in PreBind" in line]
    assert len(failed) == len(asked) == 1
    assert f"to {asked[0]} " not in failed[0]


def test_a_pod_is_not_bound_to_a_card_that_gets_sick_while_its_share_is_entered() -> None:
    assert not told(
        Scenario("sick meanwhile", ONE_CARD, (A,), (CardFails(A0),)),
        Rule("operator 1: write status of card gpu-node-a-0 (adds uid-a)", act=True),
        Rule("operator 1: hears of write status", until=("operator 1: sees MODIFIED node",)),
    )


def test_a_card_that_comes_back_is_there_again_though_another_node_was_about_to_have_it() -> None:
    """Its object was deleted, and the other node gave it up before it was made anew."""
    assert not told(
        Scenario("there and back", TWO_NODES, (A, B), (CardComes(A0, "node-b"), CardComes(A0, "node-a"))),
        Rule("operator 1: sees ADDED pod a", act=True),
        Rule("scheduler 1: sees ADDED pod b", act=True),
    )


def test_room_that_others_have_left_is_kept_by_an_operator_whose_clock_is_two_hours_ahead() -> None:
    """It takes over when the room is about to be reserved; by its own clock, the time for that is long over."""
    pods = (Wish("a", priority=LOW),)
    acts = (Create(Wish("h", priority=HIGH)), LeaseMoves(2))
    clocks = (-3_600.0, 3_600.0)
    assert not told(
        Scenario("two hours", ONE_CARD, pods, acts, replicas=2, follows_lease=True, skews_s=clocks),
        Rule("scheduler 1: sees MODIFIED pod a", skip=1, act=True),
        Rule("operator 1: write status of card gpu-node-a-0 (adds uid-h)", act=True),
    )
