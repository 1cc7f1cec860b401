"""The ledger: what counts on a card, what survives, and which nodes are worth another look."""

from dataclasses import replace

import pytest

from builders import OFFER, a_card, a_holder, a_ledger, a_pod, a_share, commit, occupy, stored, whole_share
from gpuledger.ledger.book import LOST_KEPT, Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import ShareRefused
from gpuledger.model.share import MAX_HOLDERS, Claim, Misfit, Placement, Share, StoredCard

CARD = a_card()


def line(ledger: Ledger, card: Card = CARD) -> CardEntry:
    """Return the line of a card that is there."""
    entry = ledger.entry(card.uuid)
    assert entry is not None
    return entry


def test_a_hold_counts_at_once() -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "p", a_share(CARD, 4_000, 30))
    (room,) = ledger.node_room("node-a").rooms
    assert (room.free, room.idle, room.shut) == (Amounts(12_000, 70, 9), False, False)
    assert line(ledger).holders == {}


def test_a_share_that_is_stored_while_it_is_on_hold_counts_once() -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "p", a_share(CARD, 4_000))
    ledger.load(stored(CARD, a_holder("p", a_share(CARD, 4_000)), version=2))
    assert line(ledger).used() == line(ledger).holders["p"].share.amounts == Amounts(4_000, 0, 1)


def test_a_stored_share_stays_when_its_hold_is_dropped() -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "p", a_share(CARD, 4_000))
    commit(ledger, "p")
    assert not ledger.seats.give_up("p")
    assert line(ledger).used() == Amounts(4_000, 0, 1)
    assert [(card, holder.pod.uid) for card, holder in ledger.holders.of("p")] == [(CARD, "p")]


def test_a_released_share_is_free() -> None:
    ledger = a_ledger(CARD)
    ledger.load(stored(CARD, a_holder("p", a_share(CARD)), version=2))
    ledger.load(stored(CARD, version=3))
    assert line(ledger).room().idle
    assert ledger.holders.uids() == []
    assert ledger.holders.of("p") == []


@pytest.mark.parametrize("share", [a_share(CARD, 1_001), a_share(CARD, 1, 51), a_share(CARD, 1, 0, 10)])
def test_a_hold_for_which_there_is_no_room_is_refused(share: Share) -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "first", a_share(CARD, 15_000, 50))
    before = ledger.changes
    with pytest.raises(ShareRefused):
        occupy(ledger, "second", share)
    assert ledger.changes == before
    assert ledger.seats.of("second") is None


@pytest.mark.parametrize("whole_first", [False, True])
def test_a_whole_card_and_a_share_refuse_each_other(whole_first: bool) -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "first", a_share(CARD, 1, 0, exclusive=whole_first))
    with pytest.raises(ShareRefused):
        occupy(ledger, "second", a_share(CARD, 1, 0, exclusive=not whole_first))


def test_a_hold_on_several_cards_is_refused_as_a_whole() -> None:
    cards = [a_card(0), a_card(1)]
    ledger = a_ledger(*cards)
    occupy(ledger, "first", whole_share(cards[1]))
    with pytest.raises(ShareRefused):
        occupy(ledger, "second", whole_share(cards[0]), whole_share(cards[1]))
    assert line(ledger, cards[0]).room().idle


def test_a_second_hold_replaces_the_first_and_may_use_its_room() -> None:
    cards = [a_card(0), a_card(1)]
    ledger = a_ledger(*cards)
    occupy(ledger, "p", whole_share(cards[0]), whole_share(cards[1]))
    occupy(ledger, "p", a_share(cards[1], 16_000))
    assert line(ledger, cards[0]).room().idle
    assert line(ledger, cards[1]).used() == Amounts(16_000, 0, 1)


def test_a_hold_on_an_unknown_card_is_refused() -> None:
    with pytest.raises(ShareRefused):
        Ledger().seats.take(Seat("p", Placement("node-a", (a_share(CARD),)), 1.0))


def test_a_hold_on_a_card_that_has_moved_to_another_node_is_refused() -> None:
    ledger = a_ledger(CARD)
    ledger.load(stored(a_card(0, "node-b", uuid=CARD.uuid), version=2))
    with pytest.raises(ShareRefused):
        ledger.seats.take(Seat("p", Placement("node-a", (a_share(CARD),)), 1.0))


def test_holds_end_at_their_deadline_unless_a_write_decides() -> None:
    ledger = a_ledger(CARD)
    for uid, deadline_s in (("early", 1.0), ("pinned", 1.0), ("late", 3.0)):
        ledger.seats.take(Seat(uid, Placement("node-a", (a_share(CARD),)), deadline_s))
    ledger.seats.strengthen("pinned", Strength.BINDING, FOREVER)
    assert ledger.seats.expire(0.9) == []
    assert [seat.key for seat in ledger.seats.expire(2.0)] == ["early"]
    assert line(ledger).used() == Amounts(2_000, 0, 2)
    pinned = ledger.seats.of("pinned")
    assert pinned is not None
    assert pinned.until_s == FOREVER


def test_what_is_older_than_known_is_ignored() -> None:
    ledger = a_ledger(CARD)
    ledger.load(stored(CARD, a_holder("p", a_share(CARD)), version=5))
    before = ledger.changes
    assert not ledger.load(stored(CARD, version=5))
    assert not ledger.load(stored(CARD, version=4))
    assert not ledger.unload(CARD.uuid, 4)
    assert ledger.changes == before
    assert line(ledger).used() == Amounts(1_000, 0, 1)


def test_the_cards_that_list_a_share_that_does_not_fit_are_found_without_a_look_at_the_others() -> None:
    cards = [a_card(0), a_card(1)]
    ledger, misfit = a_ledger(*cards), Misfit(a_pod("a"), Amounts(number=1), "it has no room")
    assert ledger.entries_with_misfits() == []
    listing = StoredCard(cards[0], 50, holders=(), phase="Ready", misfits=(misfit,))
    ledger.load(listing)
    assert [entry.card for entry in ledger.entries_with_misfits()] == [cards[0]]
    ledger.load(replace(listing, resource_version=51, misfits=()))
    assert ledger.entries_with_misfits() == []
    ledger.load(replace(listing, resource_version=52))
    ledger.unload(cards[0].uuid, 53)
    assert ledger.entries_with_misfits() == []


def test_holders_stay_when_the_api_server_loses_their_card_and_nobody_else_gets_it() -> None:
    ledger = a_ledger(CARD)
    ledger.load(stored(CARD, a_holder("p", a_share(CARD)), version=2))
    assert ledger.unload(CARD.uuid, 3)
    assert ledger.node_room("node-a").rooms == ()
    assert line(ledger).used() == Amounts(1_000, 0, 1)


def test_holders_stay_until_the_first_status_of_a_card_that_was_created_again() -> None:
    ledger = a_ledger(CARD)
    ledger.load(stored(CARD, a_holder("p", a_share(CARD)), version=2))
    ledger.unload(CARD.uuid, 3)
    ledger.load(StoredCard(CARD, 4, holders=None))
    assert list(line(ledger).holders) == ["p"]
    assert not line(ledger).open
    ledger.load(stored(CARD, version=5))
    assert line(ledger).room().idle


def test_a_lost_card_without_holders_is_forgotten_and_its_hold_waits_for_it() -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "p", a_share(CARD))
    ledger.unload(CARD.uuid, 2)
    assert list(ledger.node_names()) == []
    assert ledger.entry(CARD.uuid) is None
    ledger.load(stored(CARD, version=3))
    assert line(ledger).used() == Amounts(1_000, 0, 1)


def test_a_hold_that_ends_while_its_card_is_away_is_over() -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "p", a_share(CARD))
    ledger.unload(CARD.uuid, 2)
    assert ledger.seats.give_up("p")
    ledger.load(stored(CARD, version=3))
    assert line(ledger).room().idle


def test_holders_may_stay_on_a_card_that_shrank_below_them() -> None:
    ledger = a_ledger(CARD)
    ledger.load(stored(CARD, a_holder("p", a_share(CARD, 12_000)), version=2))
    ledger.load(stored(a_card(memory_mib=8_000), a_holder("p", a_share(CARD, 12_000)), version=3))
    (room,) = ledger.node_room("node-a").rooms
    assert room.free.memory_mib == -4_000
    with pytest.raises(ShareRefused):
        occupy(ledger, "q", a_share(CARD, 0, 0, 0))


def test_a_card_takes_nobody_before_its_first_status() -> None:
    ledger = Ledger()
    ledger.load(StoredCard(CARD, 1, holders=None))
    room = ledger.node_room("node-a")
    assert room.cards == (CARD,)
    assert room.rooms == ()


def test_an_unhealthy_card_is_listed_and_takes_nobody() -> None:
    sick = a_card(healthy=False)
    room = a_ledger(sick).node_room("node-a")
    assert (room.cards, room.rooms) == ((sick,), ())


def test_a_card_that_its_node_does_not_report_is_not_there_for_placement() -> None:
    ledger = a_ledger(CARD)
    ledger.set_reported(CARD.uuid, False)
    assert ledger.node_room("node-a").cards == ()
    ledger.set_reported(CARD.uuid, True)
    assert ledger.node_room("node-a").cards == (CARD,)


def test_a_card_that_moves_takes_its_hold_along() -> None:
    moved = a_card(0, "node-b", uuid=CARD.uuid)
    ledger = a_ledger(CARD)
    occupy(ledger, "p", a_share(CARD))
    ledger.load(stored(moved, version=2))
    assert ledger.node_room("node-a").cards == ()
    assert ledger.node_room("node-b").rooms[0].free.memory_mib == 15_000
    seen = ledger.changes
    ledger.seats.give_up("p")
    assert "node-b" in ledger.touched_since(seen)
    assert ledger.node_room("node-b").rooms[0].idle


def test_cards_are_listed_by_index_however_they_arrive() -> None:
    ledger = a_ledger(a_card(2), a_card(0), a_card(1))
    assert [card.index for card in ledger.node_room("node-a").cards] == [0, 1, 2]
    assert [entry.card.index for entry in ledger.entries_of_node("node-a")] == [0, 1, 2]


def test_changes_name_their_nodes_latest_first() -> None:
    ledger = a_ledger(a_card(0, "node-a"), a_card(0, "node-b"), a_card(0, "node-c"))
    seen = ledger.changes
    assert list(ledger.touched_since(seen)) == []
    ledger.set_offer("node-c", None)
    ledger.set_offer("node-a", None)
    ledger.set_offer("node-c", OFFER)
    assert list(ledger.touched_since(seen)) == ["node-c", "node-a"]


def test_an_update_that_changes_nothing_touches_nothing() -> None:
    ledger = a_ledger(CARD)
    seen = ledger.changes
    ledger.set_offer("node-a", OFFER)
    ledger.set_offer("node-b", None)
    ledger.set_reported(CARD.uuid, True)
    ledger.set_reported("GPU-unknown", False)
    ledger.load(stored(CARD, version=1))
    ledger.seats.give_up("nobody")
    ledger.seats.expire(100.0)
    assert ledger.changes == seen


def test_after_one_hold_has_ended_the_others_still_end() -> None:
    ledger = a_ledger(CARD)
    for uid, deadline_s in (("early", 1.0), ("late", 3.0)):
        ledger.seats.take(Seat(uid, Placement("node-a", (a_share(CARD),)), deadline_s))
    assert [seat.key for seat in ledger.seats.expire(1.0)] == ["early"]
    assert ledger.seats.first_deadline_s == 3.0
    assert [seat.key for seat in ledger.seats.expire(3.0)] == ["late"]


def test_news_with_the_version_of_a_deletion_bring_no_card_back() -> None:
    ledger = a_ledger(CARD)
    assert ledger.unload(CARD.uuid, 7)
    assert not ledger.load(stored(CARD, version=7))
    assert ledger.entry(CARD.uuid) is None
    assert ledger.load(stored(CARD, version=8))


def test_a_share_that_would_be_one_more_than_a_card_can_list_does_not_fit() -> None:
    card = a_card(number=2 * MAX_HOLDERS)
    holders = [a_holder(f"p-{number}", a_share(card, 1)) for number in range(MAX_HOLDERS)]
    ledger = a_ledger(card)
    ledger.load(stored(card, *holders, version=2))
    assert not line(ledger, card).takes(a_share(card, 1), "new")
    assert line(ledger, card).takes(a_share(card, 2), "p-7")


def test_of_ever_so_many_deleted_cards_the_last_ones_are_remembered() -> None:
    ledger = Ledger()
    for number in range(LOST_KEPT + 2):
        card = a_card(number)
        ledger.load(stored(card, version=number + 1))
        ledger.unload(card.uuid, number + 2)
    assert not ledger.load(stored(a_card(LOST_KEPT + 1), version=LOST_KEPT + 1))  # older than its deletion
    assert not ledger.load(stored(a_card(2), version=2))
    assert ledger.load(stored(a_card(0), version=1))  # the first one is forgotten


def test_what_is_promised_to_a_pod_and_on_hold_for_it_counts_once() -> None:
    ledger = a_ledger(CARD)
    share = a_share(CARD, 4_000)
    occupy(ledger, "p", share)
    ledger.promises.make("p", Placement("node-a", (share,)))
    assert line(ledger).used() == Amounts(4_000, 0, 1)
    ledger.seats.give_up("p")
    assert line(ledger).used() == Amounts(4_000, 0, 1)


def test_what_is_on_hold_for_a_pod_does_not_stand_in_the_way_of_its_own_claim() -> None:
    ledger = a_ledger(CARD)
    occupy(ledger, "p", whole_share(CARD))
    claim = Claim(a_holder("p", whole_share(CARD)), cards=1, victims=())
    assert line(ledger).takes_now(claim)
    assert not line(ledger).takes_now(replace(claim, holder=a_holder("other", whole_share(CARD))))


def test_a_promise_that_is_withdrawn_frees_its_card_where_the_card_is_now() -> None:
    ledger = a_ledger(CARD)
    ledger.promises.make("p", Placement("node-a", (a_share(CARD, 4_000),)))
    ledger.load(stored(replace(CARD, node_name="node-b"), version=2))
    assert ledger.node_room("node-b").rooms[0].free != CARD.capacity
    seen = ledger.changes
    ledger.promises.withdraw("p")
    assert ledger.node_room("node-b").rooms[0].free == CARD.capacity
    assert list(ledger.touched_since(seen)) == ["node-b"]


def test_without_its_spares_a_pod_still_has_what_is_promised_to_it_there() -> None:
    elsewhere = a_card(0, "node-b")
    ledger = a_ledger(CARD, elsewhere)
    promised, share = a_share(elsewhere, 3_000), a_share(CARD, 1_000)
    ledger.promises.make("p", Placement("node-b", (promised,)))
    spare = Placement("node-b", (a_share(elsewhere, 1_000),))
    ledger.seats.take(Seat("p", Placement("node-a", (share,)), 10.0, spares=(spare,)))
    before = ledger.room_if("node-b")
    ledger.seats.settle("p", "node-a")
    assert ledger.node_room("node-b") == before
    assert before.rooms[0].free == elsewhere.capacity - promised.amounts
