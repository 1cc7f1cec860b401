"""Which cards of a linked node, by each preference; and where that is chosen among nodes."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders import a_card, a_ledger, a_request, a_share, cards_of, linked_cards, mib, occupy, whole, whole_share
from fakes.dialects import HAMI, a_foreign_node, an_annotated_pod, inventory_of, request_of
from fakes.objects import GPU, MEMORY, a_container
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.registers import SCORES_ANNOTATION
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, Lifetime, PodRequest
from gpuledger.model.share import StoredCard
from gpuledger.placement.choose import Chooser
from gpuledger.placement.decide import differing_candidates
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS, Policy, Preference

BINPACK, SPREAD, TOPOLOGY = Preference.BINPACK, Preference.SPREAD, Preference.TOPOLOGY

FOUR = ((0, 100, 100, 200), (100, 0, 200, 100), (100, 200, 0, 200), (200, 100, 200, 0))
"""The table in HAMi's guide."""


def pairs(size: int, *wired: tuple[int, int]) -> list[list[int]]:
    """Return a table in which some pairs reach each other well."""
    known = {frozenset(pair) for pair in wired}
    return [
        [0 if one == other else 200 if {one, other} in known else 10 for other in range(size)] for one in range(size)
    ]


def chosen(ledger: Ledger, *demands: Demand, cards: Preference = TOPOLOGY) -> list[list[int]]:
    """Return the indexes of each container's cards on node-a."""
    found = choose_cards(demands, ledger.node_room("node-a"), cards)
    assert not isinstance(found, Refusal), found
    return [[int(uuid.rpartition("-")[2]) for uuid in uuids] for uuids in found]


def four(*busy: int) -> Ledger:
    """Return the guide's node, with somebody alone on some of its cards."""
    cards = linked_cards(FOUR)
    ledger = a_ledger(*cards)
    for index in busy:
        occupy(ledger, f"busy-{index}", whole_share(cards[index]))
    return ledger


@pytest.mark.parametrize("preference", list(CARD_RANKS))
@pytest.mark.parametrize("demand", [whole(), mib(1_000)], ids=["a card", "a share"])
def test_one_card_of_the_guides_four_is_the_first_of_the_worst_connected(
    preference: Preference, demand: Demand
) -> None:
    assert chosen(four(), demand, cards=preference) == [[0]]
    assert chosen(four(0), demand, cards=preference) == [[1]]
    assert chosen(four(0, 1), demand, cards=preference) == [[2]]


@pytest.mark.parametrize("preference", list(CARD_RANKS))
@pytest.mark.parametrize("demand", [whole(2), mib(1_000, cards=2)], ids=["cards", "shares"])
def test_two_cards_of_the_guides_four_are_the_best_pair(preference: Preference, demand: Demand) -> None:
    assert chosen(four(), demand, cards=preference) == [[2, 3]]
    assert chosen(four(2), demand, cards=preference) == [[0, 3]]


def test_a_single_card_is_judged_by_all_cards_of_the_node_those_in_use_too() -> None:
    """Without card 3, card 1 would be the best connected of those that are left."""
    assert chosen(four(3), mib(1)) == [[0]]
    cards = [replace(card, healthy=card.index != 3) for card in linked_cards(FOUR)]
    assert chosen(a_ledger(*cards), whole(2)) == [[1, 2]]
    assert chosen(a_ledger(*cards), whole()) == [[0]]


def test_what_is_in_use_goes_before_links_except_for_topology() -> None:
    ledger = four()
    occupy(ledger, "a", a_share(a_card(0), 9_000))
    occupy(ledger, "b", a_share(a_card(3), 5_000))
    demand = mib(1_000, cards=2)
    assert [chosen(ledger, demand, cards=each) for each in (BINPACK, SPREAD, TOPOLOGY)] == [
        [[0, 3]],
        [[1, 2]],
        [[2, 3]],
    ]
    assert [chosen(ledger, mib(1_000), cards=each) for each in (BINPACK, SPREAD, TOPOLOGY)] == [[[0]], [[1]], [[0]]]


def test_the_last_cards_are_those_that_go_best_with_the_ones_that_are_taken_anyway() -> None:
    ledger = a_ledger(*linked_cards(pairs(6, (0, 1), (2, 3), (4, 5))))
    occupy(ledger, "other", a_share(a_card(4)))
    assert chosen(ledger, mib(1_000, cards=2), cards=BINPACK) == [[4, 5]]
    assert chosen(ledger, mib(1_000, cards=4), cards=BINPACK) == [[0, 1, 4, 5]]
    assert chosen(ledger, mib(1_000, cards=2), cards=SPREAD) == [[0, 1]]


def test_shares_on_cards_that_are_connected_alike_are_packed() -> None:
    ledger = a_ledger(*linked_cards(pairs(4)))
    occupy(ledger, "a", a_share(a_card(1)))
    occupy(ledger, "b", a_share(a_card(3)))
    assert chosen(ledger, mib(1_000)) == [[1]]
    assert chosen(ledger, mib(1_000, cards=2)) == [[1, 3]]


@pytest.mark.parametrize("preference", [BINPACK, SPREAD])
def test_without_links_topology_chooses_as_binpack_does(preference: Preference) -> None:
    ledger = a_ledger(*cards_of("node-a", 4))
    occupy(ledger, "a", a_share(a_card(2)))
    for demand in (mib(1_000), mib(1_000, cards=2), whole(2)):
        same = chosen(ledger, demand) == chosen(ledger, demand, cards=preference)
        assert same is (preference is BINPACK or demand.whole)


def test_links_of_one_card_are_no_links() -> None:
    first, *others = cards_of("node-a", 3)
    ledger = a_ledger(replace(first, links={"GPU-elsewhere": 200}), *others)
    occupy(ledger, "a", a_share(a_card(2)))
    assert chosen(ledger, mib(1_000)) == [[2]]


# NUMA nodes.

EIGHT = pairs(8, (0, 4), (1, 5))
EIGHT[2][3] = EIGHT[3][2] = 100
HALVES = (0, 0, 0, 0, 1, 1, 1, 1)


def bound(demand: Demand) -> Demand:
    return replace(demand, one_numa_node=True)


def test_who_is_bound_to_a_numa_node_gets_the_best_set_that_lies_on_one() -> None:
    ledger = a_ledger(*linked_cards(EIGHT, HALVES))
    assert chosen(ledger, whole(2)) == [[0, 4]]
    assert chosen(ledger, bound(whole(2))) == [[2, 3]]
    occupy(ledger, "busy", whole_share(a_card(2)))
    assert chosen(ledger, bound(whole(2))) == [[0, 1]]  # none of them is well connected: the best total
    assert chosen(ledger, bound(whole(4))) == [[4, 5, 6, 7]]


def test_the_numa_node_with_the_best_set_is_taken_not_the_first() -> None:
    ledger = a_ledger(*linked_cards(pairs(8, (5, 6)), HALVES))
    for preference in (BINPACK, SPREAD, TOPOLOGY):
        assert chosen(ledger, bound(whole(2)), cards=preference) == [[5, 6]]
    occupy(ledger, "a", a_share(a_card(1)))
    assert chosen(ledger, bound(mib(1_000, cards=2)), cards=BINPACK) == [[0, 1]]


def test_a_single_card_lies_on_one_numa_node_whichever_it_is() -> None:
    ledger = a_ledger(*linked_cards(pairs(8, (0, 1), (2, 3), (4, 5)), HALVES))
    assert chosen(ledger, bound(whole())) == chosen(ledger, whole()) == [[6]]


def test_among_equals_a_set_stays_on_one_numa_node() -> None:
    ledger = a_ledger(*linked_cards(pairs(8), HALVES))
    for preference in (BINPACK, SPREAD, TOPOLOGY):
        assert chosen(ledger, whole(4), cards=preference) == [[0, 1, 2, 3]]
    occupy(ledger, "busy", whole_share(a_card(1)))
    for preference in (BINPACK, SPREAD, TOPOLOGY):
        assert chosen(ledger, whole(4), cards=preference) == [[4, 5, 6, 7]]
        assert chosen(ledger, whole(6), cards=preference) == [[0, 2, 4, 5, 6, 7]]


# Several containers.


def test_each_container_gets_its_best_set_of_what_the_others_leave() -> None:
    ledger = a_ledger(*linked_cards(EIGHT))
    assert chosen(ledger, whole(2), whole(2), whole(1)) == [[0, 4], [1, 5], [6]]


def test_other_sets_are_tried_where_the_best_one_leaves_no_room() -> None:
    cards = linked_cards(pairs(4, (2, 3)))
    cards[0] = replace(cards[0], capacity=replace(cards[0].capacity, memory_mib=4_000))
    found = chosen(a_ledger(*cards), mib(4_000, cards=2, cores=100), mib(8_000, cards=2, cores=50))
    assert found == [[0, 1], [2, 3]]


def test_an_init_container_gets_the_cards_of_the_main_one_and_what_goes_best_with_them() -> None:
    ledger = a_ledger(*linked_cards(pairs(6, (0, 1), (2, 5))))
    init, main = mib(1_000, cards=3, lifetime=Lifetime.INIT), mib(1_000, cards=2, cores=100)
    assert chosen(ledger, init, main) == [[0, 1, 2], [0, 1]]
    one = mib(1_000, cards=2, lifetime=Lifetime.INIT)
    assert chosen(ledger, one, replace(whole(), wanted=replace(one.wanted, use_uuids=("GPU-node-a-5",)))) == [
        [2, 5],
        [5],
    ]


# Prices.


def candidates(ledger: Ledger, demand: Demand) -> list[list[int]]:
    """Return the indexes of the cards of each way that a price can tell from the others."""
    found = differing_candidates((demand,), ledger.node_room("node-a"))
    assert not isinstance(found, Refusal)
    return [[int(uuid.rpartition("-")[2]) for uuid in candidate.assignment[0]] for candidate in found]


def test_ways_that_cost_the_same_begin_with_the_tightest_card_and_then_the_one_that_others_miss_least() -> None:
    assert candidates(four(), mib(1_000)) == [[0]]
    assert candidates(four(), whole(2)) == [[2, 3]]
    ledger = a_ledger(*linked_cards(pairs(4, (0, 1))))
    assert candidates(ledger, mib(1_000)) == [[2]]
    occupy(ledger, "other", a_share(a_card(1)))
    assert candidates(ledger, mib(1_000)) == [[1], [2]]


# Nodes.


def preferred(cards: Sequence[Card], request: PodRequest, policy: Policy | None = None) -> str:
    """Return the node that a pod gets, of those that have these cards."""
    ledger = a_ledger(*cards)
    placement = Chooser(ledger, policy or Policy(TOPOLOGY, TOPOLOGY)).best(request, None)
    assert placement is not None
    return placement.node_name


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_the_smallest_node_goes_first_whatever_its_links(cards: int) -> None:
    large = linked_cards([[200 * (one != other) for other in range(6)] for one in range(6)], node_name="a-large")
    small = cards_of("z-small", 4)
    assert preferred([*large, *small], a_request(whole(cards))) == "z-small"
    assert preferred([*large, *small], a_request(mib(1_000, cards=cards))) == "z-small"
    assert preferred([*large, *small], a_request(whole(5))) == "a-large"


def test_of_equal_nodes_several_cards_go_where_they_reach_each_other_best_and_one_where_it_is_missed_least() -> None:
    good = linked_cards(pairs(4, (0, 1), (2, 3)), node_name="z-good")
    poor = linked_cards(pairs(4), node_name="a-poor")
    assert preferred([*good, *poor], a_request(whole(2))) == "z-good"
    assert preferred([*good, *poor], a_request(whole(1))) == "a-poor"
    assert preferred([*good, *cards_of("none", 4)], a_request(whole(1))) == "none"


def test_nodes_that_are_equal_by_size_and_links_are_filled_one_after_the_other() -> None:
    cards = [card for name in ("node-a", "node-b") for card in linked_cards(pairs(4), node_name=name)]
    ledger = a_ledger(*cards)
    occupy(ledger, "other", whole_share(a_card(3, "node-b")))
    for request in (a_request(whole()), a_request(whole(2)), a_request(mib(1))):
        placement = Chooser(ledger, Policy(TOPOLOGY, TOPOLOGY)).best(request, None)
        assert placement is not None
        assert placement.node_name == "node-b"


def test_a_pods_own_policy_goes_before_the_clusters() -> None:
    cards = [*linked_cards(pairs(2), node_name="z-small"), *linked_cards(pairs(4, (2, 3)), node_name="a-large")]
    wishing = replace(a_request(whole(2)), node_policy="topology", card_policy="topology")
    assert preferred(cards, a_request(whole(2)), Policy()) == "a-large"
    assert preferred(cards, wishing, Policy()) == "z-small"
    assert preferred(cards, replace(wishing, node_policy="binpack", card_policy="binpack")) == "a-large"


@pytest.mark.parametrize("word", ["topology", "topology-aware"])
@pytest.mark.parametrize("cards", [1, 2])
def test_the_clusters_word_for_topology_places_as_the_pods_annotation_does(word: str, cards: int) -> None:
    small = linked_cards(pairs(4, (2, 3)), node_name="z-small")
    large = linked_cards(pairs(6, (0, 1)), node_name="a-large")
    of_cluster = Policy(*map(Preference, Settings().changed({"card_policy": word}).policies))
    pod = an_annotated_pod({"hami.io/gpu-scheduler-policy": "topology-aware"}, a_container("main", {GPU: cards}))
    places = []
    for request, policy in ((a_request(whole(cards)), of_cluster), (request_of(pod), Policy())):
        placement = Chooser(a_ledger(*small, *large), policy).best(request, None)
        assert placement is not None
        places.append((placement.node_name, [share.uuid for share in placement.shares]))
    assert places[0] == places[1]
    assert places[0][0] == "z-small"
    assert preferred([*small, *large], a_request(whole(cards)), Policy()) == "a-large"


# From annotations.


def test_the_annotations_of_hamis_guide_lead_to_the_choices_of_its_guide() -> None:
    cards = [
        {"id": f"gpu{number}", "index": number, "count": 10, "devmem": 16_000, "devcore": 100, "type": "A100"}
        for number in range(4)
    ]
    scores = [
        {"uuid": f"gpu{one}", "score": {f"gpu{other}": str(score) for other, score in enumerate(row) if score}}
        for one, row in enumerate(FOUR)
    ]
    annotations = {
        HAMI: json.dumps([{**card, "health": True} for card in cards]),
        SCORES_ANNOTATION: json.dumps(scores),
    }
    ledger = a_ledger(*inventory_of(a_foreign_node(annotations, {GPU: 40})).cards)
    for count, uuids in ((1, ["gpu0"]), (2, ["gpu2", "gpu3"])):
        pod = an_annotated_pod(
            {"hami.io/gpu-scheduler-policy": "topology-aware"}, a_container("main", {GPU: count, MEMORY: 1_000})
        )
        placement = Chooser(ledger, Policy()).best(request_of(pod), None)
        assert placement is not None
        assert [share.uuid for share in placement.shares] == uuids


# What the ledger keeps.


def test_links_that_come_later_count_from_then_on() -> None:
    plain, linked = cards_of("node-a", 4), linked_cards(FOUR)
    ledger = a_ledger(*plain)
    assert chosen(ledger, whole(2)) == [[0, 1]]
    for card in linked:
        ledger.load(StoredCard(card, 2, (), "Ready"))
    assert chosen(ledger, whole(2)) == [[2, 3]]
    ledger.set_reported("GPU-node-a-3", False)
    assert chosen(ledger, whole(2)) == [[1, 2]]


def test_a_nodes_topology_is_the_same_object_while_its_cards_stay_the_same() -> None:
    ledger = four()
    before = ledger.node_room("node-a")
    ledger.load(StoredCard(linked_cards(FOUR)[1], 2, (), "Ready"))
    ledger.load(StoredCard(linked_cards(FOUR)[1], 3, None, "Ready"))
    after = ledger.node_room("node-a")
    assert before is not after
    assert before.topology is after.topology
    assert before.cards[1] is after.cards[1]
