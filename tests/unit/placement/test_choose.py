"""Which node a pod gets, and how little work it takes to know."""

from itertools import pairwise

import pytest

from builders import OFFER, a_card, a_ledger, a_request, a_share, cards_of, commit, mib, occupy, percent, uuids, whole
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import Amounts
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import MAX_HOLDERS, Placement
from gpuledger.placement.choose import ALL_LOOKED_AT, LOOKED_AT, LOOKED_AT_A_TIME, SETS_KEPT, STEPS_OF_A_LOOK, Chooser
from gpuledger.placement.policy import Policy, Preference, StepBudget, load_permille

BINPACK, SPREAD = Preference.BINPACK, Preference.SPREAD
NAMES = ["node-a", "node-b", "node-c"]


def three_nodes() -> Ledger:
    """Return three nodes of two cards: the first idle, the second the fullest, the third in between."""
    ledger = a_ledger(*(card for name in NAMES for card in cards_of(name, 2)))
    occupy(ledger, "b", a_share(a_card(0, "node-b"), 10_000))
    occupy(ledger, "c", a_share(a_card(0, "node-c"), 5_000))
    return ledger


def first_node(ledger: Ledger, request: PodRequest, policy: Policy) -> str:
    """Return the node of the preferred placement."""
    return Chooser(ledger, policy).choose(request, NAMES, 1).placements[0].node_name


def place_all(ledger: Ledger, request: PodRequest, count: int, policy: Policy | None = None) -> list[Placement]:
    """Place pods one after the other, each stored before the next comes, until one does not fit."""
    chooser = Chooser(ledger, policy or Policy())
    placed = []
    for number in range(count):
        choice = chooser.choose(request, list(ledger.node_names()), 1)
        if not choice.placements:
            break
        ledger.seats.take(Seat(f"pod-{number}", choice.placements[0], 10.0))
        commit(ledger, f"pod-{number}")
        placed.append(choice.placements[0])
    return placed


def test_binpack_prefers_the_fullest_node_that_fits() -> None:
    assert first_node(three_nodes(), a_request(mib(1_000)), Policy(nodes=BINPACK)) == "node-b"
    assert first_node(three_nodes(), a_request(mib(11_000, cards=2)), Policy(nodes=BINPACK)) == "node-c"


def test_a_card_whose_object_can_list_no_more_pods_is_full_and_the_next_one_is_taken() -> None:
    cards = [a_card(index, number=4 * MAX_HOLDERS) for index in range(2)]
    placed = place_all(a_ledger(*cards), a_request(mib(10)), 2 * MAX_HOLDERS + 1, Policy(cards=BINPACK))
    taken = [share.uuid for placement in placed for share in placement.shares]
    assert taken == [card.uuid for card in cards for _ in range(MAX_HOLDERS)]  # the last pod found no slot


def test_a_card_that_is_full_of_pods_says_that_it_has_no_slot() -> None:
    ledger = a_ledger(a_card(number=4 * MAX_HOLDERS))
    assert len(place_all(ledger, a_request(mib(10)), MAX_HOLDERS)) == MAX_HOLDERS
    refusal = Chooser(ledger, Policy()).choose(a_request(mib(10)), ["node-a"], 1).refusals["node-a"]
    assert refusal.reason is Reason.NO_SLOT


def test_spread_prefers_the_emptiest_node() -> None:
    assert first_node(three_nodes(), a_request(mib(1_000)), Policy(nodes=SPREAD)) == "node-a"


def test_nodes_and_cards_are_chosen_by_different_preferences() -> None:
    chooser = Chooser(three_nodes(), Policy(nodes=BINPACK, cards=SPREAD))
    (placement,) = chooser.choose(a_request(mib(1_000)), NAMES, 1).placements
    assert [share.uuid for share in placement.shares] == ["GPU-node-b-1"]
    chooser = Chooser(three_nodes(), Policy(nodes=SPREAD, cards=BINPACK))
    (placement,) = chooser.choose(a_request(mib(1_000)), ["node-b"], 1).placements
    assert [share.uuid for share in placement.shares] == ["GPU-node-b-0"]


def test_the_name_breaks_ties_between_nodes() -> None:
    ledger = a_ledger(*(a_card(0, name) for name in reversed(NAMES)))
    for preference in Preference:
        assert first_node(ledger, a_request(mib(1)), Policy(nodes=preference)) == "node-a"


def test_only_named_nodes_are_answered_as_many_as_asked_for_the_preferred_first() -> None:
    chooser = Chooser(three_nodes(), Policy())
    choice = chooser.choose(a_request(mib(1)), ["node-a", "node-c"], 5)
    assert [placement.node_name for placement in choice.placements] == ["node-c", "node-a"]
    assert choice.refusals == {}
    assert len(chooser.choose(a_request(mib(1)), NAMES, 2).placements) == 2


def test_every_node_is_refused_with_its_own_reason() -> None:
    ledger = three_nodes()
    ledger.set_offer("node-c", None)
    choice = Chooser(ledger, Policy()).choose(a_request(whole(2)), ["node-b", "node-c", "node-x"], 1)
    assert choice.placements == ()
    assert {name: refusal.reason for name, refusal in choice.refusals.items()} == {
        "node-b": Reason.NO_WHOLE_CARD,
        "node-c": Reason.AGENT_NOT_READY,
        "node-x": Reason.NO_INVENTORY,
    }


def test_one_given_node_is_answered_with_cards_or_a_reason() -> None:
    chooser = Chooser(three_nodes(), Policy())
    found = chooser.choose_on(a_request(mib(1_000)), "node-c")
    assert isinstance(found, Placement)
    assert uuids([a_card(0, "node-c")]) == tuple(share.uuid for share in found.shares)
    refusal = chooser.choose_on(a_request(mib(1_000)), "node-x")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NO_INVENTORY


def test_sixteen_half_cards_fill_eight_cards_with_two_each() -> None:
    ledger = a_ledger(*cards_of(count=8))
    placed = place_all(ledger, a_request(percent(50)), 17)
    assert len(placed) == 16
    assert [entry.used() for entry in ledger.entries_of_node("node-a")] == [Amounts(16_000, 0, 2)] * 8


def test_spread_cards_get_one_half_each_before_any_gets_two() -> None:
    ledger = a_ledger(*cards_of(count=8))
    placed = place_all(ledger, a_request(percent(50)), 8, Policy(cards=SPREAD))
    assert sorted(share.uuid for placement in placed for share in placement.shares) == sorted(uuids(cards_of(count=8)))


def test_after_ten_single_percents_the_eleventh_wants_a_slot() -> None:
    ledger = a_ledger(a_card(number=10))
    assert len(place_all(ledger, a_request(percent(1)), 11)) == 10
    choice = Chooser(ledger, Policy()).choose(a_request(percent(1)), ["node-a"], 1)
    assert choice.refusals["node-a"].reason is Reason.NO_SLOT


def test_the_load_is_the_mean_of_memory_and_cores() -> None:
    ledger = a_ledger(*cards_of(count=2))
    assert load_permille(ledger.node_room("node-a")) == 0
    occupy(ledger, "p", a_share(a_card(0), 16_000, 50))
    assert load_permille(ledger.node_room("node-a")) == 375
    assert load_permille(ledger.node_room("node-a"), Amounts(16_000, 150, 1)) == 1000


def test_after_one_change_among_a_hundred_nodes_one_node_is_evaluated() -> None:
    names = [f"node-{number:03}" for number in range(100)]
    ledger = a_ledger(*(a_card(0, name) for name in names))
    chooser, request = Chooser(ledger, Policy()), a_request(mib(1_000))
    chooser.choose(request, names, 1)
    while chooser.look_further():
        pass
    assert chooser.evaluations == 100
    occupy(ledger, "p", a_share(a_card(0, "node-050")))
    assert chooser.choose(request, names, 1).placements[0].node_name == "node-050"
    assert chooser.evaluations == 101


def test_when_nothing_has_changed_nothing_is_evaluated() -> None:
    ledger = three_nodes()
    chooser = Chooser(ledger, Policy())
    first = chooser.choose(a_request(mib(1)), NAMES, 1)
    ledger.set_offer("node-a", OFFER)
    ledger.set_reported("GPU-node-a-0", True)
    assert chooser.choose(a_request(mib(1)), NAMES, 1) == first
    assert chooser.evaluations == 3


def test_pods_of_one_shape_share_what_is_known_whatever_their_containers_are_called() -> None:
    chooser = Chooser(three_nodes(), Policy())
    chooser.choose(PodRequest(("x",), (mib(1),)), NAMES, 1)
    (placement,) = chooser.choose(PodRequest(("y",), (mib(1),)), NAMES, 1).placements
    assert chooser.evaluations == 3
    assert placement.shares[0].containers[0].name == "y"


def test_only_the_shapes_asked_for_lately_are_remembered() -> None:
    ledger = a_ledger(a_card())
    chooser = Chooser(ledger, Policy())
    for memory_mib in range(1, SETS_KEPT + 2):
        chooser.choose(a_request(mib(memory_mib)), ["node-a"], 1)
    assert chooser.evaluations == SETS_KEPT + 1
    chooser.choose(a_request(mib(SETS_KEPT)), ["node-a"], 1)
    assert chooser.evaluations == SETS_KEPT + 1
    chooser.choose(a_request(mib(1)), ["node-a"], 1)
    assert chooser.evaluations == SETS_KEPT + 2


def test_fewer_shapes_are_remembered_where_there_are_many_nodes() -> None:
    chooser = Chooser(a_ledger(*(a_card(0, name) for name in NAMES)), Policy(), entries_kept=7)
    for memory_mib in (1, 2, 3):
        chooser.choose(a_request(mib(memory_mib)), NAMES, 1)
    assert chooser.evaluations == 9
    chooser.choose(a_request(mib(2)), NAMES, 1)
    assert chooser.evaluations == 9
    chooser.choose(a_request(mib(1)), NAMES, 1)
    assert chooser.evaluations == 12


def test_a_new_ask_is_answered_before_all_nodes_were_looked_at() -> None:
    names = [f"node-{number:04}" for number in range(ALL_LOOKED_AT + 1)]
    chooser, request = Chooser(a_ledger(*(a_card(0, name) for name in names)), Policy()), a_request(mib(1_000))
    assert len(chooser.choose(request, names, 1).placements) == 1
    assert chooser.evaluations == LOOKED_AT
    assert chooser.choose(request, ["node-0999"], 1).placements[0].node_name == "node-0999"


def test_in_a_large_cluster_a_question_costs_little_however_much_has_changed() -> None:
    names = [f"node-{number:04}" for number in range(ALL_LOOKED_AT + 1)]
    ledger = a_ledger(*(a_card(0, name, memory_mib=2_000) for name in names))
    chooser, request = Chooser(ledger, Policy()), a_request(mib(2_000))
    chooser.choose(request, names, 1)
    while chooser.look_further():
        pass
    before = chooser.evaluations
    for name in names[:-1]:
        occupy(ledger, f"pod-on-{name}", a_share(a_card(0, name, memory_mib=2_000), 1_000))
    # Those that have changed are out of the running until they are looked at, and not as they were.
    assert chooser.choose(request, names, 1).placements[0].node_name == names[-1]
    assert chooser.evaluations == before + LOOKED_AT
    assert chooser.choose(a_request(mib(1_000)), [names[0]], 1).placements[0].node_name == names[0]
    while chooser.look_further():
        pass
    assert chooser.choose(request, names[:-1], 1).refusals.keys() == set(names[:-1])


def test_a_pod_is_refused_only_when_all_nodes_were_looked_at() -> None:
    names = [f"node-{number:04}" for number in range(ALL_LOOKED_AT + 1)]
    ledger = a_ledger(*(a_card(0, name, memory_mib=2_000 if name == "node-0777" else 1_000) for name in names))
    chooser = Chooser(ledger, Policy())
    assert chooser.choose(a_request(mib(2_000)), names, 1).placements[0].node_name == "node-0777"
    assert chooser.choose(a_request(mib(2_001)), names, 1).refusals.keys() == set(names)
    assert chooser.evaluations <= 2 * len(names)


@pytest.mark.parametrize("count", [1_000, ALL_LOOKED_AT + 1])
def test_who_can_wait_looks_at_some_nodes_at_a_time_and_then_none_is_left_to_look_at(count: int) -> None:
    names = [f"node-{number:04}" for number in range(count)]
    ledger = a_ledger(*(a_card(0, name) for name in names))
    chooser, too_large = Chooser(ledger, Policy()), a_request(mib(99_000))
    seen = [0, *(chooser.evaluations for _ in chooser.look_around(too_large, names)), chooser.evaluations]
    assert max(later - earlier for earlier, later in pairwise(seen)) <= LOOKED_AT_A_TIME
    assert chooser.choose(too_large, names, 1).refusals.keys() == set(names)
    assert chooser.evaluations == count
    for name in names:
        occupy(ledger, f"pod-on-{name}", a_share(a_card(0, name), 1_000))
    next(chooser.look_around(too_large, names))
    assert chooser.evaluations <= count + LOOKED_AT_A_TIME, "nor all at once that have changed meanwhile"


def test_room_is_looked_for_as_long_as_there_is_work_left_and_the_best_is_found_in_the_end() -> None:
    names = [f"node-{number:04}" for number in range(1_000)]
    ledger = a_ledger(*(a_card(0, name) for name in names))
    occupy(ledger, "pod", a_share(a_card(0, "node-0000"), 8_000))  # the fullest: binpack wants it
    chooser, request = Chooser(ledger, Policy()), a_request(mib(1_000))
    found: list[Placement | None] = []
    while not found or found[-1] is None:
        before = chooser.evaluations
        found.append(chooser.best(request, None, StepBudget(200 * STEPS_OF_A_LOOK)))
        assert chooser.evaluations - before <= 200 + LOOKED_AT_A_TIME
        assert chooser.is_unfinished(request) == (found[-1] is None)
    assert len(found) > 2
    assert found[-1].node_name == "node-0000"


def test_a_new_ask_looks_first_where_others_of_its_policy_went() -> None:
    """Of a thousand nodes, the one in use is found by a pod that is unlike all before."""
    names = [f"node-{number:04}" for number in range(ALL_LOOKED_AT + 1)]
    ledger = a_ledger(*(a_card(0, name) for name in names))
    chooser = Chooser(ledger, Policy())
    occupy(ledger, "pod", a_share(a_card(0, "node-0500"), 8_000))
    assert chooser.choose(a_request(mib(1_000)), ["node-0500"], 1).placements
    while chooser.look_further():
        pass
    assert chooser.choose(a_request(mib(1_001)), names, 1).placements[0].node_name == "node-0500"
