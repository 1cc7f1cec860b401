"""Cards that have to match or to differ, demands of every card of a node, and who leaves for them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders import a_card, a_holder, a_ledger, a_share, linked_cards, mib, occupy, stored, whole, whole_share
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card, CardFilter, CardRule
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.request import Demand
from gpuledger.placement.decide import differing_candidates
from gpuledger.placement.explain import explain_node
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS, Preference, StepBudget
from gpuledger.placement.preemption.victims import FREE, Eviction, Tenant, cheapest_eviction

PCIE_ROOT, NUMA, UUID = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode", "gpu.gpuledger.dev/uuid"
SAME, OTHER = CardRule(PCIE_ROOT, 0), CardRule(PCIE_ROOT, 1, distinct=True)


def on_roots(roots: str) -> list[Card]:
    """Return cards on the PCIe roots of these letters; a dash for a card of which it is not known."""
    return [replace(a_card(index), pcie_root=root.strip("-")) for index, root in enumerate(roots)]


def given(cards: Sequence[Card] | Ledger, *demands: Demand, preference: Preference = Preference.BINPACK) -> object:
    """Return the indexes of each demand's cards, or the reason why there are none."""
    ledger = cards if isinstance(cards, Ledger) else a_ledger(*cards)
    found = choose_cards(demands, ledger.node_room("node-a"), preference)
    if isinstance(found, Refusal):
        return found.reason
    return [[int(uuid.rpartition("-")[2]) for uuid in uuids] for uuids in found]


def ruled(demand: Demand, *rules: CardRule) -> Demand:
    return replace(demand, rules=rules)


@pytest.mark.parametrize("preference", list(CARD_RANKS))
def test_all_cards_of_requests_with_one_rule_have_the_same_value(preference: Preference) -> None:
    two, one = ruled(whole(2), SAME), ruled(whole(), SAME)
    assert given(on_roots("aabbb"), two, one, preference=preference) == [[2, 3], [4]]
    assert given(on_roots("aabb"), two, one, preference=preference) is Reason.CONTAINERS_TOGETHER


def test_no_two_cards_of_requests_with_a_distinct_rule_have_the_same_value() -> None:
    assert given(on_roots("aabbc"), ruled(whole(2), OTHER), ruled(whole(), OTHER)) == [[0, 2], [4]]
    assert given(on_roots("aabb"), ruled(whole(2), OTHER), ruled(whole(), OTHER)) is Reason.CONTAINERS_TOGETHER


def test_requests_that_could_share_a_card_get_different_ones_by_a_rule_on_the_uuid() -> None:
    rule = CardRule(UUID, 0, distinct=True)
    assert given(on_roots("ab"), mib(1), mib(1)) == [[0], [0]]
    assert given(on_roots("ab"), ruled(mib(1), rule), ruled(mib(1), rule)) == [[0], [1]]


def test_two_rules_on_one_attribute_do_not_bind_each_others_requests() -> None:
    first, second = CardRule(PCIE_ROOT, 0), CardRule(PCIE_ROOT, 1)
    cards = on_roots("aabb")
    assert given(cards, ruled(whole(2), first), ruled(whole(2), second)) == [[0, 1], [2, 3]]
    assert given(cards, ruled(whole(2), first), ruled(whole(2), first)) is Reason.CONTAINERS_TOGETHER


def test_a_card_without_the_attribute_is_never_used() -> None:
    assert given(on_roots("--aa"), ruled(whole(2), SAME)) == [[2, 3]]
    assert given(on_roots("--"), ruled(whole(), SAME)) is Reason.NOT_WANTED
    assert given(on_roots("a"), ruled(whole(), CardRule("example.com/colour", 0))) is Reason.NOT_WANTED


def test_requests_without_the_rule_are_free() -> None:
    assert given(on_roots("aab"), ruled(whole(2), SAME), whole()) == [[0, 1], [2]]


def test_the_first_request_leaves_values_to_those_that_match_it() -> None:
    ledger = a_ledger(*on_roots("abbb"))
    occupy(ledger, "other", a_share(a_card(0), 15_000))
    assert given(ledger, ruled(mib(1), SAME), ruled(mib(900, cards=3), SAME)) == [[1], [1, 2, 3]]


def test_among_those_that_match_several_cards_are_the_best_connected() -> None:
    scores = [[0, 10, 10, 10], [10, 0, 200, 100], [10, 200, 0, 10], [10, 100, 10, 0]]
    cards = [replace(card, pcie_root="abbb"[card.index]) for card in linked_cards(scores)]
    assert given(cards, ruled(whole(2), SAME), preference=Preference.TOPOLOGY) == [[1, 2]]
    differing = [replace(card, pcie_root="abcc"[card.index]) for card in cards]
    assert given(differing, ruled(whole(2), OTHER), preference=Preference.TOPOLOGY) == [[1, 2]]


def test_every_card_is_all_that_the_node_has_of_the_kind() -> None:
    cards = [replace(card, model="A100" if card.index else "T4") for card in on_roots("aabb")]
    everything = replace(whole(), every_card=True)
    a100 = replace(everything, wanted=CardFilter(use_models=("A100",)))
    assert given(cards, everything) == [[0, 1, 2, 3]]
    assert given(cards, a100) == [[1, 2, 3]]
    assert given(cards, a100, whole()) == [[1, 2, 3], [0]]
    assert given(cards, replace(a100, wanted=CardFilter(use_models=("H100",)))) is Reason.NOT_WANTED


def test_every_card_has_to_work_to_be_free_and_to_keep_the_rules() -> None:
    everything = replace(whole(), every_card=True)
    cards = on_roots("ab")
    used = a_ledger(*cards)
    occupy(used, "other", a_share(cards[1]))
    assert given(used, everything) is Reason.NO_WHOLE_CARD
    assert given([cards[0], replace(cards[1], healthy=False)], everything) is Reason.UNHEALTHY
    assert given(cards, ruled(everything, SAME)) is Reason.NOT_WANTED
    assert given(on_roots("a-"), ruled(everything, SAME)) is Reason.NOT_WANTED, "one can't be used, so it is not all"


def test_where_cards_are_priced_a_single_card_keeps_its_rules_too() -> None:
    room = a_ledger(*on_roots("-a")).node_room("node-a")
    found = differing_candidates((ruled(mib(1), SAME),), room)
    assert not isinstance(found, Refusal)
    assert [candidate.assignment for candidate in found] == [(("GPU-node-a-1",),)]


def test_where_cards_are_priced_every_card_is_all_of_them() -> None:
    found = differing_candidates((replace(whole(), every_card=True),), a_ledger(*on_roots("ab")).node_room("node-a"))
    assert not isinstance(found, Refusal)
    assert [candidate.assignment for candidate in found] == [(("GPU-node-a-0", "GPU-node-a-1"),)]


def test_each_card_says_how_many_match_it() -> None:
    ledger = a_ledger(*on_roots("aab-"))
    ledger.load(stored(on_roots("a")[0], a_holder("other", whole_share(a_card(0))), version=2))
    verdict = explain_node((ruled(whole(2), SAME),), ledger.node_room("node-a"), ledger.entries_of_node("node-a"))
    assert [card.text for card in verdict.cards] == [
        "taken as a whole",
        f"has room, but only 1 of 2 such cards have the same {PCIE_ROOT}",
        f"has room, but only 1 of 2 such cards have the same {PCIE_ROOT}",
        f"has no {PCIE_ROOT}",
    ]


def test_a_text_names_a_few_of_many_rules() -> None:
    rules = [CardRule(f"example.com/a{number}", number) for number in range(9)]
    found = choose_cards((ruled(whole(2), *rules),), a_ledger(*on_roots("aa")).node_room("node-a"), Preference.BINPACK)
    assert found == Refusal(
        Reason.NOT_WANTED,
        "fewer than 2 cards of the kind that the pod asks for have the same example.com/a0 and example.com/a1 "
        "and example.com/a2 and 6 more",
    )


def test_rules_in_great_number_cost_no_more_than_the_work_that_is_left() -> None:
    cards = [replace(card, numa_node=card.index % 3) for card in on_roots("abcdabcdabcdabcd")]
    rules = [CardRule(name, number, distinct=True) for number in range(8) for name in (PCIE_ROOT, NUMA, UUID)]
    work = StepBudget(500)
    found = choose_cards(
        tuple(ruled(mib(1_000 + n, cards=3), *rules) for n in range(8)),
        a_ledger(*cards).node_room("node-a"),
        Preference.BINPACK,
        work,
    )
    assert isinstance(found, Refusal)
    assert work.is_spent


# Who leaves.


def chosen(roots: str, *demands: Demand, work: StepBudget | None = None) -> Eviction | None:
    """Ask who leaves full cards; the pod on each has its index as priority."""
    cards = on_roots(roots)
    ledger = a_ledger(*cards)
    for card in cards:
        ledger.load(stored(card, a_holder(f"p{card.index}", whole_share(card)), version=2))
    tenants = {f"p{card.index}": Tenant(f"p{card.index}", card.index) for card in cards}
    room, entries = ledger.node_room("node-a"), ledger.entries_of_node("node-a")
    return cheapest_eviction(demands, room, entries, tenants, {}, Preference.BINPACK, work=work)


@pytest.mark.parametrize(
    ("roots", "demands", "victims"),
    [
        ("abab", (whole(2),), ("p0", "p1")),
        ("abab", (ruled(whole(2), SAME),), ("p0", "p2")),
        ("aab", (ruled(whole(2), OTHER),), ("p0", "p2")),
        ("abab", (ruled(whole(), SAME), ruled(whole(), SAME)), ("p0", "p2")),
        ("-aabb", (ruled(whole(), OTHER), ruled(whole(), OTHER)), ("p1", "p3")),
        ("abbc", (ruled(whole(2), SAME), ruled(whole(), OTHER)), ("p0", "p1", "p2")),
        ("ab", (ruled(whole(2), SAME),), None),
        ("aa", (ruled(whole(2), OTHER),), None),
        ("abc", (replace(whole(), every_card=True),), ("p0", "p1", "p2")),
    ],
)
def test_those_leave_whose_cards_match_or_differ(
    roots: str, demands: tuple[Demand, ...], victims: tuple[str, ...] | None
) -> None:
    found = chosen(roots, *demands)
    assert (found and found.victims) == victims


@pytest.mark.parametrize(
    ("roots", "demands", "victims"),
    [
        ("aabbccddeeffgghh", (ruled(whole(8), OTHER),), {0, 2, 4, 6, 8, 10, 12, 14}),
        ("aaaabbbbccccdddd", (ruled(whole(), OTHER),) * 4, {0, 4, 8, 12}),
        ("abababababababab", (ruled(whole(8), SAME),), {0, 2, 4, 6, 8, 10, 12, 14}),
        ("abcdabcdabcdabcd", (ruled(whole(2), SAME),) * 2, {0, 4, 8, 12}),
    ],
)
def test_on_large_nodes_it_takes_a_part_of_the_work_to_see_who_leaves(
    roots: str, demands: tuple[Demand, ...], victims: set[int]
) -> None:
    work = StepBudget(16_384)
    found = chosen(roots, *demands, work=work)
    assert found is not None
    assert {*found.victims} == {f"p{index}" for index in victims}
    assert work.left > 12_000


def test_two_free_cards_are_not_the_same_to_rules_and_the_other_one_may_be_of_use() -> None:
    cards = [
        replace(card, pcie_root=root, numa_node=numa)
        for card, root, numa in zip(on_roots("aab"), "aab", (0, 1, 0), strict=True)
    ]
    ledger = a_ledger(*cards)
    ledger.load(stored(cards[2], a_holder("p2", whole_share(cards[2])), version=2))
    demand = ruled(whole(2), OTHER, CardRule(NUMA, 2, distinct=True))
    room, entries = ledger.node_room("node-a"), ledger.entries_of_node("node-a")
    found = cheapest_eviction((demand,), room, entries, {"p2": Tenant("p2", 0)}, {}, Preference.BINPACK)
    assert found == Eviction("node-a", ("p2",), (("GPU-node-a-1", "GPU-node-a-2"),), found.cost if found else FREE)
