"""How many more nodes let waiting pods run, for whom, and why a template is of no help."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders import OFFER, a_ledger, a_request, a_share, cards_of, mib, occupy, stored, whole, whole_share
from gpuledger.ledger.book import Ledger, Zones
from gpuledger.model.card import Card
from gpuledger.model.gang import Counted, QuotaLimit
from gpuledger.model.request import HostAmounts, PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import Asking
from gpuledger.placement.growth import Growth, NodeTemplate, Seeker, Seekers, find_growth
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.tasks import run_to_end

ONE, TWO = a_request(whole()), a_request(whole(cards=2))
TAINT = ("taint", "the pod does not tolerate the taint x:NoSchedule")


def full(*cards: Card) -> Ledger:
    """Return a ledger whose cards are all taken."""
    ledger = a_ledger(*cards)
    for card in cards:
        occupy(ledger, f"on {card.uuid}", whole_share(card))
    return ledger


def template(name: str = "t", cards: int = 2, at_most: int = 10, memory_mib: int = 16_000) -> NodeTemplate:
    return NodeTemplate(name, tuple(cards_of("like", cards, memory_mib=memory_mib)), OFFER, at_most=at_most)


def pod(name: str, request: PodRequest = ONE, barred: Sequence[str] = ()) -> Seekers:
    return Seekers(name, (Seeker(Asking(name, request), dict.fromkeys(barred, TAINT)),))


def gang(name: str, number: int, request: PodRequest = TWO) -> Seekers:
    return Seekers(name, tuple(Seeker(Asking(f"{name}-{each}", request)) for each in range(number)), is_gang=True)


def growth(
    ledger: Ledger, templates: Sequence[NodeTemplate], waiting: Sequence[Seekers], looks: int = 10_000
) -> Growth:
    chooser = Chooser(ledger, Policy(Preference.BINPACK, Preference.BINPACK))
    return run_to_end(find_growth(ledger, chooser, templates, waiting, looks))


def test_who_needs_nodes_and_who_does_not() -> None:
    ledger = full(*cards_of("old", 2))
    for card in cards_of("free", 1):
        ledger.load(stored(card))
    ledger.set_offer("free", OFFER)
    found = growth(ledger, [template()], [pod("a"), pod("b"), pod("c"), pod("d", TWO)])
    assert (found.nodes, found.fitting) == ({"t": 2}, ("a",))
    assert (found.served, found.unhelped) == ({"t": ("b", "c", "d")}, {})
    assert found.helped == ("b", "c", "d")


def test_without_templates_or_pods_nothing_is_wanted() -> None:
    ledger = full(*cards_of("old", 1))
    assert growth(ledger, [], [pod("a")]).nodes == {}
    assert growth(ledger, [template()], []) == Growth({}, (), {}, (), {})


def test_those_who_come_first_get_the_nodes_that_may_be_added() -> None:
    waiting = [pod("first", TWO), pod("second", TWO), pod("small", a_request(mib(1_000)))]
    found = growth(full(*cards_of("old", 1)), [template(at_most=1)], waiting)
    assert (found.nodes, found.served) == ({"t": 1}, {"t": ("first",)})
    why = ("at-most", "no more than one such node can be added")
    assert found.unhelped == {"second": {"t": why}, "small": {"t": why}}


def test_a_gang_that_may_not_have_all_of_its_nodes_gets_none() -> None:
    found = growth(full(*cards_of("old", 1)), [template(at_most=3)], [gang("train", 4), pod("a")])
    assert (found.nodes, found.served) == ({"t": 1}, {"t": ("a",)})
    assert found.unhelped == {"train": {"t": ("at-most", "no more than 3 such nodes can be added")}}
    found = growth(full(*cards_of("old", 1)), [template(at_most=4)], [gang("train", 4), pod("a")])
    assert (found.nodes, found.served) == ({"t": 4}, {"t": ("train",)})


def test_a_policy_that_spreads_pods_is_asked_with_all_nodes_that_may_be_added() -> None:
    ledger = full(*cards_of("old", 1))
    waiting = [pod("a"), pod("b"), gang("train", 2)]
    chooser = Chooser(ledger, Policy(Preference.SPREAD, Preference.BINPACK))
    found = run_to_end(find_growth(ledger, chooser, [template(cards=3, at_most=2)], waiting))
    assert (found.nodes, found.helped, found.unhelped) == ({"t": 2}, ("a", "b", "train"), {})


def test_a_gang_has_nodes_of_several_templates_where_no_one_has_all() -> None:
    members = (
        Seeker(Asking("l", a_request(mib(30_000)))),
        Seeker(Asking("w", a_request(whole(cards=4)))),
    )
    large, wide = template("large", cards=1, memory_mib=40_000), template("wide", cards=4)
    found = growth(full(*cards_of("old", 1)), [large, wide], [Seekers("mixed", members, is_gang=True)])
    assert found.nodes == {"large": 1, "wide": 1}
    assert found.served == {"large": ("mixed",), "wide": ("mixed",)}


def test_the_template_that_takes_most_comes_first_and_of_equals_the_smaller_one() -> None:
    small, large = template("small", cards=2), template("large", cards=8)
    ledger = full(*cards_of("old", 1))
    assert growth(ledger, [large, small], [pod(f"p{number}") for number in range(8)]).nodes == {"large": 1}
    assert growth(ledger, [large, small], [pod("p")]).nodes == {"small": 1}
    assert growth(ledger, [large, small], [pod(f"p{number}") for number in range(9)]).nodes == {"large": 1, "small": 1}


def test_each_template_has_its_reason() -> None:
    little = replace(template("little", memory_mib=40_000), host=HostAmounts(1_000, 1_000))
    waiting = [pod("a", replace(a_request(mib(20_000)), host=HostAmounts(2_000, 0)), barred=["tainted"])]
    found = growth(full(*cards_of("old", 1)), [template("tainted"), template("low"), little], waiting)
    assert found.nodes == {}
    assert {name: code for name, (code, _) in found.unhelped["a"].items()} == {
        "tainted": "taint",
        "low": "card-too-small",
        "little": "host-cpu",
    }


def test_cpu_of_a_new_node_is_shared_by_its_pods() -> None:
    waiting = [pod(f"p{number}", replace(a_request(mib(10)), host=HostAmounts(2_000, 0))) for number in range(4)]
    found = growth(full(*cards_of("old", 1)), [replace(template(), host=HostAmounts(4_000, 1_000))], waiting)
    assert found.nodes == {"t": 2}


def test_a_quota_counts_cards_of_nodes_that_do_not_exist() -> None:
    ledger = full(*cards_of("old", 1))
    limit = QuotaLimit("gpus", "limits.nvidia.com/gpu", Counted.SLOTS, 3, "nvidia")
    ledger.quotas.set_limits("team", [limit])
    waiting = [pod(f"p{number}") for number in range(5)]
    for each in waiting:
        ledger.quotas.knows(each.name, "team")
    found = growth(ledger, [template(cards=1)], waiting)
    assert (found.nodes, found.served) == ({"t": 3}, {"t": ("p0", "p1", "p2")})
    assert [found.unhelped[name]["t"][0] for name in ("p3", "p4")] == ["quota", "quota"]


def test_new_nodes_are_in_the_zone_that_their_labels_say() -> None:
    ledger = full(*cards_of("old", 1))
    ledger.zones = Zones(["rack"])
    ledger.zones.observe("old", {"rack": "a"})
    near = replace(template("near"), labels={"rack": "b"})
    found = growth(ledger, [near], [gang("train", 3)])
    assert found.nodes == {"near": 3}
    assert ledger.zones.nodes_by_zone(0) == {"a": {"old"}}


def test_a_node_whose_own_plugin_counts_its_cards_can_be_a_template() -> None:
    counting = NodeTemplate("counting", (), OFFER, HostAmounts(64_000, 64_000, 4), at_most=5)
    request = PodRequest(("c",), (replace(whole(cards=3), resource="nvidia.com/gpu"),), host=HostAmounts(cards=3))
    assert growth(full(*cards_of("old", 1)), [counting], [pod("a", request), pod("b", request)]).nodes == {
        "counting": 2
    }


def test_pods_keep_to_the_nodes_that_they_can_go_to_and_may_have_new_ones_beside_them() -> None:
    ledger = a_ledger(*cards_of("a", 1), *cards_of("b", 1))
    only_b = [Seekers(name, (Seeker(Asking(name, ONE, frozenset({"b"}))),)) for name in ("x", "y")]
    found = growth(ledger, [template()], only_b)
    assert (found.fitting, found.nodes, found.served) == (("x",), {"t": 1}, {"t": ("y",)})


@pytest.mark.parametrize("looks", [0, 1, 5, 12])
def test_a_search_that_costs_too_much_stops_and_says_of_whom_nothing_is_known(looks: int) -> None:
    waiting = [pod(f"p{number}", TWO) for number in range(10)]
    found = growth(full(*cards_of("old", 1)), [template()], waiting, looks)
    assert found.stopped
    assert found.undecided
    assert {*found.undecided}.isdisjoint({name for names in found.served.values() for name in names})
    assert growth(full(*cards_of("old", 1)), [template()], waiting).stopped is False


def test_room_that_others_take_meanwhile_is_no_room_any_more() -> None:
    first, second = cards_of("old", 2)
    ledger = full(first)
    ledger.load(stored(second))
    chooser = Chooser(ledger, Policy(Preference.BINPACK, Preference.BINPACK))
    steps = find_growth(ledger, chooser, [template(cards=1)], [pod("a"), pod("b")])
    next(steps)
    next(steps)
    occupy(ledger, "other", a_share(second))
    found = run_to_end(steps)
    assert not found.is_current
    assert found.nodes == {"t": 2}
