"""Cards of a scene: found in its ledger, and copied for nodes that are thought up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import NAMESPACE_DNS, uuid5

from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card


@dataclass(frozen=True, slots=True)
class SceneCards:
    """The cards of a ledger, for who reads annotations."""

    ledger: Ledger

    def card(self, uuid: str) -> Card | None:
        """Return the card of this UUID."""
        entry = self.ledger.entry(uuid)
        return entry.card if entry else None

    def cards_of(self, node_name: str) -> Sequence[Card]:
        """Return a node's cards."""
        return [entry.card for entry in self.ledger.entries_of_node(node_name)]


def copied(card: Card, node_name: str) -> Card:
    """Return a card like this one on another node, with a UUID of its own."""

    def new(uuid: str) -> str:
        return f"GPU-{uuid5(NAMESPACE_DNS, f'{uuid}.{node_name}')}"

    links = {new(peer): score for peer, score in card.links.items()}
    return replace(card, uuid=new(card.uuid), node_name=node_name, links=links, healthy=True, fault="")
