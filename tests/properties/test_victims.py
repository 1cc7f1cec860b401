"""The choice of victims against brute force over all sets of pods, in small clusters that are drawn at random."""

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import OFFER, a_card, a_holder, a_share
from effort import seeds_for, times
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import Amounts, Card, CardRule
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, Lifetime, Shape, phases
from gpuledger.model.share import LOWEST_PRIORITY, Holder, Placement, StoredCard
from gpuledger.placement.fit import choose_cards, fits
from gpuledger.placement.policy import CARD_RANKS, Preference
from gpuledger.placement.preemption import search
from gpuledger.placement.preemption import search as sets
from gpuledger.placement.preemption.tenants import FREE, joined, need_on, together
from gpuledger.placement.preemption.victims import Cost, Eviction, Tenant, cheapest_eviction, cost_of, node_without

AT_ONCE = 100
"""Clusters of one test."""

CAPACITIES = [Amounts(8, 100, 4), Amounts(8, 100, 10), Amounts(12, 100, 10), Amounts(8, 50, 3)]
PRIORITIES = [LOWEST_PRIORITY, -10, 0, 0, 5, 100]
LEAVING, FIXED = 0.05, 0.1
"""Chances that a pod leaves anyway, and that it must stay."""


@pytest.fixture(params=seeds_for("clusters", times(1, 20)))
def seeds(request: pytest.FixtureRequest) -> range:
    """Return the seeds of some clusters; a test's name has the first of them."""
    return range(request.param, request.param + AT_ONCE)


@dataclass(frozen=True)
class Scene:
    """A small cluster and a request."""

    cards: dict[str, list[Card]]
    """Node name -> its cards."""
    holders: dict[str, list[Holder]]
    """Card UUID -> who has it."""
    tenants: dict[str, Tenant]
    allowed: dict[str, int]
    shape: Shape
    preference: Preference

    def ledger(self, without: Collection[str] = ()) -> Ledger:
        """Return all nodes in a ledger, without some pods."""
        ledger = Ledger()
        for node_name, cards in self.cards.items():
            ledger.set_offer(node_name, OFFER)
            for card in cards:
                holders = [holder for holder in self.holders[card.uuid] if holder.pod.uid not in without]
                ledger.load(StoredCard(card, 1, tuple(holders)))
        return ledger

    def fits(self, node_name: str, without: Collection[str]) -> bool:
        """Return whether the pod fits on a node when these pods and those that leave anyway are gone."""
        leaving = [uid for uid, tenant in self.tenants.items() if tenant.leaves or tenant.uid in without]
        one = replace(self, cards={node_name: self.cards[node_name]})
        room = one.ledger([*leaving, *without]).node_room(node_name)
        return not isinstance(choose_cards(self.shape, room, self.preference), Refusal)

    def cost(self, uids: Collection[str]) -> Cost:
        return cost_of({self.tenants[uid].uid: self.tenants[uid] for uid in uids}.values(), self.allowed)

    def on_node(self, node_name: str) -> list[str]:
        """Return the pods on a node that may be chosen; one of those that leave together."""
        there = {holder.pod.uid for card in self.cards[node_name] for holder in self.holders[card.uuid]}
        return sorted({self.tenants[uid].uid for uid in there if uid in self.tenants and not self.tenants[uid].leaves})

    def brute_force(self) -> Cost | None:
        """Try all sets of pods of all nodes, the cheapest first."""
        possible = [name for name in self.cards if self.fits(name, self.on_node(name))]
        sets = [(self.cost(uids), name, uids) for name in possible for uids in subsets(self.on_node(name))]
        return next((cost for cost, name, uids in sorted(sets) if self.fits(name, uids)), None)

    def found(self, ledger: Ledger) -> Eviction | None:
        """Ask node after node, each time for what is cheaper than the best so far."""
        best: Eviction | None = None
        for name in self.cards:
            below = best.cost if best else None
            best = self.asked(ledger, name, below) or best
        return best

    def asked(self, ledger: Ledger, name: str, below: Cost | None = None) -> Eviction | None:
        room, entries = ledger.node_room(name), ledger.entries_of_node(name)
        return cheapest_eviction(self.shape, room, entries, self.tenants, self.allowed, self.preference, below)


def with_gangs(scene: Scene, seed: int) -> Scene:
    """Have some of the pods, of whatever nodes, leave together."""
    chance, tenants = random.Random(seed), dict(scene.tenants)  # noqa: S311 - no secret
    alone = [uid for uid in sorted(tenants) if not tenants[uid].leaves]
    chance.shuffle(alone)
    while len(alone) > 1 and chance.random() < 0.7:
        size = chance.choice([2, 2, 3, 4])
        gang, alone = alone[:size], alone[size:]
        unit = together([tenants[uid] for uid in gang])
        tenants |= dict.fromkeys(gang, unit)
    return replace(scene, tenants=tenants)


def with_rules(scene: Scene, seed: int) -> Scene:
    """Have the containers' cards match or differ, some of them together."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    cards = {
        name: [replace(card, pcie_root=chance.choice("aabbc"), model=chance.choice("xy")) for card in here]
        for name, here in scene.cards.items()
    }
    attributes = ["resource.kubernetes.io/pcieRoot", "gpu.gpuledger.dev/model", "gpu.gpuledger.dev/uuid"]
    rules = [
        CardRule(chance.choice(attributes), number, distinct=chance.random() < 0.5)
        for number in range(chance.choice([1, 1, 2]))
    ]
    shape = tuple(
        replace(demand, rules=tuple(rule for rule in rules if chance.random() < 0.8)) for demand in scene.shape
    )
    if chance.random() < 0.1:
        shape = (replace(shape[0], cards=1, every_card=True), *shape[1:])
    return replace(scene, cards=cards, shape=shape)


def subsets(uids: Collection[str]) -> Iterator[tuple[str, ...]]:
    for number in range(len(uids) + 1):
        yield from combinations(uids, number)


def a_scene(seed: int, nodes: int = 4, pods: int = 9) -> Scene:
    """Draw a scene: up to so many nodes, and pods on each."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    cards: dict[str, list[Card]] = {}
    holders: dict[str, list[Holder]] = {}
    tenants: dict[str, Tenant] = {}
    numa = chance.random() < 0.4
    budgets = chance.choice([(), ("a",), ("a", "b", "c")])
    for node in range(chance.randint(1, nodes)):
        name = f"node-{node}"
        cards[name] = some_cards(chance, name, numa)
        fill(chance, cards[name], holders, pods)
        uids = {holder.pod.uid for card in cards[name] for holder in holders[card.uuid]}
        for uid in sorted(uids):
            if chance.random() >= FIXED:
                tenants[uid] = a_tenant(chance, uid, budgets)
    allowed = {name: chance.choice([-1, 0, 0, 1, 1, 2, 3]) for name in budgets[:2]}
    shape = tuple(a_demand(chance, numa) for _ in range(chance.choice([1, 1, 1, 1, 2, 2, 3])))
    return Scene(cards, holders, tenants, allowed, shape, chance.choice(list(CARD_RANKS)))


def some_cards(chance: random.Random, name: str, numa: bool) -> list[Card]:
    alike = chance.choice([*CAPACITIES, None])
    return [
        replace(
            a_card(index, name, healthy=chance.random() < 0.95),
            capacity=alike or chance.choice(CAPACITIES),
            numa_node=chance.choice([None, 0, 1]) if numa else None,
        )
        for index in range(chance.choice([1, 2, 3, 3, 4, 4]))
    ]


def fill(chance: random.Random, cards: list[Card], holders: dict[str, list[Holder]], pods: int) -> None:
    """Put pods on the cards of a node, as long as there is room where they are tried."""
    left = {card.uuid: card.capacity for card in cards}
    holders |= {card.uuid: [] for card in cards}
    for number in range(chance.choice([pods // 2, 3 * pods])):
        if len({holder.pod.uid for card in cards for holder in holders[card.uuid]}) == pods:
            return
        uid = f"{cards[0].node_name}-{number}"
        exclusive = chance.random() < 0.08
        amounts = Amounts(chance.choice([1, 2, 2, 3, 3, 5]), chance.choice([0, 0, 20, 40]), 1)
        for card in chance.sample(cards, min(len(cards), chance.choice([1, 1, 1, 1, 2, 3]))):
            amounts = card.capacity if exclusive else amounts
            here = holders[card.uuid]
            alone = exclusive or any(holder.share.exclusive for holder in here)
            if amounts.fits_in(left[card.uuid]) and not (alone and here):
                left[card.uuid] -= amounts
                share = a_share(card, amounts.memory_mib, amounts.cores, amounts.number, exclusive=exclusive)
                here.append(a_holder(uid, share))


def a_tenant(chance: random.Random, uid: str, budgets: tuple[str, ...]) -> Tenant:
    covered = tuple(name for name in budgets if chance.random() < 0.4)
    return Tenant(uid, chance.choice(PRIORITIES), chance.randint(0, 5), covered, chance.random() < LEAVING)


def a_demand(chance: random.Random, numa: bool) -> Demand:
    cards = chance.choice([1, 1, 2, 2, 3])
    memory_mib, percent = chance.choice([(2, 100), (4, 100), (6, 100), (8, 100), (None, 50), (None, 60), (None, 100)])
    cores = chance.choice([0, 0, 30, 100])
    whole = memory_mib is None and percent == 100 and cores == 0
    lifetime = chance.choice([Lifetime.MAIN, Lifetime.MAIN, Lifetime.MAIN, Lifetime.INIT, Lifetime.SIDECAR])
    bound = numa and chance.random() < 0.5
    return Demand(cards, memory_mib, percent, cores, whole or cores == 100, lifetime, one_numa_node=bound)


@pytest.mark.parametrize("first", seeds_for("the cheapest victims", times(3, 50, check=1)))
@pytest.mark.parametrize("kind", ["plain", "gangs", "rules"])
def test_no_other_set_of_pods_on_any_node_is_cheaper(first: int, kind: str) -> None:
    changed = {"plain": lambda scene, _: scene, "gangs": with_gangs, "rules": with_rules}[kind]
    for seed in range(first, first + AT_ONCE):
        scene = changed(a_scene(seed), seed)
        found = scene.found(scene.ledger())
        assert (found and found.cost) == scene.brute_force(), seed
        if found:
            assert found.cost == scene.cost(found.victims), seed
            assert scene.fits(found.node_name, found.victims), seed
            assert {mate for uid in found.victims for mate in scene.tenants[uid].uids} == {*found.victims}, seed
            leaving = [uid for uid, tenant in scene.tenants.items() if tenant.leaves]
            room = scene.ledger([*leaving, *found.victims]).node_room(found.node_name)
            assert found.assignment == choose_cards(scene.shape, room, scene.preference), seed


@pytest.mark.parametrize("limit", [0, 5, 50])
def test_with_too_little_time_the_victims_are_still_enough_and_none_too_many(
    limit: int, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "LOOKS_LIMIT", limit)
    monkeypatch.setattr(sets, "STEPS_LIMIT", limit)
    for seed in seeds:
        scene = a_scene(seed)
        ledger = scene.ledger()
        for name in scene.cards:
            found = scene.asked(ledger, name)
            assert (found is not None) == scene.fits(name, scene.on_node(name)), seed
            if found:
                assert scene.fits(name, found.victims), seed
                fewer = combinations(found.victims, len(found.victims) - 1) if found.victims else ()
                assert not any(scene.fits(name, uids) for uids in fewer), seed


def test_who_is_no_tenant_or_leaves_anyway_is_never_a_victim(seeds: range) -> None:
    for seed in seeds:
        scene = a_scene(seed)
        found = scene.found(scene.ledger())
        assert set(found.victims if found else ()) <= set(scene.on_node(found.node_name) if found else ()), seed


def test_nothing_is_found_that_costs_as_much_as_what_is_known(seeds: range) -> None:
    for seed in seeds:
        scene = a_scene(seed, nodes=1)
        ledger = scene.ledger()
        found = scene.asked(ledger, "node-0")
        if found:
            dearer = (*found.cost[:4], found.cost[4] + 1)
            assert scene.asked(ledger, "node-0", below=found.cost) is None, seed
            assert scene.asked(ledger, "node-0", below=dearer) == found, seed


def test_the_order_in_which_pods_became_known_makes_no_difference(seeds: range) -> None:
    for seed in seeds:
        scene = a_scene(seed, nodes=1)
        turned = replace(scene, holders={uuid: here[::-1] for uuid, here in scene.holders.items()})
        assert scene.asked(scene.ledger(), "node-0") == turned.asked(turned.ledger(), "node-0"), seed


def test_what_is_on_hold_counts_like_what_is_stored(seeds: range) -> None:
    for seed in seeds:
        scene = a_scene(seed, nodes=1)
        ledger = replace(scene, holders={uuid: [] for uuid in scene.holders}).ledger()
        shares: dict[str, list[Holder]] = {}
        for card in scene.cards["node-0"]:
            for holder in scene.holders[card.uuid]:
                shares.setdefault(holder.pod.uid, []).append(holder)
        for uid, its_holders in shares.items():
            placement = Placement("node-0", tuple(holder.share for holder in its_holders))
            ledger.seats.take(Seat(uid, placement, until_s=10.0))
        assert scene.asked(ledger, "node-0") == scene.asked(scene.ledger(), "node-0"), seed


def test_a_node_without_some_pods_is_what_a_ledger_without_them_shows(seeds: range) -> None:
    for seed in seeds:
        scene = a_scene(seed, nodes=1)
        ledger, uids = scene.ledger(), scene.on_node("node-0")[::2]
        without = node_without(ledger.node_room("node-0"), ledger.entries_of_node("node-0"), uids)
        assert without == scene.ledger(uids).node_room("node-0"), seed


def test_what_a_container_needs_of_a_card_says_the_same_as_placement(seeds: range) -> None:
    for seed in seeds:
        scene = a_scene(seed)
        ledger = scene.ledger()
        rooms = [room for name in scene.cards for room in ledger.node_room(name).rooms]
        for room, container in product(rooms, range(len(scene.shape))):
            need = need_on(room.card, scene.shape, (container,), phases(scene.shape))
            free = (room.free.memory_mib, room.free.cores, room.free.number)
            is_open = need is not None and not room.shut and (room.idle or not need.idle)
            enough = need is not None and all(wanted <= left for wanted, left in zip(need.free, free, strict=True))
            assert (is_open and enough) == fits(scene.shape[container], room), seed


# Costs.

names = st.sampled_from(["a", "b", "c"])
tenants = st.builds(
    Tenant,
    uid=st.text(min_size=8, max_size=8),
    priority=st.sampled_from(PRIORITIES),
    started_s=st.integers(0, 9),
    budgets=st.lists(names, unique=True).map(tuple),
    leaves=st.sampled_from([False] * 9 + [True]),
)
budgets = st.dictionaries(names, st.integers(-2, 3))


@given(victims=st.lists(tenants, max_size=6), one_more=tenants, allowed=budgets)
def test_one_more_victim_always_costs_more(victims: list[Tenant], one_more: Tenant, allowed: Mapping[str, int]) -> None:
    before, after = cost_of(victims, allowed), cost_of([*victims, one_more], allowed)
    assert after == before if one_more.leaves else after > before >= FREE


@given(victims=st.lists(tenants, max_size=6), data=st.data(), allowed=budgets)
def test_the_order_of_victims_makes_no_difference(
    victims: list[Tenant], data: st.DataObject, allowed: Mapping[str, int]
) -> None:
    assert cost_of(data.draw(st.permutations(victims)), allowed) == cost_of(victims, allowed)


@given(one=st.lists(tenants, max_size=4), other=st.lists(tenants, max_size=4))
def test_without_budgets_that_allow_some_costs_of_two_sets_add_up(one: list[Tenant], other: list[Tenant]) -> None:
    assert joined(cost_of(one, {}), cost_of(other, {})) == cost_of([*one, *other], {})
