"""Preferences among fitting nodes and cards, and the budget of one question.

There are two independent choices, for nodes and for cards, each a row in a table; docs/placement.md says what each row
is good for. Some preferences need nothing but the node and the cards that were found on it: they rank. Others ask what
the choice costs the pods that are still to come: they price (`placement.fragmentation`).

Users write the requests, and so choose how long a search for their places takes: `StepBudget` ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.card import NOTHING, Amounts
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Assignment
from gpuledger.placement.topology import best_set, connectivity


class Preference(StrEnum):
    """A preference among nodes or among the cards of a node."""

    BINPACK = "binpack"
    """Used cards first, the fullest."""
    SPREAD = "spread"
    """Empty cards first, the emptiest."""
    TOPOLOGY = "topology"
    """The smallest node; on it the cards that reach each other best, and for one card alone the worst connected."""
    FRAGMENTATION = "fragmentation"
    """The cards that cost the expected pods least."""


FALLBACK = Preference.BINPACK
"""Chooses the cards in place of `topology` on a node of which no links are known, and decides between equal prices."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How nodes are chosen, and how cards within the node."""

    nodes: Preference = Preference.BINPACK
    cards: Preference = Preference.BINPACK

    def wished(self, request: PodRequest) -> Policy:
        """Return the policy with what the pod wishes instead, where that is known here."""
        return Policy(
            PREFERENCES.get(request.node_policy, self.nodes), PREFERENCES.get(request.card_policy, self.cards)
        )


PREFERENCES: Mapping[str, Preference] = {
    **{each.value: each for each in Preference},
    "topology-aware": Preference.TOPOLOGY,
}
"""Name -> preference; `topology-aware` is HAMi's name, which the settings have, too."""


def policy_of(name: str, preferences: Mapping[str, Preference] = PREFERENCES) -> Policy:
    """Return the policy of a name: one for nodes and cards alike, or NODES/CARDS. Raises KeyError for another."""
    nodes, slash, cards = name.partition("/")
    return Policy(preferences[nodes], preferences[cards if slash else nodes])


CardRank = tuple[int, ...]
NodeRank = tuple[float, ...]
"""The lowest is preferred. The node's name breaks ties."""


def _tightest_card(room: Room) -> CardRank:
    return (room.free.memory_mib, room.free.cores, room.free.number)


def _emptiest_card(room: Room) -> CardRank:
    return (-room.free.memory_mib, -room.free.cores, -room.free.number)


def _any_card(room: Room) -> CardRank:
    return ()


CARD_RANKS: dict[Preference, Callable[[Room], CardRank]] = {
    Preference.BINPACK: _tightest_card,
    Preference.SPREAD: _emptiest_card,
    Preference.TOPOLOGY: _any_card,
}
"""Rank of a card on its node by what is free on it, the lowest first. Among equals the topology decides, whatever the
preference, and then the index: see `CardOrder`. What is not in this table has prices."""


def load_permille(node: NodeRoom, added: Amounts = NOTHING) -> int:
    """Return how full the node's cards are, the mean of memory and cores, with something added: 0 to 1000."""
    memory = sum(room.card.capacity.memory_mib for room in node.rooms)
    cores = sum(room.card.capacity.cores for room in node.rooms)
    free_memory = sum(room.free.memory_mib for room in node.rooms) - added.memory_mib
    free_cores = sum(room.free.cores for room in node.rooms) - added.cores
    return 1000 - (500 * free_memory // max(memory, 1) + 500 * free_cores // max(cores, 1))


def _fullest_node(node: NodeRoom, assignment: Assignment) -> NodeRank:
    return (-load_permille(node),)


def _emptiest_node(node: NodeRoom, assignment: Assignment) -> NodeRank:
    return (load_permille(node),)


def _smallest_node(node: NodeRoom, assignment: Assignment) -> NodeRank:
    return (len(node.cards), -connectivity_of(node, assignment), -load_permille(node))


def connectivity_of(node: NodeRoom, assignment: Assignment) -> int:
    """Return how well chosen the cards of each container are, summed up; 0 where no links are known."""
    topology = node.topology
    if topology is None or not topology.linked:
        return 0
    position_of = {card.uuid: position for position, card in enumerate(node.cards)}
    return sum(connectivity(topology, tuple(position_of[uuid] for uuid in uuids)) for uuids in assignment if uuids)


NODE_RANKS: dict[Preference, Callable[[NodeRoom, Assignment], NodeRank]] = {
    Preference.BINPACK: _fullest_node,
    Preference.SPREAD: _emptiest_node,
    Preference.TOPOLOGY: _smallest_node,
}
"""Rank of a node on which a pod would get these cards, the lowest first. A preference not in this table has prices."""


class CardOrder:
    """In which order one node's cards are taken for a container by one preference, and which several of them.

    A preference ranks cards by what is free on them. Those of equal rank differ in how they are connected: a single one
    is the worst connected of them, several are the best set beside those that are taken anyway. What is equal then,
    too, is taken as `binpack` does, and by index at last. So `topology`, which ranks all cards alike, needs no code of
    its own; and the others leave good sets whole where that costs them nothing.
    """

    def __init__(self, node: NodeRoom, preference: Preference) -> None:
        topology = node.topology
        linked = topology is not None and topology.linked
        self._by_room = CARD_RANKS[FALLBACK if preference is Preference.TOPOLOGY else preference]
        self._rank = CARD_RANKS[preference] if linked else self._by_room
        self._topology = topology
        self._position_of: dict[str, int] = {}  # card UUID -> its position in the topology
        if topology is not None:
            self._position_of = {card.uuid: position for position, card in enumerate(node.cards)}

    @property
    def tells_sets_apart(self) -> bool:
        """Several cards are more than one by one."""
        return self._topology is not None

    def sorted(self, rooms: Sequence[Room]) -> list[Room]:
        """Return the rooms, given by index, in the order in which single ones are taken."""
        topology, rank, by_room = self._topology, self._rank, self._by_room
        if topology is None or not topology.uneven:
            return sorted(rooms, key=by_room)
        totals, position_of = topology.totals, self._position_of
        return sorted(rooms, key=lambda room: (rank(room), totals[position_of[room.card.uuid]], by_room(room)))

    def best_sets(self, groups: Sequence[Sequence[Room]], count: int, taken: Collection[str]) -> list[tuple[Room, ...]]:
        """Return the set of `count` cards to take from each group that has so many, the preferred first.

        Groups are in the order of the single cards. Cards that are `taken` by the same pod go before the others.
        """
        sets = [self._best_set(group, count, taken) for group in groups if len(group) >= count]
        return sorted(sets, key=self._rank_of_set) if len(sets) > 1 else sets

    def _best_set(self, rooms: Sequence[Room], count: int, taken: Collection[str]) -> tuple[Room, ...]:
        """Return the first cards; where the last of them are equal to others, those that go best with the rest."""
        if not taken and self._rank(rooms[0]) == self._rank(rooms[-1]):  # as on an idle node
            return tuple(self._best_beside((), rooms, count))
        chosen: list[Room] = []
        for _, equals in groupby(rooms, key=lambda room: (room.card.uuid not in taken, self._rank(room))):
            chosen += self._best_beside(chosen, list(equals), count - len(chosen))
            if len(chosen) == count:
                break
        return tuple(chosen)

    def _best_beside(self, chosen: Sequence[Room], equals: Sequence[Room], missing: int) -> Sequence[Room]:
        if self._topology is None or missing >= len(equals):
            return equals[:missing]
        by_position = {self._position_of[room.card.uuid]: room for room in equals}
        candidates = sorted(by_position)
        if self._rank is not self._by_room:  # else they are equal by that, too
            candidates.sort(key=lambda position: self._by_room(by_position[position]))
        fixed = [self._position_of[room.card.uuid] for room in chosen]
        return [by_position[position] for position in best_set(self._topology, candidates, missing, fixed)]

    def _rank_of_set(self, rooms: tuple[Room, ...]) -> tuple[tuple[CardRank, ...], int, int, tuple[int, ...]]:
        """Return the sort key of a set among those of other NUMA nodes: they are compared as within one."""
        if self._topology is None:
            raise AssertionError("nothing tells sets apart")
        positions = tuple(sorted(self._position_of[room.card.uuid] for room in rooms))
        total = sum(self._topology.totals[position] for position in positions)
        return tuple(map(self._rank, rooms)), -connectivity(self._topology, positions), -total, positions


def worst_connected_first(node: NodeRoom) -> Sequence[Room]:
    """Return the rooms of a node with those first that others would miss least; without links by index."""
    topology = node.topology
    if topology is None or not topology.uneven:
        return node.rooms
    position_of = {card.uuid: position for position, card in enumerate(node.cards)}
    totals = topology.totals
    return sorted(node.rooms, key=lambda room: totals[position_of[room.card.uuid]])


@dataclass(slots=True)
class StepBudget:
    """Steps that are left, of about ten microseconds each. All searches for one answer share them."""

    left: int

    def spend(self, steps: int = 1) -> bool:
        """Take some steps away; return whether there were as many."""
        self.left -= steps
        return self.left >= 0

    @property
    def is_spent(self) -> bool:
        """Return whether more was wanted than there was: then something was not looked at."""
        return self.left < 0
