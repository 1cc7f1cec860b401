"""Chooses a node for a request: per kind of request the set of fitting nodes, updated where something changed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.errors import WorkLimitExceeded
from gpuledger.model.host import NO_HOST
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Assignment, Placement, shares_of
from gpuledger.placement.candidates import Footprint
from gpuledger.placement.decide import Decider, hard_steps
from gpuledger.placement.fit import WORK_LIMIT, choose_cards, refuse_alone
from gpuledger.placement.fitting_nodes import LOOKED_AT, FittingNodes, Ranking
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.policy import CARD_RANKS, NODE_RANKS, Policy, Preference
from gpuledger.placement.pricers import Pricers
from gpuledger.placement.selectors import compiled
from gpuledger.placement.step_budget import StepBudget

SETS_KEPT = 256
"""Asks whose sets are kept; a cluster's pods come from few templates. The least recently asked one is dropped."""

ENTRIES_KEPT = 100_000
"""Nodes in all of these sets together, 0.3 kB each: for 5,000 nodes 20 asks are kept, for 200 all of them."""

STEPS_OF_A_LOOK = 3
"""The steps of comparing a plain request with a node: some 30 microseconds for eight cards."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes that fit, the preferred first, each with its placement; or, when there are none, why each does not."""

    placements: tuple[Placement, ...]
    refusals: dict[str, Refusal]
    ranking: Ranking | None = None
    """The comparison of the first node with others, if it was compared."""


class Chooser:
    """Answers requests from the ledger, remembering a set of nodes for each ask; learns what pods come."""

    def __init__(
        self, ledger: Ledger, policy: Policy, mix: Mix | None = None, entries_kept: int = ENTRIES_KEPT
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._entries_kept = entries_kept
        self._mix = mix or Mix()
        self._pricers = Pricers(ledger, self._mix, policy)
        # (ask, policy) -> set, least recently asked first
        self._sets: OrderedDict[tuple[Footprint, Policy], FittingNodes] = OrderedDict()
        self._dropped_evaluations = 0

    @property
    def evaluations(self) -> int:
        """How often a node was compared with an ask so far."""
        return self._dropped_evaluations + sum(known.evaluations for known in self._sets.values())

    def arrived(self, request: PodRequest) -> None:
        """Note that a new pod has come, before it is asked for."""
        self._mix.arrived(Footprint(request.shape, request.host))

    def given_out(self, cards: float) -> None:
        """Note that a pod has got cards, or parts of cards."""
        self._mix.given_out(cards)

    def given_back(self, cards: float) -> None:
        """Note that a pod has ended that had cards."""
        self._mix.given_back(cards)

    def taken_over(self) -> None:
        """Note that the ledger has had holders before it was looked at here."""
        self._mix.taken_over()

    def choose(
        self, request: PodRequest, node_names: Collection[str], count: int, avoided: Collection[str] = ()
    ) -> Choice:
        """Return up to `count` of the named nodes that fit, the preferred first; if none does, why.

        Nodes to be avoided are returned only if no other one fits. Raises WorkLimitExceeded.
        """
        wanted = _quick(node_names)
        known = self._set_of(request)
        self._pricers.tick()
        for _ in known.look_around(wanted):
            pass
        fitting = self._placements(known, request, wanted, avoided)
        if placements := tuple(islice(fitting, count)):
            return Choice(placements, {}, None if avoided else known.ranking())
        if avoided and (placements := tuple(islice(self._placements(known, request, wanted), count))):
            return Choice(placements, {}, known.ranking())
        if known.unseen and known.why_it_waits:
            raise WorkLimitExceeded(known.why_it_waits)
        if known.unseen:
            raise WorkLimitExceeded(
                f"the search for {len(request.shape)} containers takes long: {known.looked_at} nodes were "
                f"looked at so far, {known.unseen} are left; it continues at the next request"
            )
        refused = known.refused
        try:  # quickly, for there can be thousands
            return Choice((), dict(zip(node_names, map(refused.__getitem__, node_names), strict=True)))
        except KeyError:
            return Choice((), {name: refused.get(name) or self._unknown_node(request, name) for name in node_names})

    def look_around(self, request: PodRequest, node_names: Collection[str]) -> Iterator[Callable[[], None] | None]:
        """Look at the nodes that `choose` has to know for this request, some at each step.

        The caller can do other things between the steps; `choose` then looks at what has changed meanwhile. A step
        that yields a function is over once that was called: it takes long, and a thread may call it.

        Raises BadInput for a selector that can't be compiled, and WorkLimitExceeded if its namespace has to wait.
        """
        yield from compiled(request)
        for preference in self._pricers.missing(self._policy.wished(request)):
            yield partial(self._pricers.load, preference)
        yield from self._set_of(request).look_around(_quick(node_names))

    def best(
        self, request: PodRequest, node_names: Container[str] | None, work: StepBudget | None = None
    ) -> Placement | None:
        """Return the preferred placement on one of these nodes, None if none fits. None as names stands for any.

        Nodes are looked at as long as `work` is left, and it is spent of it. Those that fit but were not looked at yet
        are found when it is asked for again.
        """
        known = self._set_of(request)
        before = _steps(known)
        self._pricers.tick()
        try:
            for _ in known.look_around(node_names):
                if work is not None and _steps(known) - before > work.left:
                    return None
            return next(self._placements(known, request, node_names), None)
        finally:
            if work is not None:
                work.spend(_steps(known) - before)

    def is_unfinished(self, request: PodRequest) -> bool:
        """Tell whether `best` has had no work left to look at all nodes, and goes on where it was."""
        known = self._set_of(request)
        return bool(known.unseen) and not known.is_exhausted and not known.why_it_waits

    def why_it_waits(self, request: PodRequest) -> str:
        """Return why `best` can't look at all nodes now, for people; empty if it can."""
        known = self._set_of(request)
        return known.why_it_waits if known.unseen else ""

    def fits(self, shape: Shape, node_name: str, work: StepBudget) -> bool:
        """Tell whether a pod of this shape fits on a node now, once spares are taken back. It is spent of `work`."""
        work.spend(STEPS_OF_A_LOOK)
        room = self._ledger.room_without_spares(node_name)
        if len(shape) > 1 and any(refuse_alone(demand, room) for demand in shape):
            return False  # without a search
        searched = StepBudget(WORK_LIMIT)
        found = choose_cards(shape, room, Preference.BINPACK, searched)
        work.spend(hard_steps(shape, searched))
        return not isinstance(found, Refusal)

    def reasons(self, request: PodRequest, node_names: Collection[str] | None) -> Counter[Refusal]:
        """Return why nodes do not take a pod, as far as they were looked at, and how many of them for each reason.

        None as names stands for all nodes of the ledger. Changes nothing, and looks at no node.
        """
        known = self._sets.get(self._key(request))
        if known is None:
            return Counter()
        if node_names is None:
            return Counter(known.refused.values())
        return Counter(map(known.refused.__getitem__, known.refused.keys() & node_names))

    def choose_on(self, request: PodRequest, node_name: str) -> Placement | Refusal:
        """Return the pod's cards on one given node, or why it does not fit."""
        decider = Decider(*self._key(request), self._pricers)
        decisions = decider.decide([self._ledger.node_room(node_name)])
        if not decisions:
            raise WorkLimitExceeded(decider.why_it_waits or "selectors of the pod's claims are still being evaluated")
        [decision] = decisions
        if isinstance(decision, Refusal):
            return decision
        return self._placement(request, node_name, decision.assignment)

    def _placements(
        self, known: FittingNodes, request: PodRequest, node_names: Container[str] | None, avoided: Container[str] = ()
    ) -> Iterator[Placement]:
        for name, assignment in known.in_order():
            if name not in avoided and (node_names is None or name in node_names):
                yield self._placement(request, name, assignment)

    def look_further(self) -> bool:
        """Look at some nodes for an ask that is new, in a moment that no one waits for; tell whether there are any."""
        sets = (known for known in reversed(self._sets.values()) if known.unseen and not known.waits)
        known = next(sets, None)
        if known is not None:
            known.question()
            known.look_further(LOOKED_AT)
        return known is not None

    def _placement(self, request: PodRequest, node_name: str, assignment: Assignment) -> Placement:
        cards = self._ledger.node_room(node_name).cards
        return Placement(node_name, shares_of(request, assignment, cards), request.host)

    def _unknown_node(self, request: PodRequest, node_name: str) -> Refusal:
        refusal = refuse_alone(request.shape[0], NodeRoom(node_name, offer=None, cards=(), rooms=()))
        if refusal is None:
            raise AssertionError("a node without cards can't fit")
        return refusal

    def _key(self, request: PodRequest) -> tuple[Footprint, Policy]:
        policy = self._policy.wished(request)
        priced = policy.nodes not in NODE_RANKS or policy.cards not in CARD_RANKS
        return Footprint(request.shape, request.host if priced else NO_HOST), policy

    def _may_keep_all(self) -> bool:
        """Tell whether the sets are few enough; each comes to have an entry for every node."""
        nodes = len(self._ledger.node_names())
        return len(self._sets) <= min(SETS_KEPT, self._entries_kept // max(nodes, 1))

    def _set_of(self, request: PodRequest) -> FittingNodes:
        key = self._key(request)
        known = self._sets.get(key)
        if known is None:
            alike = next((known for (_, policy), known in reversed(self._sets.items()) if policy == key[1]), None)
            order = (name for name, _ in alike.in_order()) if alike else ()
            known = self._sets[key] = FittingNodes(Decider(*key, self._pricers), self._ledger, order)
            while len(self._sets) > 1 and not self._may_keep_all():
                self._dropped_evaluations += self._sets.popitem(last=False)[1].evaluations
        self._sets.move_to_end(key)
        return known


def _steps(known: FittingNodes) -> int:
    return known.hard_steps + STEPS_OF_A_LOOK * known.evaluations


def _quick(names: Collection[str]) -> Container[str]:
    """Return names as something that tells quickly which are among them."""
    return set(names) if isinstance(names, Sequence) else names
