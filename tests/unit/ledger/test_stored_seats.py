"""Which seats the API server lists, by their owners: whatever its cards say, and in whatever order they change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from builders import a_holder, a_ledger, a_share, cards_of, stored
from gpuledger.model.share import Holder, HolderState, SeatFor, SeatOwner, StoredSeat

CARDS = cards_of("node-a", 3)
OWNERS = ["first", "second"]
SEATS = ["seat-1", "seat-2"]


def a_stored_seat(uid: str, card: int, owner_uid: str) -> Holder:
    """Return a seat on two cards. Its owner was made anew under its name, if another card says another UID."""
    owner = SeatOwner(SeatFor.RESERVATION, "default", "kept", owner_uid)
    found = a_holder(uid, a_share(CARDS[card], 1_000))
    return replace(found, state=HolderState.RESERVED, seat=StoredSeat(owner, member=uid, cards=2))


changes = st.tuples(st.integers(0, 2), st.dictionaries(st.sampled_from(SEATS), st.sampled_from(OWNERS)))


@given(st.lists(changes, max_size=12))
def test_an_owner_has_the_seats_that_all_their_cards_list_as_its_own(changes: list[tuple[int, dict[str, str]]]) -> None:
    ledger = a_ledger(*CARDS)
    listed: dict[int, dict[str, str]] = {}
    for version, (card, owners) in enumerate(changes, start=10):
        listed[card] = owners
        holders = [a_stored_seat(uid, card, owner) for uid, owner in owners.items()]
        ledger.load(replace(stored(CARDS[card], *holders), resource_version=version))
        expected: dict[str, set[str]] = defaultdict(set)
        for owner in OWNERS:
            for uid in SEATS:
                if sum(each.get(uid) == owner for each in listed.values()) == 2:
                    expected[owner].add(uid)
        for owner in OWNERS:
            assert ledger.stored_seats.members(owner) <= expected[owner]


def test_a_seat_whose_owner_was_made_anew_between_its_cards_is_of_neither_until_they_agree() -> None:
    ledger = a_ledger(*CARDS)
    for version, (card, owner) in enumerate([(0, "first"), (1, "second")], start=10):
        holder = a_stored_seat("seat-1", card, owner)
        ledger.load(replace(stored(CARDS[card], holder), resource_version=version))
    assert ledger.stored_seats.members("first") == ledger.stored_seats.members("second") == set()
    for card in (0, 1):
        ledger.load(replace(stored(CARDS[card]), resource_version=20 + card))
    assert ledger.stored_seats.uids() == []
    assert ledger.stored_seats.members("first") == ledger.stored_seats.members("second") == set()
