"""Seats: who yields to whom, what counts once, and that nothing is taken by halves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_ledger, a_share, cards_of, commit, stored, whole_share
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.card import Card
from gpuledger.model.errors import ShareRefused
from gpuledger.model.gang import Counted, GangName, GroupSeat, QuotaLimit, SeatKey, WorkloadName
from gpuledger.model.share import Placement

CARDS = cards_of("node-a", 4)
GANG, WORKLOAD = GangName("default", "train"), WorkloadName("default", "job")


@pytest.fixture
def ledger() -> Ledger:
    return a_ledger(*CARDS)


def a_seat(key: SeatKey, *cards: Card, **more: Any) -> Seat:
    """Return a seat that waits on whole cards."""
    placement = Placement("node-a", tuple(map(whole_share, cards)))
    return replace(Seat(key, placement, FOREVER, Strength.WAITING), **more)


def there(ledger: Ledger) -> set[str]:
    return {str(key) for entry in ledger.entries() for key in entry.seats}


def test_what_waits_yields_to_a_higher_priority_and_to_no_equal_one(ledger: Ledger) -> None:
    ledger.seats.take(a_seat("low", CARDS[0], priority=3))
    assert ledger.seats.yielding(3) == set()
    assert ledger.seats.yielding(4) == {"low"}


@pytest.mark.parametrize("strength", [Strength.CHOSEN, Strength.BINDING])
def test_what_is_chosen_or_being_bound_yields_to_nobody(ledger: Ledger, strength: Strength) -> None:
    ledger.seats.take(a_seat("low", CARDS[0], strength=strength))
    assert ledger.seats.yielding(10) == set()


def test_only_those_in_the_way_are_displaced_the_least_important_first(ledger: Ledger) -> None:
    for number, priority in enumerate((2, 1)):
        share = a_share(CARDS[0], 4_000)
        seat = Seat(f"low-{number}", Placement("node-a", (share,)), FOREVER, Strength.WAITING, priority=priority)
        ledger.seats.take(seat)
    ledger.seats.take(a_seat("elsewhere", CARDS[1]))
    told: list[Seat] = []
    ledger.seats.on_displaced.append(told.extend)
    large = a_share(CARDS[0], CARDS[0].capacity.memory_mib - 4_000)
    seat = Seat("high", Placement("node-a", (large,)), FOREVER, priority=5)
    ledger.seats.take_over(seat, yielding=ledger.seats.yielding(5))
    assert there(ledger) == {"low-0", "elsewhere", "high"}
    assert [each.key for each in told] == ["low-1"]


def test_a_group_is_displaced_as_a_whole(ledger: Ledger) -> None:
    for number in range(3):
        ledger.seats.take(a_seat(GroupSeat(GANG, str(number)), CARDS[number], group=GANG))
    ledger.seats.take_over(a_seat("high", CARDS[0], priority=1), yielding=ledger.seats.yielding(1))
    assert there(ledger) == {"high"}
    assert ledger.seats.of_group(GANG) == []


def test_a_group_does_not_yield_once_kube_scheduler_was_told_one_of_its_places(ledger: Ledger) -> None:
    ledger.seats.take(a_seat("a", CARDS[0], group=GANG), a_seat("b", CARDS[1], group=GANG))
    assert ledger.seats.yielding(1) == {"a", "b"}
    ledger.seats.strengthen("a", Strength.CHOSEN, FOREVER)
    assert ledger.seats.yielding(1) == set()


def test_several_seats_are_taken_together_or_not_at_all(ledger: Ledger) -> None:
    before = ledger.changes
    with pytest.raises(ShareRefused):
        ledger.seats.take(a_seat("a", CARDS[0]), a_seat("b", CARDS[1]), a_seat("c", CARDS[0]))
    assert (there(ledger), ledger.changes) == (set(), before)
    with pytest.raises(ShareRefused):
        ledger.seats.take(a_seat("a", CARDS[0]), a_seat("b", a_card(7)))
    assert (there(ledger), ledger.changes) == (set(), before)


def test_the_place_of_a_pod_that_leaves_counts_once_and_is_never_free_between(ledger: Ledger) -> None:
    """From the moment at which the pod's share ends, the seat counts: others have no time to look in between."""
    holder = a_holder("gone", whole_share(CARDS[0]))
    ledger.load(stored(CARDS[0], holder, version=2))
    before = ledger.changes
    ledger.seats.take(a_seat(GroupSeat(GANG, "gone"), CARDS[0], group=GANG))
    entry = ledger.entry(CARDS[0].uuid)
    assert entry is not None
    assert len(entry.shares()) == 1
    ledger.load(stored(CARDS[0], version=3))
    assert len(entry.shares()) == 1
    assert not entry.room().idle
    assert list(ledger.touched_since(before)) == ["node-a"], "that it is kept is a change; that the pod ends is none"


def test_a_pod_that_sits_down_in_a_seat_of_its_group_takes_no_more(ledger: Ledger) -> None:
    key = GroupSeat(WORKLOAD, "main/0")
    seat = a_seat(key, CARDS[0], group=WORKLOAD)
    ledger.seats.take(seat)
    ledger.seats.take(replace(seat, key="pod"), without={key})
    assert there(ledger) == {"pod"}
    commit(ledger, "pod")
    assert there(ledger) == set()
    assert [card.uuid for card, _ in ledger.holders.of("pod")] == [CARDS[0].uuid]


def test_seats_of_pods_to_come_count_for_the_quota_of_their_namespace_until_others_take_them(ledger: Ledger) -> None:
    limit = QuotaLimit("gpus", "limits.number", Counted.SLOTS, 2, "nvidia")
    ledger.quotas.set_limits("default", [limit])
    keys = [GroupSeat(WORKLOAD, f"main/{number}") for number in range(3)]
    seats = [a_seat(key, card, group=WORKLOAD) for key, card in zip(keys, CARDS, strict=False)]
    with pytest.raises(ShareRefused):
        ledger.seats.take(*seats)
    ledger.seats.take(*seats[:2])
    assert ledger.quotas.used("default", limit) == 2
    ledger.quotas.knows("pod", "default")
    ledger.seats.take(replace(seats[0], key="pod"), without={keys[0]})
    assert ledger.quotas.used("default", limit) == 2
