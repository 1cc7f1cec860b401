"""The links between the cards of one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from gpuledger.model.card import Card

Scores = tuple[tuple[int, ...], ...]
"""Link scores as a symmetric table over the positions of cards, higher is faster; 0 where none is known."""

NumaNodes = tuple[int, ...]
"""The NUMA node of each position; cards of which it is not known count as on one."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Topology:
    """Positions are those of the node's cards in the order of their index.

    There is one object for all nodes that are built alike, and it is compared by identity: what was found out for one
    of them is known for all.
    """

    scores: Scores
    numa_nodes: NumaNodes
    totals: tuple[int, ...]
    """For each card, the sum of its scores to all other cards of the node."""
    linked: bool
    """Some two cards have a score."""
    uneven: bool
    """The totals differ: single cards can be told apart."""


def topology_of(cards: Sequence[Card]) -> Topology | None:
    """Return how a node's cards are connected, None if nothing of that tells one set of them from another."""
    numa_nodes = tuple(-1 if card.numa_node is None else card.numa_node for card in cards)
    links = [dict(card.links) for card in cards]
    if len(cards) < 2 or (not any(links) and len(set(numa_nodes)) == 1):
        return None
    rows = [[known.get(other.uuid, 0) for other in cards] for known in links]
    scores = tuple(
        tuple(0 if one == other else min(rows[one][other], rows[other][one]) for other in range(len(cards)))
        for one in range(len(cards))
    )
    return _interned(scores, numa_nodes)


_INTERNED: WeakValueDictionary[tuple[Scores, NumaNodes], Topology] = WeakValueDictionary()
"""One object for each way to build a node, as long as there are such nodes."""


def _interned(scores: Scores, numa_nodes: NumaNodes) -> Topology:
    known = _INTERNED.get((scores, numa_nodes))
    if known is None:
        totals = tuple(map(sum, scores))
        known = Topology(scores, numa_nodes, totals, linked=any(totals), uneven=len(set(totals)) > 1)
        _INTERNED[scores, numa_nodes] = known
    return known
