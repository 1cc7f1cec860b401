"""Placement against brute force: what it gives is valid, what it refuses is impossible, what it remembers is true."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import OFFER, a_card, a_holder, a_ledger, a_request, a_share, cards_of, commit, linked_cards, stored
from effort import times
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import Seat
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import Reason, Refusal
from gpuledger.model.request import Demand, Lifetime, PodRequest, Shape
from gpuledger.model.share import Assignment, StoredCard
from gpuledger.placement import choose as fitting_nodes
from gpuledger.placement.choose import Choice, Chooser
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS, NODE_RANKS, Policy, Preference

NODE = "node-a"
CAPACITIES = [Amounts(8, 100, 4), Amounts(12, 100, 2), Amounts(8, 50, 1)]

preferences = st.sampled_from(list(Preference))
ranking = st.sampled_from(list(CARD_RANKS))
mostly = st.sampled_from([True] * 9 + [False])


@dataclass(frozen=True)
class Spot:
    """A card with what others have on it, in plain numbers."""

    card: Card
    memory: int
    cores: int
    number: int
    exclusive: bool
    open: bool
    reported: bool

    @property
    def idle(self) -> bool:
        return self.number == 0

    @property
    def works(self) -> bool:
        return self.reported and self.open and self.card.healthy

    def left(self) -> tuple[int, int, int]:
        """Return free memory, cores and slots."""
        capacity = self.card.capacity
        return capacity.memory_mib - self.memory, capacity.cores - self.cores, capacity.number - self.number


@st.composite
def spots(draw: st.DrawFn, card: Card) -> Spot:
    """Draw what others have on a card; a little of it may be more than the card has, since it can have shrunk."""
    if draw(st.booleans()):
        return Spot(card, 0, 0, 0, exclusive=False, open=draw(mostly), reported=draw(mostly))
    number = draw(st.integers(1, card.capacity.number))
    memory = draw(st.integers(0, card.capacity.memory_mib + 1))
    cores = draw(st.sampled_from([0, 20, 50, 80, 100]))
    exclusive = number == 1 and not draw(mostly)
    return Spot(card, memory, cores, number, exclusive, draw(mostly), draw(mostly))


@st.composite
def nodes(draw: st.DrawFn) -> list[Spot]:
    """Draw up to four cards of one node."""
    count = draw(st.sampled_from([4, 4, 3, 3, 2, 2, 1, 0]))
    cards = [
        replace(a_card(index, healthy=draw(mostly)), capacity=draw(st.sampled_from(CAPACITIES)))
        for index in range(count)
    ]
    return [draw(spots(card)) for card in draw(connected(cards))]


@st.composite
def connected(draw: st.DrawFn, cards: list[Card]) -> list[Card]:
    """Draw how cards are connected: often not at all, now and then so that two of them do not agree about it."""
    if draw(st.booleans()):
        return cards
    numa_nodes = st.sampled_from([None, 0, 1])
    links = st.dictionaries(st.sampled_from(cards), st.sampled_from([10, 50, 200])) if cards else st.just({})
    connected = [
        replace(card, numa_node=draw(numa_nodes), links={peer.uuid: score for peer, score in draw(links).items()})
        for card in cards
    ]
    if draw(mostly):  # what one card says of the other is what that says of it
        connected = [
            replace(
                card,
                links={
                    peer.uuid: max(card.links.get(peer.uuid, 0), peer.links.get(card.uuid, 0))
                    for peer in connected
                    if peer is not card
                },
            )
            for card in connected
        ]
    return connected


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Draw what a container asks for: memory in MiB or percent, cores, or a number of cards alone."""
    cores = draw(st.sampled_from([0, 0, 20, 50, 100]))
    memory_mib = draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 13, None, None, None]))
    percent = draw(st.sampled_from([1, 25, 50, 100])) if memory_mib is None else 100
    alone = cores == 100 or (memory_mib is None and percent == 100 and draw(st.booleans()))
    cards = draw(st.sampled_from([1, 1, 1, 1, 2, 2, 3]))
    return Demand(cards, memory_mib, percent, cores, alone, draw(st.sampled_from(Lifetime)))


maybe_bound = st.builds(lambda demand, free: demand if free else replace(demand, one_numa_node=True), demands(), mostly)
shapes = st.integers(1, 3).flatmap(lambda count: st.tuples(*[maybe_bound] * count))


def ledger_of(node: Sequence[Spot], *, ready: bool = True) -> Ledger:
    """Return the node in a ledger."""
    ledger = Ledger()
    ledger.set_offer(NODE, OFFER if ready else None)
    for spot in node:
        share = a_share(spot.card, spot.memory, spot.cores, spot.number, exclusive=spot.exclusive)
        holders = () if spot.idle else (a_holder("other", share),)
        ledger.load(StoredCard(spot.card, 1, holders))
        if not spot.open:  # created again, its status not written
            ledger.load(StoredCard(spot.card, 2, None))
        ledger.set_reported(spot.card.uuid, spot.reported)
    return ledger


# An independent reading of the rules.


def wanted(demand: Demand, card: Card) -> tuple[int, int, int]:
    """Return the memory, cores and slots that a container takes of a card."""
    capacity = card.capacity
    if demand.memory_mib is not None:
        return demand.memory_mib, demand.cores, 1
    memory = max(1, capacity.memory_mib * demand.memory_percent // 100)
    number_alone = demand.exclusive and demand.memory_percent == 100
    return memory, capacity.cores if number_alone else demand.cores, 1


def moments(shape: Shape) -> Iterator[list[int]]:
    """Run the pod through its life; yield the containers that are there at each moment."""
    staying: list[int] = []
    for position, demand in enumerate(shape):
        if demand.lifetime is Lifetime.INIT:
            yield [*staying, position]
        elif demand.lifetime is Lifetime.SIDECAR:
            staying.append(position)
            yield list(staying)
    yield [*staying, *(position for position, demand in enumerate(shape) if demand.lifetime is Lifetime.MAIN)]


def is_valid(shape: Shape, node: Sequence[Spot], assignment: Assignment) -> bool:
    """Return whether a pod can run with these cards."""
    by_uuid = {spot.card.uuid: spot for spot in node if spot.works}
    for demand, given_cards in zip(shape, assignment, strict=True):
        if len(given_cards) != demand.cards or len(set(given_cards)) != demand.cards:
            return False
        if not all(uuid in by_uuid and goes_on(demand, by_uuid[uuid]) for uuid in given_cards):
            return False
        if demand.one_numa_node and len({by_uuid[uuid].card.numa_node for uuid in given_cards}) > 1:
            return False
    return all(
        fits_at(shape, [position for position in moment if uuid in assignment[position]], spot)
        for uuid, spot in by_uuid.items()
        for moment in moments(shape)
    )


def goes_on(demand: Demand, spot: Spot) -> bool:
    """Return whether a container may be beside the others on a card, whatever the amounts."""
    alone_or_shared = not spot.exclusive and (spot.idle or not demand.exclusive)
    return alone_or_shared and not cores_are_promised(demand, spot)


def cores_are_promised(demand: Demand, spot: Spot) -> bool:
    """Return whether a container that names no cores comes where others were promised all of them."""
    return wanted(demand, spot.card)[1] == 0 < spot.card.capacity.cores and spot.left()[1] <= 0


def fits_at(shape: Shape, here: list[int], spot: Spot) -> bool:
    """Return whether containers of a pod that are on a card at the same moment fit there."""
    if len(here) > 1 and any(shape[position].exclusive for position in here):
        return False
    sums = [sum(wanted(shape[position], spot.card)[i] for position in here) for i in range(3)]
    return not here or all(need <= free for need, free in zip(sums, spot.left(), strict=True))


def any_assignment(shape: Shape, node: Sequence[Spot]) -> Assignment | None:
    """Try everything."""
    ways = [list(combinations([spot.card.uuid for spot in node], demand.cards)) for demand in shape]
    return next((found for found in product(*ways) if is_valid(shape, node, found)), None)


def true_reasons(demand: Demand, node: Sequence[Spot], ready: bool) -> Iterator[Reason]:
    """Yield what is true of a node that can't take a container, in the order in which it is to be told."""
    reported = [spot for spot in node if spot.reported]
    working = [spot for spot in node if spot.works]
    needs = {spot.card.uuid: wanted(demand, spot.card) for spot in node}
    large = [s for s in reported if all(n <= c for n, c in zip(needs[s.card.uuid], capacity(s.card), strict=True))]

    def scarce(dimension: int) -> bool:
        return sum(needs[s.card.uuid][dimension] <= s.left()[dimension] for s in working) < demand.cards

    def cores_left(s: Spot) -> bool:
        return needs[s.card.uuid][1] <= s.left()[1] and not cores_are_promised(demand, s)

    truths = {
        Reason.NO_INVENTORY: not reported,
        Reason.AGENT_NOT_READY: not ready,
        Reason.TOO_FEW_CARDS: len(reported) < demand.cards,
        Reason.CARD_TOO_SMALL: len(large) < demand.cards,
        Reason.UNHEALTHY: len(working) < demand.cards,
        Reason.NO_WHOLE_CARD: demand.exclusive and sum(spot.idle for spot in working) < demand.cards,
        Reason.NO_MEMORY: scarce(0),
        Reason.NO_CORES: sum(map(cores_left, working)) < demand.cards,
        Reason.NO_SLOT: scarce(2),
        Reason.NO_COMBINATION: True,
    }
    yield from (reason for reason, true in truths.items() if true)


def capacity(card: Card) -> tuple[int, int, int]:
    return card.capacity.memory_mib, card.capacity.cores, card.capacity.number


# One node.


@settings(max_examples=times(200, 1_500, check=100))
@given(shape=shapes, node=nodes(), cards=ranking)
def test_what_is_given_is_valid_and_what_is_refused_is_impossible(
    shape: Shape, node: list[Spot], cards: Preference
) -> None:
    found = choose_cards(shape, ledger_of(node).node_room(NODE), cards)
    if isinstance(found, Refusal):
        event(f"refused: {found.reason}")
        assert any_assignment(shape, node) is None
    else:
        event(f"placed: {len(shape)} containers")
        assert is_valid(shape, node, found)


@given(shape=shapes, node=nodes())
def test_what_fits_does_not_depend_on_what_is_preferred(shape: Shape, node: list[Spot]) -> None:
    room = ledger_of(node).node_room(NODE)
    found = {each: choose_cards(shape, room, each) for each in CARD_RANKS}
    refusals = [each if isinstance(each, Refusal) else None for each in found.values()]
    assert refusals == refusals[:1] * len(refusals)


@settings(max_examples=times(80, 300, check=30))
@given(demand=demands(), node=nodes(), ready=st.integers(0, 9).map(bool))
def test_a_container_is_told_the_first_reason_that_is_true(demand: Demand, node: list[Spot], ready: bool) -> None:
    found = choose_cards((demand,), ledger_of(node, ready=ready).node_room(NODE), Preference.BINPACK)
    assume(isinstance(found, Refusal))
    assert isinstance(found, Refusal)
    event(found.reason)
    assert found.reason is next(true_reasons(demand, node, ready))


@given(shape=shapes, node=nodes())
def test_containers_are_refused_together_only_where_each_alone_would_fit(shape: Shape, node: list[Spot]) -> None:
    room = ledger_of(node).node_room(NODE)
    found = choose_cards(shape, room, Preference.BINPACK)
    alone = [choose_cards((demand,), room, Preference.BINPACK) for demand in shape]
    refusals = [refusal for refusal in alone if isinstance(refusal, Refusal)]
    if refusals:
        assert found == refusals[0]
    elif isinstance(found, Refusal):
        assert found.reason is Reason.CONTAINERS_TOGETHER


@settings(max_examples=times(60, 200, check=20))
@given(demand=demands(), node=nodes(), data=st.data())
def test_a_reasons_text_does_not_change_while_others_come_and_go(
    demand: Demand, node: list[Spot], data: st.DataObject
) -> None:
    texts: dict[Reason, str] = {}
    for _ in range(3):
        found = choose_cards((demand,), ledger_of(node).node_room(NODE), Preference.SPREAD)
        if isinstance(found, Refusal) and found.reason is not Reason.NO_INVENTORY:  # which says what a node reports
            assert texts.setdefault(found.reason, found.text) == found.text
            asked = {demand.cards, demand.memory_mib, demand.memory_percent, demand.cores}
            assert {int(number) for number in re.findall(r"\d+", found.text)} <= asked
        node = [data.draw(spots(spot.card)) for spot in node]


@given(shape=shapes, node=nodes(), cards=ranking, data=st.data())
def test_the_order_in_which_cards_became_known_makes_no_difference(
    shape: Shape, node: list[Spot], cards: Preference, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(node))
    found = choose_cards(shape, ledger_of(node).node_room(NODE), cards)
    assert choose_cards(shape, ledger_of(shuffled).node_room(NODE), cards) == found


# Several nodes, while the ledger changes.

NODES = ["node-a", "node-b", "node-c"]
PODS = [f"p{number}" for number in range(6)]
REQUESTS = [
    a_request(Demand(1, 3)),
    a_request(Demand(1, None, 50, 20)),
    a_request(Demand(2, exclusive=True)),
    a_request(Demand(1, 6, lifetime=Lifetime.INIT), Demand(1, 4, cores=50), Demand(1, 2)),
    a_request(Demand(1, 2, cores=100, exclusive=True), Demand(1, 2)),
]


def unlike_nodes() -> Iterator[Card]:
    """Yield the cards of three nodes: one without links, one where one card is left out, and one where they differ."""
    yield from cards_of("node-a", 2, memory_mib=8, number=4)
    tables = {"node-b": ((0, 10, 0), (10, 0, 0), (0, 0, 0)), "node-c": ((0, 10, 50), (10, 0, 50), (50, 50, 0))}
    for name, table in tables.items():
        for card in linked_cards(table, (0, 0, 1), name):
            yield replace(card, capacity=Amounts(8, 100, 4))


class ChooserMachine(RuleBasedStateMachine):
    """Ask a chooser with a memory and one without the same things after every change."""

    def __init__(self) -> None:
        super().__init__()
        self.cards = {card.uuid: card for card in unlike_nodes()}
        self.ledger = a_ledger(*self.cards.values())
        self.version = 1

    @initialize(node_preference=preferences, card_preference=preferences)
    def choose_a_policy(self, node_preference: Preference, card_preference: Preference) -> None:
        self.policy = Policy(node_preference, card_preference)
        self.chooser = Chooser(self.ledger, self.policy)

    def tell(self, card: Card, drop: str = "") -> None:
        """Let the API server tell a card, with the holders that are known but one."""
        self.version += 100
        entry = self.ledger.entry(card.uuid)
        holders = [holder for uid, holder in entry.holders.items() if uid != drop] if entry else []
        assert self.ledger.load(stored(card, *holders, version=self.version))

    @rule(pod=st.sampled_from(PODS), request=st.sampled_from(REQUESTS), names=st.permutations(NODES))
    def place(self, pod: str, request: PodRequest, names: list[str]) -> None:
        """Hold what is chosen: the ledger and placement agree about what fits."""
        for placement in self.chooser.choose(request, names, 1).placements:
            self.ledger.seats.take(Seat(pod, placement, 5.0))

    @rule(pod=st.sampled_from(PODS))
    def store(self, pod: str) -> None:
        hold = self.ledger.seats.of(pod)
        known = hold and all(
            (entry := self.ledger.entry(share.uuid)) and pod not in entry.holders for share in hold.placement.shares
        )
        if known:
            commit(self.ledger, pod)

    @rule(pod=st.sampled_from(PODS))
    def give_back(self, pod: str) -> None:
        self.ledger.seats.give_up(pod)

    @rule(pod=st.sampled_from(PODS))
    def release(self, pod: str) -> None:
        for card, _ in self.ledger.holders.of(pod):
            self.tell(card, drop=pod)

    @rule(data=st.data(), memory_mib=st.sampled_from([2, 8, 12]), healthy=st.booleans())
    def change_a_card(self, data: st.DataObject, memory_mib: int, healthy: bool) -> None:
        card = data.draw(st.sampled_from(list(self.cards.values())))
        self.tell(replace(card, capacity=Amounts(memory_mib, 100, 4), healthy=healthy))

    @rule(data=st.data(), score=st.sampled_from([0, 10, 90]))
    def connect_two_cards(self, data: st.DataObject, score: int) -> None:
        one, other = (data.draw(st.sampled_from(sorted(self.cards))) for _ in range(2))
        for uuid, peer in ((one, other), (other, one)):
            card = self.cards[uuid]
            self.cards[uuid] = replace(card, links={**card.links, peer: score})
            self.tell(self.cards[uuid])

    @rule(data=st.data(), to=st.sampled_from(NODES))
    def move_a_card(self, data: st.DataObject, to: str) -> None:
        self.tell(replace(data.draw(st.sampled_from(list(self.cards.values()))), node_name=to))

    @rule(data=st.data())
    def lose_a_card(self, data: st.DataObject) -> None:
        self.version += 100
        self.ledger.unload(data.draw(st.sampled_from(sorted(self.cards))), self.version)

    @rule(data=st.data(), reported=st.booleans())
    def report_a_card_or_not(self, data: st.DataObject, reported: bool) -> None:
        self.ledger.set_reported(data.draw(st.sampled_from(sorted(self.cards))), reported)

    @rule(name=st.sampled_from(NODES), ready=st.booleans())
    def answer_or_not(self, name: str, ready: bool) -> None:
        self.ledger.set_offer(name, OFFER if ready else None)

    @precondition(lambda self: hasattr(self, "chooser"))
    @invariant()
    def a_memory_changes_no_answer(self) -> None:
        for request in REQUESTS:
            for names in (NODES, NODES[1:], ["node-x"]):
                at_once = self.chooser.choose(request, names, 3)
                remembered = settled(self.chooser, request, names)
                fresh = settled(Chooser(self.ledger, self.policy), request, names)
                if self.policy.cards in CARD_RANKS and self.policy.nodes in NODE_RANKS:
                    assert remembered == fresh
                    assert set(at_once.placements) <= set(fresh.placements)
                else:  # prices have a memory, which makes the order another one, but not what fits
                    nodes = [{placement.node_name for placement in choice.placements} for choice in (remembered, fresh)]
                    assert nodes[0] == nodes[1]
                    assert {placement.node_name for placement in at_once.placements} <= nodes[0]
                assert at_once.refusals == remembered.refusals == fresh.refusals
                assert set(remembered.refusals) == (set() if remembered.placements else set(names))


def settled(chooser: Chooser, request: PodRequest, names: list[str]) -> Choice:
    """Return what a chooser says once it has looked at all nodes."""
    chooser.choose(request, names, 3)
    while chooser.look_further():
        pass
    return chooser.choose(request, names, 3)


class LargeClusterMachine(ChooserMachine):
    """The same with a chooser that looks at one node at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(fitting_nodes, "ALL_LOOKED_AT", 0)
        self.patch.setattr(fitting_nodes, "LOOKED_AT", 1)
        self.patch.setattr(fitting_nodes, "LOOKED_AT_A_TIME", 1)

    def teardown(self) -> None:
        self.patch.undo()


TestChooser = ChooserMachine.TestCase
TestChooser.settings = settings(max_examples=times(10, 50, check=4), stateful_step_count=30)
TestLargeCluster = LargeClusterMachine.TestCase
TestLargeCluster.settings = settings(max_examples=times(5, 50, check=2), stateful_step_count=30)
