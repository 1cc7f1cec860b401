"""Which of a node's cards belong together: the set with the best mutual connectivity, found exactly.

What makes a set better, the first difference decides: the sum of link scores over its pairs; the sum of its cards'
scores to all cards of the node; the number of its pairs that share a NUMA node; the candidates' own order. All four are
packed into one whole number, a sum over the cards and pairs of the set: two different sets never have the same, and a
search for the largest number has no ties to think of.

Source of the first rule: HAMi's topology-aware scheduling, which leaves ties to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, combinations
from operator import add

from gpuledger.model.card import Topology

EXACT_CANDIDATES = 16
"""Up to so many cards to choose from, the search goes on until nothing better can be left."""

STEPS_LIMIT = 1_000
"""Steps of a search among more cards than that, before the best set so far is taken. Where many cards are built as one
finds them, in groups and groups of groups, a search takes a few steps only."""

SETS_REMEMBERED = 8_192
"""Answers that are remembered, about 400 bytes each: nodes that are built alike share them."""

Weights = Sequence[Sequence[int]]


def best_set(topology: Topology, candidates: Sequence[int], count: int, fixed: Sequence[int] = ()) -> tuple[int, ...]:
    """Return which `count` of the candidates to take beside the `fixed` cards, which are taken already.

    Cards are positions. The order of the candidates breaks ties: the first are preferred.
    """
    if count >= len(candidates):
        return tuple(candidates)
    return _best_set(topology, tuple(candidates), count, tuple(sorted(fixed)))


@lru_cache(maxsize=SETS_REMEMBERED)
def connectivity(topology: Topology, cards: tuple[int, ...]) -> int:
    """Return how well chosen some cards are, higher is better.

    Several: by how well they reach each other. A single one: by how little it leaves others without a good peer.
    """
    if len(cards) == 1:
        return -topology.totals[cards[0]]
    return sum(topology.scores[one][other] for one, other in combinations(cards, 2))


@lru_cache(maxsize=SETS_REMEMBERED)
def _best_set(topology: Topology, candidates: tuple[int, ...], count: int, fixed: tuple[int, ...]) -> tuple[int, ...]:
    gains, weights = _packed(topology, candidates, count, fixed)
    best = _Search(gains, weights, count).best_value()
    first = 1 << len(candidates) - 1  # the lowest bits of the number are the set itself, the first candidate highest
    return tuple(card for place, card in enumerate(candidates) if best & (first >> place))


def _packed(
    topology: Topology, candidates: tuple[int, ...], count: int, fixed: tuple[int, ...]
) -> tuple[list[int], list[list[int]]]:
    """Return what each candidate adds to the number of a set by itself, and each pair of candidates."""
    scores, totals, numa_nodes = topology.scores, topology.totals, topology.numa_nodes
    numa_shift = len(candidates)
    total_shift = numa_shift + ((count + len(fixed)) ** 2).bit_length()
    mutual_shift = total_shift + sum(totals).bit_length()

    def weight(one: int, other: int) -> int:
        return (scores[one][other] << mutual_shift) + ((numa_nodes[one] == numa_nodes[other]) << numa_shift)

    gains = [
        (totals[card] << total_shift) + (1 << numa_shift - 1 - place) + sum(weight(card, other) for other in fixed)
        for place, card in enumerate(candidates)
    ]
    return gains, [[weight(one, other) if one != other else 0 for other in candidates] for one in candidates]


class _Search:
    """Branch and bound for the `count` items with the largest sum of gains and of weights of their pairs.

    Items are sorted, what promises most first: a good set is found early, and once the first items are left out, the
    others are soon known not to reach it. All numbers are doubled, because the bound needs halves.
    """

    def __init__(self, gains: Sequence[int], weights: Weights, count: int) -> None:
        order = sorted(range(len(gains)), key=lambda item: 2 * gains[item] + sum(weights[item]), reverse=True)
        self._gains = [2 * gains[item] for item in order]
        self._weights = [[weights[one][other] for other in order] for one in order]
        self._tails = [[2 * weight for weight in row[item + 1 :]] for item, row in enumerate(self._weights)]
        self._count = count
        self._bonuses: list[list[tuple[int, ...]] | None] = [None] * len(gains)
        self._steps_left = STEPS_LIMIT if len(gains) > EXACT_CANDIDATES else 1 << EXACT_CANDIDATES
        self._found = 0

    def best_value(self) -> int:
        """Return the largest sum."""
        self._found = self._greedy_value(0)
        self._descend(0, self._gains, 0, self._count)
        return self._found // 2

    def _greedy_value(self, item: int) -> int:
        """Return the value of a set that starts with an item and grows by what adds most."""
        value, gains, left = self._gains[item], list(self._gains), set(range(len(self._gains)))
        for _ in range(self._count - 1):
            left.discard(item)
            gains = [gain + 2 * weight for gain, weight in zip(gains, self._weights[item], strict=True)]
            item = max(left, key=gains.__getitem__)
            value += gains[item]
        return value

    def _descend(self, value: int, gains: Sequence[int], begin: int, missing: int) -> None:
        """Look at all sets that have some items before `begin`, worth `value`, and `missing` from there on.

        `gains` are those of the items from `begin` on, with their weights to the chosen ones.
        """
        if missing == 1:
            self._found = max(self._found, value + max(gains))
            return
        for place in range(len(gains) - missing + 1):
            self._steps_left -= 1
            if self._steps_left < 0 or value + self._most(gains[place:], begin + place, missing) <= self._found:
                return
            item = begin + place
            next_gains = list(map(add, gains[place + 1 :], self._tails[item]))
            self._descend(value + gains[place], next_gains, item + 1, missing - 1)

    def _most(self, gains: Sequence[int], begin: int, missing: int) -> int:
        """Return what `missing` items from `begin` on can't exceed.

        Each adds its gain, and half of its best weights to others: the other half of a pair is the other's.
        """
        bonuses = self._bonuses[begin]
        if bonuses is None:
            bonuses = self._bonuses[begin] = list(self._bonuses_from(begin))
        return sum(sorted(map(add, gains, bonuses[missing - 1]))[-missing:])

    def _bonuses_from(self, begin: int) -> Iterator[tuple[int, ...]]:
        """Yield, for each number of others, the best weights to so many others of each item from `begin` on."""
        sums = []
        for item, row in enumerate(self._weights[begin:], begin):
            best = sorted(row[begin:item] + row[item + 1 :], reverse=True)[: self._count - 1]
            best += [0] * (self._count - 1 - len(best))
            sums.append([0, *accumulate(best)])
        return zip(*sums, strict=True)
