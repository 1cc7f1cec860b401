"""Pods that choose their cards get these or none, and a policy of their own where they have one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders import a_card, a_ledger, a_request, a_share, cards_of, mib, occupy, percent, whole
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card, CardFilter
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.request import Demand, Lifetime, PodRequest, Shape
from gpuledger.model.share import Assignment, Placement
from gpuledger.placement.choose import Chooser
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Policy, Preference

A100 = replace(a_card(0), model="NVIDIA A100-SXM4-40GB", mode="hami-core")
V100 = replace(a_card(1), model="NVIDIA-Tesla V100-PCIE-32GB", mode="mps")
T4 = replace(a_card(2), model="Tesla T4")
CARDS = (A100, V100, T4)


def chosen(shape: Shape, cards: Sequence[Card]) -> Assignment | Refusal:
    return choose_cards(shape, a_ledger(*cards).node_room("node-a"), Preference.BINPACK)


def wanting(demand: Demand | None = None, **wanted: object) -> Demand:
    return replace(demand or mib(1), wanted=replace(CardFilter(), **wanted))  # type: ignore[arg-type]


def admitted(**wanted: object) -> list[Card]:
    return [card for card in CARDS if replace(CardFilter(), **wanted).admits(card)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "cards"),
    [
        ({}, [A100, V100, T4]),
        ({"use_models": ("a100",)}, [A100]),
        ({"use_models": ("TESLA",)}, [V100, T4]),
        ({"use_models": ("A100", "T4")}, [A100, T4]),
        ({"use_models": ("H100",)}, []),
        ({"avoid_models": ("tesla",)}, [A100]),
        ({"use_models": ("tesla",), "avoid_models": ("v100",)}, [T4]),
        ({"use_uuids": (V100.uuid,)}, [V100]),
        ({"use_uuids": (V100.uuid[:-1],)}, []),
        ({"use_uuids": (V100.uuid.lower(),)}, []),
        ({"avoid_uuids": (V100.uuid,)}, [A100, T4]),
        ({"use_uuids": (V100.uuid, T4.uuid), "avoid_uuids": (V100.uuid,)}, [T4]),
        ({"modes": ("hami-core",)}, [A100, T4]),
        ({"modes": ("mps", "hami-core")}, [A100, V100, T4]),
        ({"modes": ("none",)}, [T4]),
        ({"vendor": "amd"}, []),
        ({"model": "tesla t4"}, [T4]),
        ({"model": "T4"}, []),
    ],
)
def test_a_card_is_admitted_if_it_meets_all_conditions(wanted: dict[str, object], cards: list[Card]) -> None:
    assert admitted(**wanted) == cards


def test_nobody_gets_a_gpu_that_is_cut_into_instances() -> None:
    cut = replace(A100, mode="mig-parent")
    assert not CardFilter().admits(cut)
    assert not CardFilter(modes=("mig",)).admits(cut)
    found = chosen((mib(1),), [cut])
    assert isinstance(found, Refusal)
    assert found.reason is Reason.NOT_WANTED


def test_a_pod_gets_a_card_that_it_wants_though_another_would_be_preferred() -> None:
    assert chosen((wanting(use_models=("T4",)),), CARDS) == ((T4.uuid,),)
    assert chosen((wanting(avoid_uuids=(A100.uuid,)),), CARDS) == ((V100.uuid,),)


def test_a_wanted_card_that_is_too_small_is_not_helped_by_larger_ones() -> None:
    small = replace(T4, capacity=replace(T4.capacity, memory_mib=10))
    found = chosen((wanting(mib(11), use_models=("T4",)),), (A100, small))
    assert isinstance(found, Refusal)
    assert found.reason is Reason.CARD_TOO_SMALL


def test_wanted_cards_that_are_broken_are_told_of_as_broken() -> None:
    found = chosen((wanting(use_models=("T4",)),), (A100, replace(T4, healthy=False)))
    assert isinstance(found, Refusal)
    assert found.reason is Reason.UNHEALTHY


def test_containers_of_one_pod_get_each_the_cards_of_its_kind() -> None:
    dcu = replace(a_card(3), vendor="hygon")
    shape = (wanting(whole(), vendor="hygon"), wanting(whole(), use_models=("V100",)), whole())
    assert chosen(shape, (*CARDS, dcu)) == ((dcu.uuid,), (V100.uuid,), (A100.uuid,))


def test_equal_cards_are_not_the_same_to_containers_that_want_different_ones() -> None:
    """A search that takes equal cards for the same would try only one of them for the first container."""
    cards = cards_of("node-a", 3)
    shape = (
        whole(),
        wanting(percent(50), use_uuids=(cards[0].uuid,)),
        wanting(percent(50), use_uuids=(cards[1].uuid,)),
    )
    assert chosen(shape, cards) == ((cards[2].uuid,), (cards[0].uuid,), (cards[1].uuid,))


# One NUMA node.


def on_numa_nodes(*numa_nodes: int | None) -> list[Card]:
    return [replace(card, numa_node=numa_nodes[card.index]) for card in cards_of("node-a", len(numa_nodes))]


def together(cards: int, lifetime: Lifetime = Lifetime.MAIN) -> Demand:
    return replace(whole(cards, lifetime), one_numa_node=True)


def indexes(found: Assignment | Refusal) -> list[list[str]]:
    assert not isinstance(found, Refusal), found
    return [[uuid.removeprefix("GPU-node-a-") for uuid in uuids] for uuids in found]


def test_bound_cards_are_on_one_numa_node_and_others_only_where_that_costs_nothing() -> None:
    ledger = a_ledger(*on_numa_nodes(0, 1, 1, 0))
    both = (together(2), replace(mib(1_000, cards=2), one_numa_node=True)), (whole(2), mib(1_000, cards=2))
    for shape in [(demand,) for demands in both for demand in demands]:
        assert indexes(choose_cards(shape, ledger.node_room("node-a"), Preference.BINPACK)) == [["0", "3"]]
    occupy(ledger, "other", a_share(a_card(1)))
    bound, unbound = replace(mib(1_000, cards=2), one_numa_node=True), mib(1_000, cards=2)
    assert indexes(choose_cards((bound,), ledger.node_room("node-a"), Preference.BINPACK)) == [["1", "2"]]
    assert indexes(choose_cards((unbound,), ledger.node_room("node-a"), Preference.BINPACK)) == [["1", "2"]]
    occupy(ledger, "another", a_share(a_card(0)))
    assert indexes(choose_cards((unbound,), ledger.node_room("node-a"), Preference.BINPACK)) == [["0", "1"]]


def test_the_numa_node_with_enough_room_is_taken() -> None:
    ledger = a_ledger(*on_numa_nodes(0, 1, 1, 0))
    occupy(ledger, "other", a_share(a_card(0)))
    assert indexes(choose_cards((together(2),), ledger.node_room("node-a"), Preference.BINPACK)) == [["1", "2"]]


def test_each_container_has_its_cards_on_one_numa_node_not_all_on_the_same() -> None:
    assert indexes(chosen((together(2), together(2)), on_numa_nodes(0, 1, 0, 1))) == [["0", "2"], ["1", "3"]]


def test_a_bound_container_gets_the_numa_node_though_an_unbound_one_would_have_broken_it() -> None:
    """Card 0 would be the preferred one of the unbound container."""
    shape = (whole(1), together(2))
    assert indexes(chosen(shape, on_numa_nodes(0, 1, 0))) == [["1"], ["0", "2"]]


def test_an_init_container_is_bound_like_any_other() -> None:
    shape = (together(2, Lifetime.INIT), whole(1))
    found = indexes(chosen(shape, on_numa_nodes(0, 1, 1)))
    assert found[0] == ["1", "2"]


def test_cards_of_which_the_numa_node_is_not_known_count_as_on_one() -> None:
    assert indexes(chosen((together(2),), on_numa_nodes(None, 0, -1))) == [["0", "2"]]


def test_too_few_on_each_numa_node_is_a_reason_of_its_own() -> None:
    found = chosen((together(3),), on_numa_nodes(0, 1, 0, 1))
    assert found == Refusal(Reason.NUMA, "fewer than 3 cards with room on one NUMA node")


def test_containers_that_fit_on_a_numa_node_each_and_not_together_are_told_so() -> None:
    found = chosen((together(2), together(2)), on_numa_nodes(0, 0, 1))
    assert isinstance(found, Refusal)
    assert found.reason is Reason.CONTAINERS_TOGETHER


# A policy of one's own.

NAMES = ["node-a", "node-b"]


def two_nodes() -> Ledger:
    """Return two nodes of two cards; somebody is on a card of the second."""
    ledger = a_ledger(*(card for name in NAMES for card in cards_of(name, 2)))
    occupy(ledger, "other", a_share(a_card(0, "node-b"), 5_000))
    return ledger


def card(chooser: Chooser, request: PodRequest, names: Sequence[str] = NAMES) -> str:
    (placement,) = chooser.choose(request, list(names), 1).placements
    return placement.shares[0].uuid.removeprefix("GPU-")


@pytest.mark.parametrize("default", list(Preference))
@pytest.mark.parametrize(
    ("nodes", "cards", "expected"),
    [
        ("binpack", "binpack", "node-b-0"),
        ("binpack", "spread", "node-b-1"),
        ("spread", "binpack", "node-a-0"),
        ("spread", "spread", "node-a-0"),
    ],
)
def test_a_pods_own_policy_goes_before_the_clusters(default: Preference, nodes: str, cards: str, expected: str) -> None:
    chooser = Chooser(two_nodes(), Policy(default, default))
    assert card(chooser, replace(a_request(mib(1)), node_policy=nodes, card_policy=cards)) == expected


def test_pods_of_one_shape_with_and_without_wishes_do_not_disturb_each_other() -> None:
    chooser = Chooser(two_nodes(), Policy())
    plain = a_request(mib(1))
    wishing = replace(plain, node_policy="spread")
    assert [card(chooser, each) for each in (plain, wishing, plain)] == ["node-b-0", "node-a-0", "node-b-0"]


def test_a_policy_of_ones_own_holds_on_a_given_node_too() -> None:
    chooser = Chooser(two_nodes(), Policy())
    found = chooser.choose_on(replace(a_request(mib(1)), card_policy="spread"), "node-b")
    assert isinstance(found, Placement)
    assert found.shares[0].uuid == "GPU-node-b-1"
    best = chooser.best(replace(a_request(mib(1)), node_policy="spread"), None)
    assert best is not None
    assert best.node_name == "node-a"


def test_a_pod_that_wants_what_no_node_has_waits_with_that_reason_on_each() -> None:
    chooser = Chooser(two_nodes(), Policy())
    choice = chooser.choose(a_request(wanting(use_models=("H100",))), NAMES, 1)
    assert {name: refusal.reason for name, refusal in choice.refusals.items()} == dict.fromkeys(
        NAMES, Reason.NOT_WANTED
    )
