"""The configuration of a node's cards: number of slots, and scaling of memory and compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card
from gpuledger.model.card_filter import MIG, MIG_PARENT


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one node, or of all.

    It says nothing of MIG devices, which are as they are; a whole GPU that it has in MIG mode is one that is cut.
    """

    split_count: int = 10
    """Slots of each card."""
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: str = ""
    hidden_uuids: frozenset[str] = frozenset()
    hidden_indexes: frozenset[int] = frozenset()

    def offered(self, cards: Iterable[Card]) -> tuple[Card, ...]:
        """Return a node's own cards as it offers them, rounded down. Not for a register, which is scaled already."""
        seen = (card for card in cards if card.uuid not in self.hidden_uuids and card.index not in self.hidden_indexes)
        return tuple(self._offered(card) for card in seen)

    def _offered(self, card: Card) -> Card:
        if card.mode == MIG:
            return card
        mode = self.mode or card.mode
        if mode in (MIG, MIG_PARENT):
            return replace(card, mode=MIG_PARENT)
        memory_mib = int(card.capacity.memory_mib * self.memory_scaling)
        return replace(card, mode=mode, capacity=Amounts(memory_mib, int(100 * self.core_scaling), self.split_count))


@dataclass(frozen=True, slots=True)
class NodeConfigs:
    """The configurations of all nodes."""

    everywhere: NodeConfig = NodeConfig()
    of_node: Mapping[str, NodeConfig] = field(default_factory=dict)
    """Node name -> its own configuration."""

    def of(self, node_name: str) -> NodeConfig:
        """Return a node's configuration."""
        return self.of_node.get(node_name, self.everywhere)
