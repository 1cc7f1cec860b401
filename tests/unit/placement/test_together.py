"""A trial of several pods counts as the ledger would, and leaves nothing in it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from builders import a_card, a_holder, a_ledger, a_request, a_share, mib, occupy, stored, whole
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.errors import Refusal
from gpuledger.model.gang import SeatKey
from gpuledger.model.share import Placement, shares_of
from gpuledger.placement import group
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.group import Asking, Trial
from gpuledger.placement.policy import Preference


def a_cluster(chooser: random.Random) -> Ledger:
    """Return up to four nodes with up to four cards each, some of which are in use."""
    cards = [
        a_card(index, f"node-{node}", memory_mib=chooser.choice((8_000, 16_000)))
        for node in range(chooser.randint(1, 4))
        for index in range(chooser.randint(1, 4))
    ]
    ledger = a_ledger(*cards)
    for number, card in enumerate(cards):
        if chooser.random() < 0.3:
            share = a_share(card, chooser.choice((1_000, 4_000)), exclusive=chooser.random() < 0.3)
            ledger.load(stored(card, a_holder(f"tenant-{number}", share), version=2))
    return ledger


def pods(chooser: random.Random, ledger: Ledger) -> list[Asking]:
    names = sorted(ledger.node_names())
    kinds = [
        a_request(whole()),
        a_request(mib(3_000)),
        a_request(mib(6_000, cards=2)),
        a_request(mib(1_000), mib(2_000)),
    ]
    some = None if chooser.random() < 0.5 else frozenset(chooser.sample(names, chooser.randint(1, len(names))))
    return [
        Asking(f"p-{number}", chooser.choice(kinds), some if chooser.random() < 0.5 else None)
        for number in range(chooser.randint(1, 12))
    ]


def carried_out(ledger: Ledger, asking: Sequence[Asking]) -> dict[SeatKey, str]:
    """Keep room in the ledger for one after the other; return where each has found some."""
    found: dict[SeatKey, str] = {}
    for each in asking:
        for name in list(ledger.node_names()):
            if each.node_names is not None and name not in each.node_names:
                continue
            room = ledger.node_room(name)
            chosen = choose_cards(each.request.shape, room, Preference.BINPACK)
            if not isinstance(chosen, Refusal):
                placement = Placement(name, shares_of(each.request, chosen, room.cards))
                ledger.seats.take(Seat(each.key, placement, 1e9))
                found[each.key] = name
                break
    return found


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_a_ledger_has_room_for_that_keeps_each_of_them(seed: int) -> None:
    chooser = random.Random(seed)  # noqa: S311 - the same in each run
    ledger = a_cluster(chooser)
    asking = pods(chooser, ledger)
    trial = Trial(ledger)
    list(trial.steps(asking))
    where = {uid: placement.node_name for uid, placement in trial.placed.items()}
    rooms = {name: [room.free for room in trial.sketch.node_room(name).rooms] for name in ledger.node_names()}
    assert where == carried_out(ledger, asking)
    assert rooms == {name: [room.free for room in ledger.node_room(name).rooms] for name in ledger.node_names()}
    assert [each.key for each in trial.left] == [each.key for each in asking if each.key not in where]


def test_nothing_of_it_is_in_the_ledger() -> None:
    ledger = a_ledger(a_card(0), a_card(1))
    before = ledger.changes
    trial = Trial(ledger)
    list(trial.steps([Asking("a", a_request(whole()), None)]))
    assert (len(trial.placed), ledger.changes, ledger.seats.of("a")) == (1, before, None)
    assert not any(entry.seats or entry.holders for entry in ledger.entries())
    assert [list(entry.seats) for entry in trial.sketch.entries("node-a")].count(["a"]) == 1


def test_what_others_have_in_spare_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = a_ledger(a_card(0), a_card(0, "node-b"))
    first, spare = (
        shares_of(a_request(whole()), ((each.uuid,),), (each,)) for each in (a_card(0), a_card(0, "node-b"))
    )
    ledger.seats.take(Seat("other", Placement("node-a", first), 1e9, spares=(Placement("node-b", spare),)))
    trial = Trial(ledger)
    list(trial.steps([Asking("a", a_request(whole()), None)]))
    assert trial.nodes() == {"node-b": 1}


def test_it_ends_when_its_work_is_spent_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "STEPS", 20)
    cards = [a_card(0, f"node-{number}") for number in range(50)]
    ledger = a_ledger(*cards)
    for card in cards:
        occupy(ledger, f"on-{card.node_name}", a_share(card, 16_000))
    trial = Trial(ledger)
    list(trial.steps([Asking("a", a_request(whole()), None)]))
    assert (trial.is_cut_short, len(trial.left)) == (True, 1)
    assert len(list(Trial(ledger).steps([Asking("a", a_request(whole()), None)]))) < 50
