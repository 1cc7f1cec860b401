"""However a pod is written, no question about it costs more than so much: counted in calls of functions, not in seconds.

The searches count their own steps, too. Here they are not asked: what they have forgotten to count is found.
"""

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import a_card, a_holder, a_ledger, a_share, cards_of, stored
from effort import times
from gpuledger.formats.words import MOST_CONTAINERS
from gpuledger.ledger.book import Ledger
from gpuledger.model.request import Demand, Lifetime, Shape
from gpuledger.placement.explanation.node import explain_node
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import CARD_RANKS
from gpuledger.placement.preemption.victims import Tenant, cheapest_eviction

CARDS = cards_of(count=8)
NODE = CARDS[0].node_name
MEMORY_MIB = CARDS[0].capacity.memory_mib

MOST_CALLS = 400_000
"""Some 0.1 s. Without limits, a pod of eight containers made millions."""


def empty() -> Ledger:
    return a_ledger(*CARDS)


def in_shares(each_mib: Callable[[int, int], int], count: int = 9) -> Ledger:
    """Return cards with so many pods on each, of which no two have as much."""
    ledger = a_ledger(*CARDS)
    for card in CARDS:
        holders = [
            a_holder(f"t{card.index}-{n}", a_share(card, each_mib(card.index, n), cores=n)) for n in range(count)
        ]
        ledger.load(stored(card, *holders, version=2))
    return ledger


LEDGERS = {
    "empty": empty(),
    "half full": in_shares(lambda card, n: 700 + 37 * n + 11 * card),
    "full": in_shares(lambda card, n: 1_560 + 37 * n + 11 * card),
}
TENANTS = {f"t{card.index}-{n}": Tenant(f"t{card.index}-{n}", n % 4, 1 + n) for card in CARDS for n in range(9)}

AMOUNTS = st.integers(1, MEMORY_MIB) | st.sampled_from([MEMORY_MIB // 3, MEMORY_MIB // 2 - 1, MEMORY_MIB])
DEMANDS = st.builds(
    Demand,
    cards=st.integers(1, 8),
    memory_mib=st.none() | AMOUNTS,
    memory_percent=st.integers(1, 100),
    cores=st.integers(0, 100),
    exclusive=st.booleans(),
    lifetime=st.sampled_from(Lifetime),
    one_numa_node=st.booleans(),
)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw a pod: of any containers, or of many that differ a little, for which a search has the most to try."""
    count = draw(st.integers(1, MOST_CONTAINERS))
    if draw(st.booleans()):
        return tuple(draw(DEMANDS) for _ in range(count))
    base, step = draw(AMOUNTS), draw(st.integers(0, 200))
    cards, cores = draw(st.integers(1, 3)), draw(st.integers(0, 30))
    return tuple(Demand(cards=cards, memory_mib=max(1, base - step * n), cores=cores) for n in range(count))


def calls_of(question: Callable[[], object]) -> int:
    """Return how many functions are called, those of C among them, to answer a question."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        question()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS)
@given(shapes(), st.sampled_from(sorted(CARD_RANKS)))
@settings(max_examples=times(15, 2_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_pod_makes_a_question_about_one_node_last(ledger: Ledger, shape: Shape, preference: str) -> None:
    room, entries = ledger.node_room(NODE), ledger.entries_of_node(NODE)
    rank = next(each for each in CARD_RANKS if each == preference)
    assert calls_of(lambda: choose_cards(shape, room, rank)) < MOST_CALLS
    assert calls_of(lambda: explain_node(shape, room, entries)) < MOST_CALLS
    assert calls_of(lambda: cheapest_eviction(shape, room, entries, TENANTS, {}, rank)) < MOST_CALLS


def test_the_count_sees_work_that_no_search_has_counted() -> None:
    assert calls_of(lambda: [abs(n) for n in range(1_000)]) >= 1_000
    assert a_card(0).node_name == NODE
