"""How the cards of each node are connected, worked out again only when the cards change."""

from __future__ import annotations

from gpuledger.model.card import Card
from gpuledger.model.topology import Topology, topology_of


class Topologies:
    """Remembers the last answer for each node."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Card, ...], Topology | None]] = {}  # node name -> cards, and what they form

    def of(self, node_name: str, cards: tuple[Card, ...]) -> Topology | None:
        """Return how these cards of a node are connected. Costs next to nothing while they are the same objects."""
        known = self._known.get(node_name)
        if known is None or known[0] != cards:
            known = self._known[node_name] = (cards, topology_of(cards))
        return known[1]

    def forget(self, node_name: str) -> None:
        """Drop what is known of a node."""
        self._known.pop(node_name, None)
