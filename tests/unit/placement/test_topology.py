"""The best-connected cards, exactly: compared with a search through all sets."""

from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import linked_cards
from effort import times
from gpuledger.model.card import Topology, topology_of
from gpuledger.placement import topology as module
from gpuledger.placement.topology import best_set, connectivity

FOUR = ((0, 100, 100, 200), (100, 0, 200, 100), (100, 200, 0, 200), (200, 100, 200, 0))
"""The table in HAMi's guide."""

Table = Sequence[Sequence[int]]


def a_topology(scores: Table, numa_nodes: Sequence[int | None] = ()) -> Topology:
    found = topology_of(linked_cards(scores, numa_nodes))
    assert found is not None
    return found


@pytest.mark.parametrize(("count", "expected"), [(2, (2, 3)), (3, (0, 2, 3)), (4, (0, 1, 2, 3))])
def test_the_guides_four_cards(count: int, expected: tuple[int, ...]) -> None:
    assert best_set(a_topology(FOUR), range(4), count) == expected


def test_beside_a_card_that_is_taken_the_one_that_reaches_it_best() -> None:
    assert best_set(a_topology(FOUR), (0, 2, 3), 1, fixed=(1,)) == (2,)
    assert best_set(a_topology(FOUR), (1, 2), 1, fixed=(0, 3)) == (2,)


def test_how_well_chosen_cards_are() -> None:
    four = a_topology(FOUR)
    assert [connectivity(four, (card,)) for card in range(4)] == [-400, -400, -500, -500]
    assert [connectivity(four, cards) for cards in [(0, 1), (2, 3), (1, 2, 3)]] == [100, 200, 500]


def test_of_equal_sets_the_one_with_more_pairs_on_a_numa_node_and_then_the_first() -> None:
    alike = [[0 if one == other else 10 for other in range(6)] for one in range(6)]
    assert best_set(a_topology(alike, (0, 1, 2, 1, 2, 2)), range(6), 2) == (1, 3)
    assert best_set(a_topology(alike, (0, 1, 2, 1, 2, 2)), range(6), 3) == (2, 4, 5)
    assert best_set(a_topology(alike, (0, 1, 2, 1, 2, 2)), (5, 4, 3, 2), 2) == (5, 4)
    assert best_set(a_topology(alike), range(6), 3) == (0, 1, 2)


def test_links_go_before_numa_nodes() -> None:
    scores = [[0, 10, 10, 20], [10, 0, 10, 10], [10, 10, 0, 10], [20, 10, 10, 0]]
    assert best_set(a_topology(scores, (0, 0, 1, 1)), range(4), 2) == (0, 3)


def test_a_pair_of_which_one_side_knows_nothing_has_no_score() -> None:
    one_sided = a_topology([[0, 900, 0], [0, 0, 10], [0, 10, 0]])
    assert best_set(one_sided, range(3), 2) == (1, 2)
    assert one_sided.totals == (0, 10, 10)


def test_a_node_has_a_topology_only_if_something_tells_its_cards_apart() -> None:
    nothing = [[0] * 3] * 3
    assert topology_of(linked_cards(nothing)) is None
    assert topology_of(linked_cards(nothing, (1, 1, 1))) is None
    assert topology_of(linked_cards([[0]])) is None
    by_numa = topology_of(linked_cards(nothing, (0, None, 0)))
    assert by_numa is not None
    assert not by_numa.linked
    assert not by_numa.uneven


def test_nodes_that_are_built_alike_share_what_was_found_out() -> None:
    one, other = (topology_of(linked_cards(FOUR, node_name=name)) for name in ("node-a", "node-b"))
    assert one is other
    assert topology_of(linked_cards(FOUR, (0, 0, 1, 1))) is not one


Search = tuple[Topology, list[int], int, list[int]]
"""A node, the cards to choose from in any order, how many of them, and cards that are taken already."""

SCORES = [(10, 20, 50, 100, 200), (0, 0, 0, 1), (0, 1), range(1_000_000), (1_820,), (10, 1_820)]


def searches(sizes: range) -> st.SearchStrategy[Search]:
    """Draw a seed, not each number of a table by itself: that would take most of the time."""
    return st.integers(0, 2**32).map(lambda seed: a_search(Random(seed), sizes))  # noqa: S311 - it draws test data


def a_search(random: Random, sizes: range) -> Search:
    size, scores = random.choice(sizes), random.choice(SCORES)
    table = [[0] * size for _ in range(size)]
    for one, other in combinations(range(size), 2):
        table[one][other] = table[other][one] = random.choice(scores)
    table[0][1] = table[1][0] = max(1, table[0][1])
    cards = random.sample(range(size), size)
    free = random.randint(1, size)
    known = a_topology(table, [random.randrange(3) for _ in range(size)])
    return known, cards[:free], random.randint(1, free), cards[free : free + random.randint(0, 2)]


def best_by_trying_all(known: Topology, candidates: Sequence[int], count: int, fixed: Sequence[int]) -> tuple[int, ...]:
    def value(chosen: tuple[int, ...]) -> tuple[int, int, int, list[int]]:
        cards = [*chosen, *fixed]
        pairs = list(combinations(cards, 2))
        mutual = sum(known.scores[one][other] for one, other in pairs)
        together = sum(known.numa_nodes[one] == known.numa_nodes[other] for one, other in pairs)
        return mutual, sum(known.totals[card] for card in cards), together, [-candidates.index(card) for card in chosen]

    return max(combinations(candidates, count), key=value)


@settings(max_examples=times(1_000, 3_000, check=200))
@given(searches(range(2, 11)))
def test_no_set_is_better(search: Search) -> None:
    known, candidates, count, fixed = search
    assert best_set(known, candidates, count, fixed) == best_by_trying_all(known, candidates, count, fixed)


@settings(max_examples=30)
@given(searches(range(16, 17)))
def test_no_set_is_better_among_sixteen_cards(search: Search) -> None:
    known, candidates, count, fixed = search
    assert best_set(known, candidates, count, fixed) == best_by_trying_all(known, candidates, count, fixed)


@given(searches(range(2, 11)), st.integers(0, 3))
def test_a_search_that_is_cut_short_still_finds_a_set(search: Search, steps: int) -> None:
    known, candidates, count, fixed = search
    gains, weights = module._packed(known, tuple(candidates), count, tuple(fixed))
    cut = module._Search(gains, weights, count)
    cut._steps_left = steps
    chosen = cut.best_value() & ((1 << len(candidates)) - 1)
    assert chosen.bit_count() == count


def pcie(one: int, other: int) -> int:
    """Return the score of two cards where pairs share a switch, fours a bridge, and halves of the node a CPU."""
    return next(score for size, score in [(2, 50), (4, 30), (8, 20), (64, 10)] if one // size == other // size)


@pytest.mark.parametrize("score", [lambda *_: 1_820, pcie], ids=["switches", "PCIe"])
@pytest.mark.parametrize(("size", "limit"), [(8, 30), (16, 200), (64, module.STEPS_LIMIT)])
def test_a_search_takes_few_steps_where_cards_are_in_groups(
    score: Callable[[int, int], int], size: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    most = module._Search._most

    def counted(*args: Any) -> Any:
        steps.append(1)
        return most(*args)

    monkeypatch.setattr(module._Search, "_most", counted)
    known = a_topology([[score(one, other) if one != other else 0 for other in range(size)] for one in range(size)])
    for count in range(2, size, 1 if size < 64 else 13):
        steps.clear()
        best_set(known, range(size), count)
        assert len(steps) <= limit
