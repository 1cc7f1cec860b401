"""Which of several fitting nodes and cards to prefer. Two independent choices, each a row in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.amounts import NOTHING, Amounts
from gpuledger.model.request import PodRequest


class Preference(StrEnum):
    """Fill what is in use first, or use what is empty first."""

    BINPACK = "binpack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Policy:
    """How nodes are chosen, and how cards within the node."""

    nodes: Preference = Preference.BINPACK
    cards: Preference = Preference.BINPACK

    def wished(self, request: PodRequest) -> Policy:
        """Return the policy with what the pod wishes instead, where that is known here."""
        return Policy(_known(request.node_policy, self.nodes), _known(request.card_policy, self.cards))


def _known(wish: str, otherwise: Preference) -> Preference:
    return Preference(wish) if wish in {each.value for each in Preference} else otherwise


CardRank = tuple[int, int, int, int]
NodeRank = tuple[int, str]


def _tightest_card(room: Room) -> CardRank:
    return (room.free.memory_mib, room.free.cores, room.free.number, room.card.index)


def _emptiest_card(room: Room) -> CardRank:
    return (-room.free.memory_mib, -room.free.cores, -room.free.number, room.card.index)


CARD_RANKS: dict[Preference, Callable[[Room], CardRank]] = {
    Preference.BINPACK: _tightest_card,
    Preference.SPREAD: _emptiest_card,
}
"""Rank of a card on its node, the lowest first. The index breaks ties, so the choice is deterministic."""


def load_permille(node: NodeRoom, added: Amounts = NOTHING) -> int:
    """Return how full the node's cards are, the mean of memory and cores, with something added: 0 to 1000."""
    memory = sum(room.card.capacity.memory_mib for room in node.rooms)
    cores = sum(room.card.capacity.cores for room in node.rooms)
    free_memory = sum(room.free.memory_mib for room in node.rooms) - added.memory_mib
    free_cores = sum(room.free.cores for room in node.rooms) - added.cores
    return 1000 - (500 * free_memory // max(memory, 1) + 500 * free_cores // max(cores, 1))


NODE_RANKS: dict[Preference, Callable[[NodeRoom], NodeRank]] = {
    Preference.BINPACK: lambda node: (-load_permille(node), node.name),
    Preference.SPREAD: lambda node: (load_permille(node), node.name),
}
"""Rank of a node that fits, the lowest first. The name breaks ties."""
