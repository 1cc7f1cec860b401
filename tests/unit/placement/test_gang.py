"""Places for a gang: for all members or none, where each can go, and in as few zones as possible."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import OFFER, a_card, a_ledger, a_request, a_share, cards_of, mib, occupy, whole, whole_share
from gpuledger.ledger.book import Ledger, Zones
from gpuledger.ledger.seats import Strength
from gpuledger.model.card import Card
from gpuledger.model.request import PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import MEMBERS_AT_ONCE, Asking, GroupPlanner
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.tasks import run_to_end

RACK, CLIQUE = "rack", "clique"
ONE_CARD, SMALL = a_request(whole()), a_request(mib(100))


def seats(number: int, request: PodRequest = ONE_CARD, **more: Collection[str]) -> list[Asking]:
    return [Asking(f"m{place}", request, **more) for place in range(number)]


def hold(ledger: Ledger, asked: Sequence[Asking], beside: Collection[str] = ()) -> int:
    """Look for places, and keep them if there are some for all; return for how many there are."""
    policy = Policy(nodes=Preference.BINPACK, cards=Preference.BINPACK)
    found = run_to_end(GroupPlanner(ledger, Chooser(ledger, policy)).plan(asked, beside=beside))
    if not found.lacking:
        found.sketch.commit(100.0, Strength.WAITING)
    return len(asked) - found.lacking


def nodes_held(ledger: Ledger, asked: Sequence[Asking]) -> list[str]:
    holds = [ledger.seats.of(seat.key) for seat in asked]
    return sorted(each.placement.node_name for each in holds if each)


def nodes(**cards: int) -> Ledger:
    """Return a ledger of nodes with so many idle cards each."""
    return a_ledger(*(card for name, number in cards.items() for card in cards_of(name, number)))


def zoned(labels: Sequence[str], cards: dict[str, int], zones: dict[str, dict[str, str]]) -> Ledger:
    ledger = nodes(**cards)
    ledger.zones = Zones(labels)
    for name, values in zones.items():
        ledger.zones.observe(name, values)
    return ledger


def test_room_is_held_for_all_members_or_for_none() -> None:
    ledger = nodes(a=2, b=2)
    assert hold(ledger, seats(4)) == 4
    assert nodes_held(ledger, seats(4)) == ["a", "a", "b", "b"]
    ledger = nodes(a=2, b=2)
    assert hold(ledger, seats(5)) == 4
    assert nodes_held(ledger, seats(5)) == []


def test_the_most_demanding_member_is_placed_first() -> None:
    small, large = a_request(mib(1_000)), a_request(whole(cards=3))
    asked = [Asking("s1", small), Asking("s2", small), Asking("large", large)]
    ledger = nodes(a=3, b=1)
    assert hold(ledger, asked) == 3
    assert nodes_held(ledger, asked) == ["a", "b", "b"]


def test_each_member_goes_to_a_node_that_it_can_go_to() -> None:
    ledger = nodes(a=2, b=1)
    asked = [Asking("any", ONE_CARD), Asking("only-a", ONE_CARD, {"a"}), Asking("only-b", ONE_CARD, {"b"})]
    assert hold(ledger, asked) in (2, 3)
    asked = [Asking("only-b", ONE_CARD, {"b"}), Asking("other-b", ONE_CARD, {"b"})]
    assert hold(nodes(a=2, b=1), asked) == 1


def test_members_with_fewer_nodes_to_go_to_are_placed_first() -> None:
    asked = [Asking("any", ONE_CARD), Asking("only-a", ONE_CARD, {"a"})]
    ledger = nodes(a=1, b=1)
    assert hold(ledger, asked) == 2


def test_a_preferred_node_comes_first_and_an_avoided_one_last() -> None:
    ledger = nodes(a=1, b=2, c=3)
    asked = seats(1, preferred=("c",))
    hold(ledger, asked)
    assert nodes_held(ledger, asked) == ["c"]
    ledger = nodes(a=1, b=2)
    first, second = seats(2, avoided=("a",)), seats(3, avoided=("a",))
    hold(ledger, first)
    assert nodes_held(ledger, first) == ["b", "b"]
    ledger = nodes(a=1, b=2)
    hold(ledger, second)
    assert nodes_held(ledger, second) == ["a", "b", "b"]


def test_parts_of_several_cards_are_spread_where_packing_leaves_some_members_without() -> None:
    """Two members of two cards each: on the fullest cards, the first would leave the second one card."""
    cards = cards_of("a", 3)
    ledger = a_ledger(*cards)
    full = cards[0].capacity.memory_mib
    occupy(ledger, "x", a_share(cards[0], full - 1_500))
    occupy(ledger, "y", a_share(cards[1], full - 1_500))
    occupy(ledger, "z", a_share(cards[2], full - 2_500))
    asked = seats(2, a_request(mib(1_000, cards=2)))
    assert hold(ledger, asked) == 2


def test_others_have_their_turn_while_a_large_gang_is_planned_and_a_change_meanwhile_counts() -> None:
    ledger = nodes(a=4)
    steps = GroupPlanner(ledger, Chooser(ledger, Policy())).plan(seats(3 * MEMBERS_AT_ONCE, SMALL))
    next(steps)
    ledger.set_offer("a", ledger.offer("a"), hangs=True)
    found = run_to_end(steps)
    assert found.sketch.is_current
    assert found.lacking == 3 * MEMBERS_AT_ONCE


def test_whose_place_another_pod_takes_meanwhile_gets_another_one() -> None:
    ledger = nodes(a=MEMBERS_AT_ONCE, b=MEMBERS_AT_ONCE)
    asked = seats(MEMBERS_AT_ONCE + 1)
    steps = GroupPlanner(ledger, Chooser(ledger, Policy())).plan(asked)
    next(steps)
    for number, card in enumerate(cards_of("a", MEMBERS_AT_ONCE)[:4]):
        occupy(ledger, f"other-{number}", whole_share(card))
    found = run_to_end(steps)
    assert not found.lacking
    found.sketch.commit(100.0, Strength.WAITING)
    assert len(nodes_held(ledger, asked)) == len(asked)


def test_a_search_changes_nothing_for_others() -> None:
    ledger = nodes(a=2, b=2)
    before = ledger.changes
    hold(ledger, seats(5))
    assert ledger.changes == before


RACKS = {"a": {RACK: "1"}, "b": {RACK: "1"}, "c": {RACK: "2"}, "d": {RACK: "2"}, "e": {RACK: "3"}}


def test_a_gang_goes_to_one_zone_if_one_has_room_for_all_and_to_the_fullest_of_them() -> None:
    ledger = zoned([RACK], {"a": 4, "b": 1, "c": 2, "d": 1, "e": 1}, RACKS)
    asked = seats(3)
    assert hold(ledger, asked) == 3
    assert nodes_held(ledger, asked) == ["c", "c", "d"]


def test_a_gang_that_fits_in_no_zone_goes_to_the_fewest() -> None:
    ledger = zoned([RACK], {"a": 2, "b": 2, "c": 1, "d": 1, "e": 3}, RACKS)
    asked = seats(7)
    assert hold(ledger, asked) == 7
    assert set(nodes_held(ledger, asked)) == {"a", "b", "e"}


def test_a_gang_that_does_not_fit_into_zones_goes_where_there_is_room() -> None:
    ledger = zoned([RACK], {"a": 1, "unlabelled": 2}, {"a": {RACK: "1"}})
    asked = seats(3)
    assert hold(ledger, asked) == 3
    assert nodes_held(ledger, asked) == ["a", "unlabelled", "unlabelled"]


def test_zones_of_members_that_run_come_first() -> None:
    ledger = zoned([RACK], {"a": 2, "c": 2, "e": 1}, RACKS)
    asked = seats(1)
    hold(ledger, asked, beside=["c"])
    assert nodes_held(ledger, asked) == ["c"]


def test_the_narrowest_label_counts_first_and_among_several_the_widest_is_narrowed_down() -> None:
    zones = {
        "a": {CLIQUE: "k1", RACK: "1"},
        "b": {CLIQUE: "k2", RACK: "1"},
        "c": {CLIQUE: "k3", RACK: "2"},
        "d": {CLIQUE: "k3", RACK: "2"},
    }
    ledger = zoned([CLIQUE, RACK], {"a": 2, "b": 2, "c": 2, "d": 2}, zones)
    asked = seats(4)
    hold(ledger, asked)
    assert set(nodes_held(ledger, asked)) == {"c", "d"}
    ledger = zoned([CLIQUE, RACK], {"a": 2, "b": 2, "c": 1, "d": 1}, zones)
    hold(ledger, seats(4))
    assert set(nodes_held(ledger, seats(4))) == {"a", "b"}


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.integers(1, 8),
)
@settings(max_examples=300, deadline=None)
def test_members_that_are_alike_are_all_placed_if_they_can_be_and_in_the_fewest_zones(
    sizes: list[int], zone_of: list[int], need: int
) -> None:
    names = [f"n{number}" for number in range(len(sizes))]
    cards = {name: size for name, size in zip(names, sizes, strict=True) if size}
    zones = {name: {RACK: f"z{zone_of[number]}"} for number, name in enumerate(names)}
    ledger = zoned([RACK], cards, zones)
    asked = seats(need)
    found = hold(ledger, asked)
    assert found == min(need, sum(sizes))
    if found < need:
        assert nodes_held(ledger, asked) == []
        return
    room = dict.fromkeys({f"z{each}" for each in zone_of}, 0)
    for number, size in enumerate(sizes):
        room[f"z{zone_of[number]}"] += size
    fewest = next(k for k in range(1, 7) if any(sum(c) >= need for c in combinations(room.values(), k)))
    assert len({zones[name][RACK] for name in nodes_held(ledger, asked)}) == fewest


def fits_somehow(cards: Sequence[Card], sizes_mib: Sequence[int]) -> bool:
    """Return whether parts of these sizes fit on these cards, by trying all ways."""
    for way in product(range(len(cards)), repeat=len(sizes_mib)):
        left = [card.capacity.memory_mib for card in cards]
        for card, size in zip(way, sizes_mib, strict=True):
            left[card] -= size
        if min(left) >= 0:
            return True
    return False


@given(st.lists(st.sampled_from([4_000, 8_000, 12_000]), min_size=1, max_size=5), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_what_is_held_never_exceeds_a_card_and_never_fails_where_all_members_are_alike(
    memory: list[int], number: int
) -> None:
    cards = [a_card(0, f"n{place}", memory_mib=each) for place, each in enumerate(memory)]
    for size_mib in (2_000, 3_000, 5_000):
        ledger = a_ledger(*cards)
        asked = seats(number, a_request(mib(size_mib)))
        held = hold(ledger, asked) == number
        assert held == fits_somehow(cards, [size_mib] * number)
        for card in cards:
            entry = ledger.entry(card.uuid)
            assert entry is not None
            assert sum(share.amounts.memory_mib for share in entry.seats.values()) <= card.capacity.memory_mib


def test_an_offer_that_is_gone_leaves_no_room() -> None:
    ledger = nodes(a=2)
    ledger.set_offer("a", None)
    assert hold(ledger, seats(1)) == 0
    ledger.set_offer("a", OFFER)
    assert hold(ledger, seats(1)) == 1
