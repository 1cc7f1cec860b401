"""In which order the cards of a node are taken for a container, and which several of them.

A preference ranks cards by their free amounts. Those of equal rank differ in how they are connected: a single one is
the worst connected of them, several are the best set beside those that are taken anyway. Remaining ties are broken as
`binpack` does, and by index at last. So `topology`, which ranks all cards alike, needs no code of its own; and the
others leave good sets whole where that costs them nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.placement.policy import CARD_RANKS, FALLBACK, CardRank, Preference
from gpuledger.placement.topology import best_set, connectivity


class CardOrder:
    """The order of one node's cards by one preference."""

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
