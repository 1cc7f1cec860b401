"""Which node for a request: per shape of request the set of fitting nodes, kept up to date where something changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Assignment, Placement, shares_of
from gpuledger.placement.fit import choose_cards, refuse_alone
from gpuledger.placement.policy import NODE_RANKS, NodeRank, Policy

SHAPES_KEPT = 256
"""Shapes whose sets are kept; a cluster's pods come from few templates. The least recently asked one is dropped."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes that fit, the preferred first, each with its placement; or, when there are none, why each does not."""

    placements: tuple[Placement, ...]
    refusals: dict[str, Refusal]


class ShapeSet:
    """The nodes on which pods of one shape fit, ranked. Costs what has changed since the last look."""

    def __init__(self, shape: Shape, policy: Policy) -> None:
        self._shape = shape
        self._policy = policy
        self._seen = 0  # number of the ledger's last change that is taken into account
        self._ranked: list[NodeRank] = []
        self._fitting: dict[str, tuple[NodeRank, Assignment]] = {}  # node name -> its rank and cards
        self._refused: dict[str, Refusal] = {}  # node name -> why not; nodes of the ledger only
        self.evaluations = 0

    def update(self, ledger: Ledger) -> None:
        """Evaluate the nodes that were touched since the last time."""
        for name in ledger.touched_since(self._seen):
            self._evaluate(ledger.node_room(name))
        self._seen = ledger.changes

    def fitting(self) -> Iterator[tuple[str, Assignment]]:
        """Yield the nodes that fit with the cards of each container, the preferred first."""
        for _, name in self._ranked:
            yield name, self._fitting[name][1]

    def refusal(self, node_name: str) -> Refusal | None:
        """Return why a node of the ledger does not fit."""
        return self._refused.get(node_name)

    def _evaluate(self, node: NodeRoom) -> None:
        self.evaluations += 1
        before = self._fitting.pop(node.name, None)
        if before:
            del self._ranked[bisect_left(self._ranked, before[0])]
        self._refused.pop(node.name, None)
        found = choose_cards(self._shape, node, self._policy.cards)
        if isinstance(found, Refusal):
            if node.cards:  # a node without cards may be gone for good: nothing is kept of it
                self._refused[node.name] = found
        else:
            rank = NODE_RANKS[self._policy.nodes](node)
            insort(self._ranked, rank)
            self._fitting[node.name] = (rank, found)


class Chooser:
    """Answers requests from the ledger, remembering a set of nodes for each shape."""

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self._ledger = ledger
        self._policy = policy
        # (shape, policy) -> set, least recently asked first
        self._sets: OrderedDict[tuple[Shape, Policy], ShapeSet] = OrderedDict()
        self._dropped_evaluations = 0

    @property
    def evaluations(self) -> int:
        """How often a node was compared with a shape so far."""
        return self._dropped_evaluations + sum(known.evaluations for known in self._sets.values())

    def choose(self, request: PodRequest, node_names: list[str], count: int) -> Choice:
        """Return up to `count` of the named nodes that fit, the preferred first; if none does, why."""
        known = self._set_of(request)
        known.update(self._ledger)
        wanted = set(node_names)
        placements: list[Placement] = []
        for name, assignment in known.fitting():
            if name in wanted:
                placements.append(self._placement(request, name, assignment))
                if len(placements) == count:
                    break
        if placements:
            return Choice(tuple(placements), {})
        return Choice((), {name: known.refusal(name) or self._unknown_node(request, name) for name in node_names})

    def best(self, request: PodRequest, node_names: frozenset[str] | None) -> Placement | None:
        """Return the preferred placement on one of these nodes, None if none fits. None as names stands for any."""
        known = self._set_of(request)
        known.update(self._ledger)
        for name, assignment in known.fitting():
            if node_names is None or name in node_names:
                return self._placement(request, name, assignment)
        return None

    def fits(self, shape: Shape, node_name: str) -> bool:
        """Tell whether a pod of this shape fits on a node now."""
        return not isinstance(choose_cards(shape, self._ledger.node_room(node_name), self._policy.cards), Refusal)

    def choose_on(self, request: PodRequest, node_name: str) -> Placement | Refusal:
        """Return the pod's cards on one given node, or why it does not fit."""
        policy = self._policy.wished(request)
        found = choose_cards(request.shape, self._ledger.node_room(node_name), policy.cards)
        return found if isinstance(found, Refusal) else self._placement(request, node_name, found)

    def _placement(self, request: PodRequest, node_name: str, assignment: Assignment) -> Placement:
        cards = self._ledger.node_room(node_name).cards
        return Placement(node_name, shares_of(request, assignment, cards))

    def _unknown_node(self, request: PodRequest, node_name: str) -> Refusal:
        refusal = refuse_alone(request.shape[0], NodeRoom(node_name, offer=None, cards=(), rooms=()))
        if refusal is None:
            raise AssertionError("a node without cards can't fit")
        return refusal

    def _set_of(self, request: PodRequest) -> ShapeSet:
        key = (request.shape, self._policy.wished(request))
        known = self._sets.get(key)
        if known is None:
            known = self._sets[key] = ShapeSet(*key)
            if len(self._sets) > SHAPES_KEPT:
                self._dropped_evaluations += self._sets.popitem(last=False)[1].evaluations
        self._sets.move_to_end(key)
        return known
