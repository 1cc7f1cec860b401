"""One pod against some nodes: its cards on each, and how much each is preferred; or why it does not fit.

First each node offers *candidates*: cards for every container. Most preferences for cards know the one to take. One
that asks for the costs gets all candidates that differ in price, and takes the cheapest. Then the nodes are ranked by
the candidates that are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Protocol

from gpuledger.ledger.entry import NodeRoom, Room
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, HostAmounts, Shape
from gpuledger.model.share import Assignment
from gpuledger.placement.fit import WORK_LIMIT, choose_cards, fits, payers_of, refuse_alone, takes_pods
from gpuledger.placement.policy import (
    CARD_RANKS,
    FALLBACK,
    NODE_RANKS,
    NodeRank,
    Policy,
    Preference,
    StepBudget,
    connectivity_of,
    worst_connected_first,
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The properties of a pod that count for its placement. Pods with equal footprints go to the same node."""

    shape: Shape
    host: HostAmounts


@dataclass(frozen=True, slots=True)
class Candidate:
    """Cards for every container of a pod, on one node."""

    node: NodeRoom
    assignment: Assignment


def differing_candidates(shape: Shape, node: NodeRoom, work: StepBudget | None = None) -> Sequence[Candidate] | Refusal:
    """Return candidates of which each leaves something else behind, or why the pod does not fit.

    A pod whose containers ask for one card each has as many as there are different rooms that hold all of it, and the
    tightest for each container. Any other pod has one, the tightest: its combinations are too many to be priced, and
    mostly it asks for whole cards, which are all the same. Where rooms are the same, the topology decides: a single
    card is the worst connected of them, several are the best set. `work` is what a search may cost, as for
    `choose_cards`.
    """
    one_card_each = all(demand.cards == 1 and not demand.joint for demand in shape)
    if one_card_each and len(shape) == 1:
        rooms = _differing_rooms(shape[0], node) if takes_pods(node, shape) else ()
        if rooms:
            return [Candidate(node, ((room.card.uuid,),)) for room in rooms]
        refusal = refuse_alone(shape[0], node)
        if refusal:
            return refusal
    found = choose_cards(shape, node, Preference.BINPACK, work)
    if isinstance(found, Refusal):
        return found
    together = _together(shape, node, work) if one_card_each and len(shape) > 1 else ()
    return [Candidate(node, cards) for cards in dict.fromkeys((found, *together))]


def _together(shape: Shape, node: NodeRoom, work: StepBudget | None) -> Iterator[Assignment]:
    """Yield the ways to have all containers on one card."""
    for room in _differing_rooms(shape[0], node):
        cards = choose_cards(shape, replace(node, rooms=(room,)), Preference.BINPACK, work)
        if not isinstance(cards, Refusal):
            yield cards


def _differing_rooms(demand: Demand, node: NodeRoom) -> Sequence[Room]:
    """Return the rooms that a container could have, the tightest first, and of those that are alike the first one."""
    found: dict[tuple[object, ...], Room] = {}
    for room in worst_connected_first(node):
        card, free, all_of_it = room.card, room.free, room.card.capacity
        amounts = (free.memory_mib, free.cores, free.number, all_of_it.memory_mib, all_of_it.cores, all_of_it.number)
        kind = (amounts, room.idle, card.model, card.vendor, card.mode)
        if kind not in found and demand.admits(card) and fits(demand, room):
            found[kind] = room
    return sorted(found.values(), key=CARD_RANKS[Preference.BINPACK])


_AS_THEY_ARE = nullcontext()

PLAIN_STEPS = 64
"""For each container, on a node of up to 16 cards: one look at each card."""

COSTS_PER_UNIT = 20
"""Differences between costs count from a twentieth of a thousandth of a card on."""

NODES_NEARLY_EQUAL, CARDS_NEARLY_EQUAL = 2, 6
"""Costs of nodes, and of cards of one node, that differ by no more than this are nearly equal: 0.1 and 0.3 thousandths
of a card. Then the pod goes to where the last one went, and there to the fullest card. By exact costs each pod of a
burst makes its node a little dearer than all others; but pods on one card share a write to the ledger. On the trace of
docs/placement.md 4 for nodes costs 0.1 points of allocated cards, and 40 for both 6."""


class Effect(NamedTuple):
    """The effect of a candidate: the number that a pricer has given to the node, and the remnants of its cards."""

    node: int
    changes: tuple[tuple[int, int], ...]
    """For each used card, its remnant before and after."""


class Pricer(Protocol):
    """Tells what a pod's placement costs the pods that are still to come."""

    @property
    def version(self) -> int:
        """Number of the prices that are used now; it grows when these change."""

    def tick(self) -> None:
        """Do a bit of the work on new prices, if any is to be done. Called at each question."""

    def as_if(self, nodes: Collection[NodeRoom]) -> AbstractContextManager[None]:
        """Let nodes have other rooms than in the ledger, while this lasts."""

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return the effect of a candidate on its node as it is now."""

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Sequence[float]:
        """Return the cost of each of these, the lowest is preferred. A node may have changed since: then it is old."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The way that is preferred on a node, and how the node compares with others, the lowest first."""

    rank: NodeRank
    assignment: Assignment
    effect: Effect | None = None
    """The source of the rank, if it depends on prices."""


class Decider:
    """Decides for all pods with the same ask and policy.

    `as_if`: the rooms of the nodes that it is given differ from those in the ledger.
    """

    def __init__(
        self, footprint: Footprint, policy: Policy, pricers: Mapping[Preference, Pricer], as_if: bool = False
    ) -> None:
        self._footprint = footprint
        self._policy = policy
        self.policy_name = policy.nodes.value
        self._card_pricer = None if policy.cards in CARD_RANKS else pricers[policy.cards]
        self._node_pricer = None if policy.nodes in NODE_RANKS else pricers[policy.nodes]
        self.hard_steps = 0
        """Steps of searches so far beyond what a plain request takes on a node."""
        self.is_cut = False
        """It has ended before the last of the nodes the last time, as a selector was not evaluated yet."""
        self._payers = payers_of(footprint.shape)
        pricers_used = (self._card_pricer, self._node_pricer) if as_if else ()
        self._told = tuple({id(each): each for each in pricers_used if each is not None}.values())

    @property
    def version(self) -> int:
        """Number of the prices that ranks are made from; after a change, earlier ranks are a little old."""
        return self._node_pricer.version if self._node_pricer else 0

    @property
    def paid(self) -> int:
        """Steps that were paid for selectors of such pods' namespace so far."""
        return sum(payer.paid for payer in self._payers)

    @property
    def waits(self) -> bool:
        """Return whether selectors can't be evaluated for a while."""
        return any(payer.is_spent for payer in self._payers)

    @property
    def why_it_waits(self) -> str:
        """Why selectors can't be evaluated, now or for a while, for people; empty if they can."""
        return next((payer.why_not() for payer in self._payers if self.is_cut or payer.is_spent), "")

    def decide(self, nodes: Sequence[NodeRoom], hard_steps_allowed: int | None = None) -> list[Decision | Refusal]:
        """Return the decision for each node, for the first of them only if `hard_steps` would be more than that.

        Neither is there one for a node with a card for which a selector is not evaluated yet, nor for those behind it.
        """
        offers: list[Sequence[Candidate] | Decision | Refusal] = []
        skipped, self.is_cut = self._skipped(), False
        for node in nodes:
            if hard_steps_allowed is not None and self.hard_steps >= hard_steps_allowed:
                break
            offer = self._candidates(node) if node.counted is None else self._counted(node, node.counted)
            self.is_cut = self._skipped() != skipped
            if self.is_cut:
                break
            offers.append(offer)
        candidates = [offer for offer in offers if not isinstance(offer, Refusal | Decision)]
        with self._prices_as_if(nodes[: len(offers)]) if self._told else _AS_THEY_ARE:
            chosen = iter(self._chosen(candidates))
        decisions = [offer if isinstance(offer, Refusal | Decision) else next(chosen) for offer in offers]
        return [_last(decision) if node.slow else decision for node, decision in zip(nodes, decisions, strict=False)]

    def _prices_as_if(self, nodes: Collection[NodeRoom]) -> AbstractContextManager[object]:
        stack = ExitStack()
        for pricer in self._told:
            stack.enter_context(pricer.as_if(nodes))
        return stack

    def _skipped(self) -> int:
        return sum(payer.skipped for payer in self._payers)

    def rank_again(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Return decisions with the ranks that they have by the prices of now. Their nodes have not changed."""
        effects = [decision.effect for decision in decisions if decision.effect is not None]
        ranks = iter(self._costs(self._node_pricer, effects) if self._node_pricer else [])
        return [decision if decision.effect is None else _ranked_again(decision, next(ranks)) for decision in decisions]

    def _counted(self, node: NodeRoom, left: int) -> Decision | Refusal:
        """Return the decision on a node that only counts its cards: before all others, whose cards can be shared."""
        found = choose_cards(self._footprint.shape, node, Preference.BINPACK)
        if isinstance(found, Refusal):
            return found
        return Decision((-inf, -left if self._policy.nodes is Preference.SPREAD else left), found)

    def _candidates(self, node: NodeRoom) -> Sequence[Candidate] | Refusal:
        shape, work = self._footprint.shape, StepBudget(WORK_LIMIT)
        if self._card_pricer:
            found = differing_candidates(shape, node, work)
        else:
            cards = choose_cards(shape, node, self._policy.cards, work)
            found = cards if isinstance(cards, Refusal) else (Candidate(node, cards),)
        self.hard_steps += hard_steps(shape, work)
        return found

    def _chosen(self, offers: Sequence[Sequence[Candidate]]) -> list[Decision]:
        """Return a decision for each node that offers candidates."""
        candidates = [candidate for offer in offers for candidate in offer]
        effects, costs = self._priced(self._card_pricer, candidates)
        if self._card_pricer:
            cheapest = _cheapest(costs, [len(offer) for offer in offers])
            candidates, effects = (
                [candidates[candidate] for candidate in cheapest],
                [effects[candidate] for candidate in cheapest],
            )
            costs = [costs[candidate] for candidate in cheapest]
        if self._node_pricer is not self._card_pricer:
            effects, costs = self._priced(self._node_pricer, candidates)
        return self._ranked(candidates, effects, costs)

    def _ranked(
        self, candidates: Sequence[Candidate], effects: Sequence[Effect], costs: Sequence[float]
    ) -> list[Decision]:
        if not self._node_pricer:
            rank = NODE_RANKS[self._policy.nodes]
            return [
                Decision(rank(candidate.node, candidate.assignment), candidate.assignment) for candidate in candidates
            ]
        return [
            Decision(self._rank_by(cost, candidate), candidate.assignment, effect)
            for candidate, effect, cost in zip(candidates, effects, costs, strict=True)
        ]

    def _rank_by(self, cost: float, candidate: Candidate) -> NodeRank:
        """Return the rank of a node with a price; of equal ones the better connected goes first, then the fuller."""
        fuller = NODE_RANKS[FALLBACK](candidate.node, candidate.assignment)
        return (cost, -connectivity_of(candidate.node, candidate.assignment), *fuller)

    def _priced(self, pricer: Pricer | None, candidates: Sequence[Candidate]) -> tuple[list[Effect], list[float]]:
        """Return the effects and costs of the candidates; nothing if they have no prices."""
        effects = [pricer.effect(self._footprint, candidate) for candidate in candidates] if pricer else []
        return effects, self._costs(pricer, effects) if pricer else []

    def _costs(self, pricer: Pricer, effects: Sequence[Effect]) -> list[float]:
        """Return costs, rounded: what is nearly equal is left to the order of names, which fills node after node."""
        return [round(cost * COSTS_PER_UNIT) for cost in pricer.costs(self._footprint, effects)] if effects else []


LAST = inf
"""Before the rank of a node that all others go before. It can't be closed: what speaks against it is no proof yet."""


def _last(decision: Decision | Refusal) -> Decision | Refusal:
    """Return the decision on a node that all others go before."""
    return decision if isinstance(decision, Refusal) else replace(decision, rank=(LAST, *decision.rank))


def _ranked_again(decision: Decision, cost: float) -> Decision:
    first = 1 if decision.rank[0] == LAST else 0
    return replace(decision, rank=(*decision.rank[:first], cost, *decision.rank[first + 1 :]))


def hard_steps(shape: Shape, work: StepBudget) -> int:
    """Return how many steps, beyond what a plain request takes, a search for a pod's cards on one node has taken."""
    return max(0, WORK_LIMIT - work.left - PLAIN_STEPS * len(shape))


def _cheapest(costs: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """Return the position of the lowest cost of each group, the first of nearly equal ones."""
    found, begin = [], 0
    for size in sizes:
        group = range(begin, begin + size)
        enough = min(costs[position] for position in group) + CARDS_NEARLY_EQUAL
        found.append(next(position for position in group if costs[position] <= enough))
        begin += size
    return found
