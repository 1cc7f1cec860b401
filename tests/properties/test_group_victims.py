"""The choice of victims for several pods at once against brute force, in small clusters that are drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import pytest

from effort import seeds_for, times
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import CardRule, attribute_of
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, Shape
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.preemption.group import EXACT_TOGETHER, GroupEviction, GroupNode, Kind, cheapest_group_eviction
from gpuledger.placement.preemption.tenants import Cost, Tenant, cost_of
from properties.test_victims import Scene, a_scene, with_gangs, with_rules

AT_ONCE = 60
"""Clusters of one test."""

MUCH = 10_000_000


@pytest.fixture(params=seeds_for("groups", times(3, 40, check=1)))
def seeds(request: pytest.FixtureRequest) -> range:
    """Return the seeds of some clusters; a test's name has the first of them."""
    return range(request.param, request.param + AT_ONCE)


def a_group(seed: int) -> tuple[Scene, list[Kind]]:
    """Draw a cluster, and a group of two to four pods of one kind or two."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    scene = a_scene(seed, nodes=3, pods=chance.choice([3, 4]))
    scene = with_gangs(scene, seed) if chance.random() < 0.7 else scene
    kinds: list[Kind] = []
    for _ in range(chance.choice([1, 1, 2])):
        cards = chance.choice([1, 1, 1, 2])
        memory_mib, percent = chance.choice([(2, 100), (4, 100), (6, 100), (None, 50), (None, 100)])
        whole = (memory_mib, percent) == (None, 100)
        demand = Demand(cards, memory_mib, percent, chance.choice([0, 0, 30]) if not whole else 0, whole)
        shape = (demand,) if chance.random() < 0.8 else (demand, Demand(1, 2))
        names = [name for name in scene.cards if chance.random() < 0.85]
        kinds.append(Kind(shape, chance.choice([1, 2, 2, 3] if not kinds else [1, 2]), frozenset(names)))
    if chance.random() < 0.3:
        scene, kinds = with_rules(scene, seed), [replace(kind, shape=ruled(chance, kind.shape)) for kind in kinds]
    return scene, kinds


def ruled(chance: random.Random, shape: Shape) -> Shape:
    """Have each pod's cards match or differ."""
    rule = CardRule("resource.kubernetes.io/pcieRoot", 0, distinct=chance.random() < 0.5)
    return tuple(replace(demand, rules=(rule,)) for demand in shape)


def of_member(position: int, demand: Demand) -> Demand:
    """Return a demand of one of several pods as if all were one pod: its rules are about no other pod's cards."""
    return replace(demand, rules=tuple(replace(rule, constraint=position) for rule in demand.rules))


def nodes_of(scene: Scene) -> list[GroupNode]:
    ledger = scene.ledger()
    return [GroupNode(ledger.node_room(n), ledger.entries_of_node(n), scene.tenants) for n in scene.cards]


def found(scene: Scene, kinds: list[Kind], work: int = MUCH) -> GroupEviction | None:
    nodes = [replace(node, tenants=on_node(scene, node.room.name)) for node in nodes_of(scene)]
    return cheapest_group_eviction(kinds, nodes, scene.allowed, StepBudget(work))


def on_node(scene: Scene, name: str) -> dict[str, Tenant]:
    there = {holder.pod.uid for card in scene.cards[name] for holder in scene.holders[card.uuid]}
    return {uid: scene.tenants[uid] for uid in there if uid in scene.tenants}


def units(scene: Scene) -> list[Tenant]:
    found = {tenant.uid: tenant for tenant in scene.tenants.values() if not tenant.leaves}
    there = {holder.pod.uid for holders in scene.holders.values() for holder in holders}
    return [tenant for tenant in found.values() if not there.isdisjoint(tenant.uids)]


def brute_force(scene: Scene, kinds: list[Kind]) -> Cost | None:
    """Try all sets of pods, the cheapest first, and for each all ways to share the group out among the nodes."""
    leaving = [uid for uid, tenant in scene.tenants.items() if tenant.leaves]
    members = [kind for kind in kinds for _ in range(kind.number)]
    ways = [way for way in product(scene.cards, repeat=len(members)) if allowed_way(members, way)]
    everybody = units(scene)
    sets = [each for number in range(len(everybody) + 1) for each in combinations(everybody, number)]
    for cost, victims in sorted(((cost_of(each, scene.allowed), each) for each in sets), key=lambda each: each[0]):
        place = Places(scene.ledger([*leaving, *(uid for tenant in victims for uid in tenant.uids)]), members)
        if any(place.for_all(way) for way in ways):
            return cost
    return None


@dataclass
class Places:
    """What fits together on each node of a ledger."""

    ledger: Ledger
    members: list[Kind]
    known: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def for_all(self, way: tuple[str, ...]) -> bool:
        """Return whether all fit if they are shared out like this."""
        parts = {name: tuple(i for i, its in enumerate(way) if its == name) for name in way}
        return all(self._takes(name, here) for name, here in parts.items())

    def _takes(self, name: str, here: tuple[int, ...]) -> bool:
        if (name, here) not in self.known:
            shape = tuple(of_member(i, demand) for i in here for demand in self.members[i].shape)
            found = choose_cards(shape, self.ledger.node_room(name), Preference.BINPACK)
            self.known[name, here] = not isinstance(found, Refusal)
        return self.known[name, here]


def allowed_way(members: list[Kind], way: tuple[str, ...]) -> bool:
    return all(name in kind.node_names for kind, name in zip(members, way, strict=True))


def test_no_other_set_of_pods_makes_room_for_all_at_less_cost(seeds: range) -> None:
    for seed in seeds:
        scene, kinds = a_group(seed)
        if len(units(scene)) > 9:
            continue
        result, best = found(scene, kinds), brute_force(scene, kinds)
        if sum(kind.number * len(kind.shape) for kind in kinds) <= EXACT_TOGETHER:
            assert (result and result.cost) == best, seed
        elif result is not None:
            assert best is not None, seed
            assert result.cost >= best, seed


def test_all_of_the_group_get_places_that_fit_together_once_the_victims_are_gone(seeds: range) -> None:
    for seed in seeds:
        scene, kinds = a_group(seed)
        check_places(scene, kinds, found(scene, kinds), seed)


@pytest.mark.parametrize("work", [0, 20, 200])
def test_with_little_work_nobody_leaves_for_half_a_group(seeds: range, work: int) -> None:
    for seed in seeds:
        scene, kinds = a_group(seed)
        check_places(scene, kinds, found(scene, kinds, work), seed)


def check_places(scene: Scene, kinds: list[Kind], result: GroupEviction | None, seed: int) -> None:
    if result is None:
        return
    assert {mate for uid in result.victims for mate in scene.tenants[uid].uids} == {*result.victims}, seed
    placed = [seat.kind for seat in result.seats]
    assert [placed.count(position) for position in range(len(kinds))] == [kind.number for kind in kinds], seed
    leaving = [uid for uid, tenant in scene.tenants.items() if tenant.leaves]
    ledger = scene.ledger([*leaving, *result.victims])
    for name in {seat.node_name for seat in result.seats}:
        here = [seat for seat in result.seats if seat.node_name == name]
        shape = tuple(demand for seat in here for demand in kinds[seat.kind].shape)
        assert all(name in kinds[seat.kind].node_names for seat in here), seed
        for room in ledger.node_room(name).rooms:
            given = [cards for seat in here for cards in seat.assignment]
            on_card = [d for d, cards in zip(shape, given, strict=True) if room.card.uuid in cards]
            taken = [demand.amounts_on(room.card.capacity) for demand in on_card]
            assert sum(amounts.memory_mib for amounts in taken) <= max(0, room.free.memory_mib), seed
            assert sum(amounts.cores for amounts in taken) <= max(0, room.free.cores), seed
            assert not (any(demand.exclusive for demand in on_card) and (len(on_card) > 1 or not room.idle)), seed
        for seat in here:
            number = [len(set(cards)) for cards in seat.assignment]
            assert number == [demand.cards for demand in kinds[seat.kind].shape], seed
            by_uuid = {room.card.uuid: room.card for room in ledger.node_room(name).rooms}
            for rule in {rule for demand in kinds[seat.kind].shape for rule in demand.rules}:
                values = [attribute_of(by_uuid[uuid], rule.attribute) for cards in seat.assignment for uuid in cards]
                assert len({*values}) == (len(values) if rule.distinct else 1), seed
