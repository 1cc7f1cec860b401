"""Cards that have to match or to differ, against brute force over all ways to give cards."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product

from hypothesis import event, given, settings
from hypothesis import strategies as st

from builders import a_card, a_holder, a_ledger, a_share, stored
from effort import times
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts, Card, CardRule
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, Shape
from gpuledger.model.share import Assignment
from gpuledger.placement.explain import explain_node
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS, Preference

NODE = "node-a"
MEMORY_MIB = 8

READ: dict[str, Callable[[Card], object]] = {
    "resource.kubernetes.io/pcieRoot": lambda card: card.pcie_root or None,
    "resource.kubernetes.io/numaNode": lambda card: card.numa_node,
    "gpu.gpuledger.dev/model": lambda card: card.model or None,
    "gpu.gpuledger.dev/uuid": lambda card: card.uuid,
    "example.com/unknown": lambda card: None,
}
"""An independent reading of the attributes."""

rules = st.builds(CardRule, st.sampled_from(sorted(READ)[1:] * 4 + sorted(READ)[:1]), st.integers(0, 1), st.booleans())


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, tuple[Card, int]]:
    """Draw a node: UUID -> a card, and how much of its memory others have."""
    links = draw(st.booleans())
    cards = [
        replace(
            a_card(index, memory_mib=MEMORY_MIB),
            pcie_root=draw(st.sampled_from(["", "a", "a", "b", "b"])),
            numa_node=draw(st.sampled_from([None, 0, 1])),
            model=draw(st.sampled_from(["x", "x", "y"])),
            links={f"GPU-node-a-{draw(st.integers(0, 5))}": 100} if links else {},
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    return {card.uuid: (card, draw(st.sampled_from([0, 0, 0, 2, 5, 8]))) for card in cards}


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw up to three requests with some rules in common."""
    known = draw(st.lists(rules, min_size=1, max_size=3))
    return tuple(
        Demand(
            cards=1 if (every := draw(st.sampled_from([False] * 9 + [True]))) else draw(st.sampled_from([1, 1, 2, 3])),
            memory_mib=draw(st.sampled_from([1, 3, 4, 8])),
            exclusive=draw(st.sampled_from([False, False, True])),
            rules=tuple(draw(st.lists(st.sampled_from(known), unique=True, max_size=3))),
            every_card=every,
        )
        for _ in range(draw(st.integers(1, 3)))
    )


def ledger_of(node: dict[str, tuple[Card, int]]) -> Ledger:
    ledger = a_ledger(*(card for card, _ in node.values()))
    for card, used_mib in node.values():
        if used_mib:
            ledger.load(stored(card, a_holder("other", a_share(card, used_mib)), version=2))
    return ledger


def is_valid(shape: Shape, node: dict[str, tuple[Card, int]], assignment: Assignment) -> bool:
    """Return whether the cards have room for all, and keep all rules."""
    for demand, uuids in zip(shape, assignment, strict=True):
        if len({*uuids}) != (len(node) if demand.every_card else demand.cards):
            return False
    for uuid, (_, used_mib) in node.items():
        here = [demand for demand, uuids in zip(shape, assignment, strict=True) if uuid in uuids]
        alone = any(demand.exclusive for demand in here)
        if alone and (used_mib or len(here) > 1):
            return False
        if here and used_mib + sum(demand.memory_mib or 0 for demand in here) > MEMORY_MIB:
            return False
    for rule in {rule for demand in shape for rule in demand.rules}:
        values = [
            READ[rule.attribute](node[uuid][0])
            for demand, uuids in zip(shape, assignment, strict=True)
            if rule in demand.rules
            for uuid in uuids
        ]
        if None in values or len({*values}) != (len(values) if rule.distinct else 1):
            return False
    return True


def all_ways(shape: Shape, node: dict[str, tuple[Card, int]]) -> Iterator[Assignment]:
    yield from product(*(combinations(node, len(node) if d.every_card else d.cards) for d in shape))


@settings(max_examples=times(200, 5_000, check=100), deadline=None)
@given(shape=shapes(), node=nodes(), preference=st.sampled_from(sorted(CARD_RANKS)))
def test_what_is_given_keeps_the_rules_and_what_is_refused_is_impossible(
    shape: Shape, node: dict[str, tuple[Card, int]], preference: Preference
) -> None:
    ledger = ledger_of(node)
    found = choose_cards(shape, ledger.node_room(NODE), preference)
    if isinstance(found, Refusal):
        event(f"refused: {found.reason}")
        assert not any(is_valid(shape, node, way) for way in all_ways(shape, node))
    else:
        event(f"placed: {len(shape)}")
        assert is_valid(shape, node, found)
    verdict = explain_node(shape, ledger.node_room(NODE), ledger.entries_of_node(NODE))
    refusal = found if isinstance(found, Refusal) else None
    assert verdict.refusal == refusal
    assert bool(verdict.remedy) == (refusal is not None)


def test_capacities_of_the_cards_are_as_the_brute_force_reads_them() -> None:
    assert a_card(memory_mib=MEMORY_MIB).capacity == Amounts(MEMORY_MIB, 100, 10)
