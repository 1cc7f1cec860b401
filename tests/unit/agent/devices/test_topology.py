"""Link scores: the same in both directions, and those of HAMi's table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.devices.source import ANCESTOR_SCORES, NVLINK_SCORE, Pair, Wiring, link_scores

UUIDS = ("a", "b", "c", "d")


@st.composite
def wirings(draw: st.DrawFn) -> tuple[list[Wiring], dict[frozenset[str], Pair]]:
    cards = [
        Wiring(uuid, f"bus-{uuid}", tuple(draw(st.lists(st.sampled_from(peers), max_size=4))), draw(st.integers(0, 18)))
        for uuid in UUIDS
        if (peers := [f"bus-{peer}" for peer in UUIDS if peer != uuid])
    ]
    levels = st.sampled_from([None, 99, *ANCESTOR_SCORES])
    pairs = {
        frozenset((one, other)): Pair(draw(levels), draw(st.booleans()))
        for position, one in enumerate(UUIDS)
        for other in UUIDS[position + 1 :]
        if draw(st.booleans())
    }
    return cards, pairs


@given(wirings())
def test_scores_are_symmetric_and_within_bounds_and_no_card_has_one_to_itself(
    wiring: tuple[list[Wiring], dict[frozenset[str], Pair]],
) -> None:
    scores = link_scores(*wiring).scores
    for uuid, peers in scores.items():
        assert uuid not in peers
        for peer, score in peers.items():
            assert scores[peer][uuid] == score
            assert 0 < score <= 60 + 18 * NVLINK_SCORE


@given(wirings())
def test_each_pair_with_unequal_counts_is_said(wiring: tuple[list[Wiring], dict[frozenset[str], Pair]]) -> None:
    cards, pairs = wiring
    unequal = [
        (one.uuid, other.uuid)
        for position, one in enumerate(cards)
        for other in cards[position + 1 :]
        if one.peers.count(other.bus_id) != other.peers.count(one.bus_id)
    ]
    problems = link_scores(cards, pairs).problems
    assert len(problems) == len(unequal)
    assert all(f"{one} and {other}" in problem for (one, other), problem in zip(unequal, problems, strict=True))


@pytest.mark.parametrize(
    ("ancestor", "points"), [(0, 60), (10, 50), (20, 40), (30, 30), (40, 20), (50, 10), (None, 0), (7, 0)]
)
def test_a_closer_ancestor_is_worth_more(ancestor: int | None, points: int) -> None:
    cards = [Wiring("a", "bus-a", ("bus-b",)), Wiring("b", "bus-b", ("bus-a",))]
    scores = link_scores(cards, {frozenset("ab"): Pair(ancestor)}).scores
    assert scores["a"]["b"] == points + 100


def test_eighteen_links_to_switches_on_one_cpu_are_the_1820_of_the_table() -> None:
    cards = [Wiring("a", "bus-a", (), 18), Wiring("b", "bus-b", (), 18)]
    assert link_scores(cards, {frozenset("ab"): Pair(40)}).scores == {"a": {"b": 1820}, "b": {"a": 1820}}
