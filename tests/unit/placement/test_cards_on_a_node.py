"""Which cards of a node a pod gets."""

import time
from typing import Any

import pytest

from builders import a_card, a_ledger, a_share, cards_of, mib, occupy, percent, uuids, whole
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.request import Demand, Lifetime
from gpuledger.model.share import Assignment
from gpuledger.placement import fit
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS, Preference

CARDS = cards_of(count=4)


def chosen(ledger: Ledger, *demands: Demand, cards: Preference = Preference.BINPACK) -> Assignment:
    """Return the cards of a pod that fits."""
    found = choose_cards(demands, ledger.node_room("node-a"), cards)
    assert not isinstance(found, Refusal), found
    return found


def refused(ledger: Ledger, *demands: Demand) -> Reason:
    """Return why a pod does not fit."""
    found = choose_cards(demands, ledger.node_room("node-a"), Preference.BINPACK)
    assert isinstance(found, Refusal)
    return found.reason


def used_unevenly() -> Ledger:
    """Return four cards, of which the third is the fullest and the second comes next."""
    ledger = a_ledger(*CARDS)
    occupy(ledger, "little", a_share(CARDS[1], 2_000))
    occupy(ledger, "much", a_share(CARDS[2], 9_000))
    return ledger


def test_binpack_takes_the_fullest_card_that_fits() -> None:
    assert chosen(used_unevenly(), mib(1_000)) == ((CARDS[2].uuid,),)
    assert chosen(used_unevenly(), mib(10_000)) == ((CARDS[1].uuid,),)


def test_spread_takes_the_emptiest_card() -> None:
    assert chosen(used_unevenly(), mib(1_000), cards=Preference.SPREAD) == ((CARDS[0].uuid,),)


@pytest.mark.parametrize("preference", list(CARD_RANKS))
def test_the_index_breaks_ties(preference: Preference) -> None:
    ledger = a_ledger(*reversed(CARDS))
    assert chosen(ledger, whole(2), cards=preference) == (uuids(CARDS[:2]),)


@pytest.mark.parametrize("preference", list(CARD_RANKS))
def test_the_uuid_breaks_ties_between_equal_indexes(preference: Preference) -> None:
    ledger = a_ledger(a_card(0, uuid="GPU-b"), a_card(0, uuid="GPU-a"))
    assert chosen(ledger, mib(1), cards=preference) == (("GPU-a",),)


def test_equal_memory_is_told_apart_by_cores_and_then_by_slots() -> None:
    ledger = a_ledger(*CARDS[:3])
    occupy(ledger, "cores", a_share(CARDS[2], 1_000, 50))
    occupy(ledger, "slots", a_share(CARDS[1], 1_000, 0, 2))
    occupy(ledger, "one", a_share(CARDS[0], 1_000, 0, 1))
    assert chosen(ledger, mib(1)) == ((CARDS[2].uuid,),)
    assert chosen(ledger, mib(1, cores=60)) == ((CARDS[1].uuid,),)


def test_several_cards_of_a_container_are_different_and_by_index() -> None:
    assert chosen(used_unevenly(), mib(1_000, cards=3)) == (uuids([CARDS[0], CARDS[1], CARDS[2]]),)


def test_containers_of_a_pod_share_a_card_when_it_holds_both() -> None:
    assert chosen(a_ledger(*CARDS), mib(8_000), mib(8_000)) == ((CARDS[0].uuid,), (CARDS[0].uuid,))


def test_containers_of_a_pod_part_when_one_card_does_not_hold_both() -> None:
    assert sorted(chosen(a_ledger(*CARDS), mib(8_000), mib(8_001))) == [(CARDS[0].uuid,), (CARDS[1].uuid,)]


def test_a_whole_card_is_not_shared_with_the_pods_other_containers() -> None:
    first, second = chosen(a_ledger(*CARDS), whole(), mib(1))
    assert first != second
    assert refused(a_ledger(CARDS[0]), whole(), mib(1)) is Reason.CONTAINERS_TOGETHER


def test_a_container_with_all_cores_is_alone_even_where_memory_is_left() -> None:
    alone, other = mib(1_000, cores=100), mib(1_000)
    first, second = chosen(a_ledger(*CARDS), alone, other)
    assert first != second
    assert refused(a_ledger(CARDS[0]), alone, other) is Reason.CONTAINERS_TOGETHER


def test_containers_part_where_a_third_needs_what_is_left_on_both_cards() -> None:
    first, second, both = chosen(a_ledger(*CARDS[:2]), mib(8_000), mib(8_000), mib(6_000, cards=2))
    assert first != second
    assert both == uuids(CARDS[:2])


def test_an_init_container_gets_the_card_that_the_main_one_has() -> None:
    ledger = used_unevenly()
    init, main = chosen(ledger, mib(1_000, lifetime=Lifetime.INIT), mib(12_000))
    assert init == main == (CARDS[1].uuid,)


def test_an_init_container_may_have_the_whole_card_of_its_main_container() -> None:
    one = a_ledger(CARDS[0])
    assert chosen(one, whole(lifetime=Lifetime.INIT), whole()) == ((CARDS[0].uuid,), (CARDS[0].uuid,))


def test_a_sidecar_and_its_main_container_need_room_together() -> None:
    one = a_ledger(CARDS[0])
    assert refused(one, mib(8_000, lifetime=Lifetime.SIDECAR), mib(8_001)) is Reason.CONTAINERS_TOGETHER
    assert chosen(one, mib(8_000, lifetime=Lifetime.INIT), mib(8_001))


def test_an_init_container_does_not_meet_a_sidecar_that_starts_later() -> None:
    one, init, sidecar = a_ledger(CARDS[0]), mib(9_000, lifetime=Lifetime.INIT), mib(9_000, lifetime=Lifetime.SIDECAR)
    assert chosen(one, init, sidecar)
    assert refused(one, sidecar, init) is Reason.CONTAINERS_TOGETHER


def test_the_search_goes_on_where_the_preferred_card_leads_nowhere() -> None:
    cards = [a_card(0, memory_mib=10_000), a_card(1, memory_mib=6_000, cores=40)]
    ledger = a_ledger(*cards)
    assert chosen(ledger, mib(6_000, cores=30), mib(5_000, cores=80)) == ((cards[1].uuid,), (cards[0].uuid,))


def test_percentages_are_of_each_card() -> None:
    cards = [a_card(0, memory_mib=10_000), a_card(1, memory_mib=20_000)]
    ledger = a_ledger(*cards)
    occupy(ledger, "p", a_share(cards[0], 6_000), a_share(cards[1], 6_000))
    assert chosen(ledger, percent(50)) == ((cards[1].uuid,),)


def test_without_cores_a_container_stays_out_where_all_are_promised() -> None:
    ledger = a_ledger(*CARDS[:2])
    occupy(ledger, "p", a_share(CARDS[0], 1_000, 100))
    assert chosen(ledger, mib(1_000)) == ((CARDS[1].uuid,),)


def test_a_card_alone_with_all_cores_but_little_memory_takes_nobody_else() -> None:
    ledger = a_ledger(CARDS[0])
    (assignment,) = chosen(ledger, mib(1_000, cores=100))
    occupy(ledger, "alone", a_share(CARDS[0], 1_000, 100, exclusive=True))
    assert assignment == (CARDS[0].uuid,)
    assert refused(ledger, mib(1_000)) is Reason.NO_CORES


def test_whoever_asks_for_much_of_a_large_node_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 equal cards there are 2,496,144 ways to choose 11, and each comes to the same."""
    compared: list[object] = []
    kind = fit._Search._kind

    def counted(*args: Any) -> Any:
        compared.append(args)
        return kind(*args)

    monkeypatch.setattr(fit._Search, "_kind", counted)
    began_s = time.process_time()
    assert refused(a_ledger(*cards_of(count=24)), whole(11), whole(14)) is Reason.CONTAINERS_TOGETHER
    assert len(compared) < 1_000
    assert time.process_time() - began_s < 2
