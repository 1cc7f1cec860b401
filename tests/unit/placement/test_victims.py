"""Who has to leave a node so that a pod fits there."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from builders import a_card, a_holder, a_ledger, a_share, cards_of, mib, percent, stored, uuids, whole, whole_share
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts, Card
from gpuledger.model.node import Dialect, NodeOffer
from gpuledger.model.request import Demand, Lifetime
from gpuledger.placement.policy import Preference
from gpuledger.placement.preemption import search
from gpuledger.placement.preemption.victims import FREE, Cost, Eviction, Tenant, cheapest_eviction, cost_of

CARDS = cards_of(count=4)
QUARTER = 4_000


def occupied(pods: Mapping[str, list[Card]], memory_mib: int | None = None) -> Ledger:
    """Return four cards with pods on them, each with so much of its cards; with all of them, if nothing is said."""
    ledger = a_ledger(*CARDS)
    for card in CARDS:
        shares = whole_share(card) if memory_mib is None else a_share(card, memory_mib)
        ledger.load(stored(card, *(a_holder(uid, shares) for uid, cards in pods.items() if card in cards), version=2))
    return ledger


def chosen(
    ledger: Ledger,
    demands: tuple[Demand, ...],
    *tenants: Tenant,
    allowed: Mapping[str, int] | None = None,
    below: Cost | None = None,
    preference: Preference = Preference.BINPACK,
) -> Eviction | None:
    room, entries = ledger.node_room("node-a"), ledger.entries_of_node("node-a")
    by_uid = {tenant.uid: tenant for tenant in tenants}
    return cheapest_eviction(demands, room, entries, by_uid, allowed or {}, preference, below)


def victims(
    ledger: Ledger, demands: tuple[Demand, ...], *tenants: Tenant, allowed: Mapping[str, int] | None = None
) -> tuple[str, ...] | None:
    found = chosen(ledger, demands, *tenants, allowed=allowed)
    return None if found is None else found.victims


def test_three_of_four_quarters_of_each_card_leave_for_sixty_percent_of_each() -> None:
    ledger = occupied({f"low-{number}": CARDS for number in range(4)}, QUARTER)
    low = [Tenant(f"low-{number}", -1, started_s=number + 1) for number in range(4)]
    found = chosen(ledger, (percent(60, cards=4),), *low)
    assert found is not None
    assert found.victims == ("low-1", "low-2", "low-3")
    assert found.assignment == (uuids(CARDS),)
    assert found.cost == cost_of(low[1:], {})


def test_a_pod_on_several_cards_counts_once() -> None:
    ledger = occupied({"wide": CARDS[:2], "one": CARDS[2:3], "two": CARDS[3:]})
    tenants = [Tenant(uid, 0, 1) for uid in ("wide", "one", "two")]
    assert victims(ledger, (whole(2),), *tenants) == ("wide",)


def test_one_whole_card_takes_the_pod_that_has_started_last() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant(f"p{number}", 0, started_s) for number, started_s in enumerate((30, 10, 40, 20))]
    found = chosen(ledger, (whole(),), *tenants)
    assert found == Eviction("node-a", ("p2",), (uuids(CARDS[2:3]),), (0, 0, 2**31, 1, -40))


def test_a_pod_that_has_not_started_leaves_before_those_that_have() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant(f"p{number}", 0, started_s) for number, started_s in enumerate((30, 0, 40, 20))]
    assert victims(ledger, (whole(),), *tenants) == ("p1",)


def test_two_of_low_priority_leave_before_one_of_higher_priority() -> None:
    ledger = a_ledger(CARDS[0], CARDS[1])
    ledger.load(stored(CARDS[0], a_holder("high", whole_share(CARDS[0])), version=2))
    low = [a_holder(uid, a_share(CARDS[1], 8_000)) for uid in ("low-0", "low-1")]
    ledger.load(stored(CARDS[1], *low, version=2))
    tenants = [Tenant("high", 10), Tenant("low-0", -5), Tenant("low-1", 9)]
    assert victims(ledger, (whole(),), *tenants) == ("low-0", "low-1")


def test_among_negative_priorities_fewer_pods_leave() -> None:
    ledger = a_ledger(CARDS[0], CARDS[1])
    ledger.load(stored(CARDS[0], a_holder("one", whole_share(CARDS[0])), version=2))
    two = [a_holder(uid, a_share(CARDS[1], 8_000)) for uid in ("two-0", "two-1")]
    ledger.load(stored(CARDS[1], *two, version=2))
    assert victims(ledger, (whole(),), *(Tenant(uid, -7) for uid in ("one", "two-0", "two-1"))) == ("one",)


def test_a_budget_that_allows_no_eviction_is_kept_if_another_victim_will_do() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    guarded = [Tenant(f"p{number}", 0, 50, ("budget",)) for number in range(3)]
    other = Tenant("p3", 1_000, 1)
    for allowed in ({"budget": 0}, {"budget": -1}, {}):
        assert victims(ledger, (whole(),), *guarded, other, allowed=allowed) == ("p3",)
    assert victims(ledger, (whole(),), *guarded, other, allowed={"budget": 1}) == ("p0",)
    assert victims(ledger, (whole(2),), *guarded, other, allowed={"budget": 1}) == ("p0", "p3")


def test_a_budget_is_violated_if_nothing_else_helps() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    guarded = [Tenant(f"p{card.index}", 0, 50, ("budget",)) for card in CARDS]
    found = chosen(ledger, (whole(3),), *guarded, allowed={"budget": 1})
    assert found is not None
    assert found.cost[0] == 2


def test_what_a_budget_allows_is_kept_for_the_card_where_nobody_else_can_leave() -> None:
    ledger = a_ledger(*CARDS[:2])
    ledger.load(stored(CARDS[0], *(a_holder(uid, a_share(CARDS[0], 8_000)) for uid in ("late", "early")), version=2))
    ledger.load(stored(CARDS[1], a_holder("alone", whole_share(CARDS[1])), version=2))
    tenants = [Tenant("late", 0, 9, ("budget",)), Tenant("early", 0, 1), Tenant("alone", 0, 9, ("budget",))]
    assert victims(ledger, (percent(50, cards=2),), *tenants, allowed={"budget": 2}) == ("alone", "late")
    assert victims(ledger, (percent(50, cards=2),), *tenants, allowed={"budget": 1}) == ("alone", "early")


def test_who_is_no_tenant_stays() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    assert victims(ledger, (whole(),), Tenant("p3", 5)) == ("p3",)
    assert victims(ledger, (whole(2),), Tenant("p3", 5)) is None
    assert victims(ledger, (whole(),)) is None


@pytest.mark.parametrize(
    "demand", [mib(16_001), mib(100, cards=5), Demand(1, 100, cores=101)], ids=["memory", "cards", "cores"]
)
def test_nobody_leaves_for_what_never_fits(demand: Demand) -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    assert victims(ledger, (demand,), *(Tenant(f"p{card.index}", 0) for card in CARDS)) is None


def test_nobody_leaves_a_card_that_is_broken_or_not_there() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    broken = replace(CARDS[1], healthy=False)
    ledger.load(stored(broken, a_holder("p1", whole_share(broken)), version=3))
    ledger.set_reported(CARDS[2].uuid, False)
    tenants = [Tenant("p0", 9), Tenant("p1", 0), Tenant("p2", 0), Tenant("p3", 8)]
    assert victims(ledger, (whole(),), *tenants) == ("p3",)
    assert victims(ledger, (whole(3),), *tenants) is None


def test_nobody_leaves_a_node_that_would_not_take_the_pod() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant(f"p{card.index}", 0) for card in CARDS]
    assert victims(ledger, (replace(whole(), resource="example.com/gpu"),), *tenants) is None
    ledger.set_offer("node-a", NodeOffer(Dialect.VOLCANO))
    assert victims(ledger, (whole(), whole(lifetime=Lifetime.INIT)), *tenants) is None
    ledger.set_offer("node-a", None)
    assert victims(ledger, (whole(),), *tenants) is None


def test_nobody_has_to_leave_where_the_pod_fits() -> None:
    found = chosen(occupied({"p0": CARDS}, QUARTER), (mib(100),), Tenant("p0", 0))
    assert found == Eviction("node-a", (), (uuids(CARDS[:1]),), FREE)


def test_room_of_a_pod_that_leaves_anyway_is_free() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant("p0", 0), Tenant("p1", 100, leaves=True, budgets=("budget",)), Tenant("p2", 0), Tenant("p3", 0)]
    assert victims(ledger, (whole(),), *tenants) == ()
    found = chosen(ledger, (whole(2),), *tenants)
    assert found is not None
    assert len(found.victims) == 1
    assert "p1" not in found.victims
    assert CARDS[1].uuid in found.assignment[0]


def test_nothing_is_found_that_is_not_cheaper_than_what_is_known() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant(f"p{card.index}", 0, 10) for card in CARDS]
    assert chosen(ledger, (whole(),), *tenants, below=cost_of(tenants[:1], {})) is None
    assert chosen(ledger, (whole(),), *tenants, below=cost_of(tenants[:2], {})) is not None
    assert chosen(a_ledger(*CARDS), (whole(),), below=FREE) is None


def test_the_preference_chooses_among_the_cards_that_are_free_then() -> None:
    ledger = occupied({"p0": CARDS[:2]})
    ledger.load(stored(CARDS[2], a_holder("stays", a_share(CARDS[2], 9_000)), version=3))
    ledger.load(stored(CARDS[3], a_holder("stays too", whole_share(CARDS[3])), version=3))
    tenants = [Tenant("p0", 0)]
    spread = chosen(ledger, (mib(8_000),), *tenants, preference=Preference.SPREAD)
    assert spread is not None
    assert spread.assignment == ((CARDS[0].uuid,),)
    packed = chosen(ledger, (mib(7_000, cards=2),), *tenants, preference=Preference.BINPACK)
    assert packed is not None
    assert packed.assignment == ((CARDS[0].uuid, CARDS[2].uuid),)


def test_cards_on_one_numa_node_are_freed_together() -> None:
    cards = [replace(card, numa_node=card.index // 2) for card in CARDS]
    ledger = a_ledger(*cards)
    for card, priority in zip(cards, (1, 4, 3, 3), strict=True):
        ledger.load(stored(card, a_holder(f"p{priority}-{card.index}", whole_share(card)), version=2))
    tenants = [Tenant("p1-0", 1), Tenant("p4-1", 4), Tenant("p3-2", 3), Tenant("p3-3", 3)]
    assert victims(ledger, (replace(whole(2), one_numa_node=True),), *tenants) == ("p3-2", "p3-3")
    assert victims(ledger, (whole(2),), *tenants) == ("p1-0", "p3-2")


def test_containers_that_never_run_together_need_room_once() -> None:
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant(f"p{card.index}", 0, card.index + 1) for card in CARDS]
    assert victims(ledger, (whole(lifetime=Lifetime.INIT), whole()), *tenants) == ("p3",)
    assert victims(ledger, (whole(), whole()), *tenants) == ("p2", "p3")


def test_victims_of_a_card_of_many_unlike_pods_are_found_though_not_all_sets_are_looked_at() -> None:
    card = replace(a_card(), capacity=Amounts(1_000, 100, 64))
    sizes = [10 + number for number in range(24)]
    ledger = a_ledger(card)
    holders = [a_holder(f"p{size}", a_share(card, size)) for size in sizes]
    ledger.load(stored(card, *holders, version=2))
    tenants = [Tenant(f"p{size}", size % 5, size) for size in sizes]
    found = victims(ledger, (mib(800),), *tenants)
    assert found is not None
    freed = 1_000 - sum(sizes) + sum(int(uid[1:]) for uid in found)
    assert freed >= 800 > freed - min(int(uid[1:]) for uid in found)


def test_victims_are_found_when_the_search_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "LOOKS_LIMIT", 0)
    ledger = occupied({f"p{card.index}": [card] for card in CARDS})
    tenants = [Tenant(f"p{number}", 0, started_s) for number, started_s in enumerate((30, 10, 40, 20))]
    assert victims(ledger, (whole(), whole()), *tenants) == ("p0", "p2")
