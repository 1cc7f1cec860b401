"""Chooses a node for a request: for each kind of request a set of fitting nodes, updated where something changed.

Preferences with prices need numpy, whose import takes 0.1 s and 10 MiB. So the modules of a preference are imported
when the cluster's policy has it, or else for the first pod whose annotation does, beside the event loop; otherwise
never.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Protocol

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.errors import Refusal, WorkLimitExceeded
from gpuledger.model.request import NO_HOST, PodRequest, Shape
from gpuledger.model.share import Assignment, Placement, shares_of
from gpuledger.placement.decide import NODES_NEARLY_EQUAL, Decider, Decision, Footprint, Pricer, hard_steps
from gpuledger.placement.fit import WORK_LIMIT, choose_cards, compiled, refuse_alone
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.policy import CARD_RANKS, NODE_RANKS, NodeRank, Policy, Preference, StepBudget

NewPricer = Callable[[Ledger, Mix], Pricer]


def _fragmentation() -> NewPricer:
    from gpuledger.placement.fragmentation.prices import FragmentationPrices

    return FragmentationPrices


PricerImports = Mapping[Preference, Callable[[], NewPricer]]
"""Imports a preference's modules, and returns the constructor of its pricer."""

PRICERS: PricerImports = {Preference.FRAGMENTATION: _fragmentation}


class Pricers(dict[Preference, Pricer]):
    """One pricer for each preference that has prices, made when it is first asked for."""

    def __init__(self, ledger: Ledger, mix: Mix, usual: Policy, imports: PricerImports) -> None:
        super().__init__()
        self._ledger = ledger
        self._mix = mix
        self._imports = imports
        self._loaded: dict[Preference, NewPricer] = {}
        for preference in imports.keys() & {usual.nodes, usual.cards}:
            self[preference]  # before any pod waits for it

    def missing(self, policy: Policy) -> set[Preference]:
        """Return the preferences of a policy whose modules are not imported yet."""
        return (self._imports.keys() & {policy.nodes, policy.cards}) - self._loaded.keys()

    def load(self, preference: Preference) -> None:
        """Import a preference's modules. A thread may call it."""
        self._loaded[preference] = self._imports[preference]()

    def __missing__(self, preference: Preference) -> Pricer:
        if preference not in self._loaded:
            self.load(preference)
        made = self[preference] = self._loaded[preference](self._ledger, self._mix)
        return made

    def tick(self) -> None:
        """Let those that are in use do a bit of their work."""
        for pricer in self.values():
            pricer.tick()


ALL_LOOKED_AT = 2_000
"""Up to so many nodes, all that are new or have changed are looked at: for an ask that is new that takes some 30 ms
for each thousand."""

LOOKED_AT_A_TIME = 128
"""Nodes that are looked at before others have their turn: some 4 ms."""

LOOKED_AT = 16
"""In a larger cluster, nodes that are looked at per question, those first that have changed last. If some fit, that is
enough for now: the others are out of the running until they are looked at between the questions, or with the next
ones. A pod is refused only when all were looked at."""

RANKED_AGAIN = 256
"""Of the nodes whose ranks are older than the prices, so many of the best and so many in turn are ranked again at each
question. The others are out of the running meanwhile, unless nothing else fits: ranks by different prices can't be
compared, and no one waits for thousands of nodes."""

RANKED_AGAIN_OF_MANY = 64
"""The same in a cluster of more than ALL_LOOKED_AT nodes."""

HARD_STEPS = 4_096
"""Steps of one question, beyond those of plain requests: some 5 ms, and those of its last node. A pod that needs more
is asked for again; results are kept, and between the questions the rest is searched."""

PAID_STEPS = 200_000
"""How much the selectors of one question may cost, a microsecond a step: kube-scheduler asks nothing else meanwhile."""

RANKS_SHOWN = 3
"""Nodes whose ranks are remembered with a choice."""

Ranked = tuple[NodeRank, str]
"""A node's rank and name."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best nodes at the time of a choice."""

    policy: str
    """By which they are compared."""
    fitting: int
    """How many nodes fit, as far as they were looked at."""
    best: tuple[Ranked, ...]
    """The best of them, the lowest first; kube-scheduler may not have offered all."""


class Rooms(Protocol):
    """Nodes whose room changes: the ledger, or a sketch of it."""

    @property
    def changes(self) -> int:
        """Number of changes so far."""

    def touched_since(self, change: int) -> Iterator[str]:
        """Return the nodes with a change later than this one, latest first."""

    def known_nodes(self) -> Iterable[str]:
        """Return all nodes, the latest changed first."""

    def node_room(self, node_name: str) -> NodeRoom:
        """Return a node as placement sees it."""


Found = tuple[bool, Ranked]
"""Sort key of a node that fits: whether its rank is older than the prices, and its rank."""


class FittingNodes:
    """The nodes on which pods with one ask fit, ranked. Costs what has changed since the last look."""

    def __init__(self, decider: Decider, ledger: Rooms, order: Iterable[str]) -> None:
        self._decider = decider
        self._ledger = ledger
        self._version = decider.version
        self._seen = ledger.changes  # number of the last change that is taken into account
        self._unseen = dict.fromkeys(chain(order, ledger.known_nodes()))  # names of nodes that are to be looked at
        self._ranked: list[Ranked] = []
        self._old: list[Ranked] = []  # the same for the nodes whose rank is older than the prices
        self._turns: deque[str] = deque()  # names of these nodes, and maybe of others that were among them
        self._fitting: dict[str, Decision] = {}  # node name -> its rank and cards
        self.refused: dict[str, Refusal] = {}  # node name -> why not; nodes of the ledger only
        self._reasons: dict[Refusal, Refusal] = {}  # each reason once: thousands of nodes share a few
        self.evaluations = 0
        self._hard_steps_allowed, self._paid_allowed = HARD_STEPS, PAID_STEPS

    @property
    def looked_at(self) -> int:
        """How many nodes were looked at and have not changed since."""
        return len(self._fitting) + len(self.refused)

    @property
    def unseen(self) -> int:
        """How many nodes were not looked at since they have changed."""
        return len(self._unseen)

    def question(self) -> None:
        """Begin a question: it may cost so much, and no more."""
        self._hard_steps_allowed = self._decider.hard_steps + HARD_STEPS
        self._paid_allowed = self._decider.paid + PAID_STEPS

    @property
    def hard_steps(self) -> int:
        """Steps of searches so far, beyond what plain ones take."""
        return self._decider.hard_steps

    @property
    def is_exhausted(self) -> bool:
        """Return whether the question has cost what it may."""
        spent = self._decider.hard_steps >= self._hard_steps_allowed or self._decider.paid >= self._paid_allowed
        return spent or self.waits

    @property
    def waits(self) -> bool:
        """See Decider."""
        return self._decider.waits

    @property
    def why_it_waits(self) -> str:
        """See Decider."""
        return self._decider.why_it_waits

    @property
    def is_unfinished(self) -> bool:
        """Return whether there was no work left to look at all nodes, and the next look goes on."""
        return bool(self._unseen) and not self.is_exhausted and not self.why_it_waits

    @property
    def why_unseen(self) -> str:
        """Return why nodes can't be looked at that are to be, for people; empty if they can."""
        return self.why_it_waits if self._unseen else ""

    @property
    def _many(self) -> bool:
        return len(self._fitting) + len(self.refused) + len(self._unseen) > ALL_LOOKED_AT

    def look_around(self, node_names: Container[str] | None) -> Iterator[None]:
        """Look at all nodes that are new or have changed; of many only until one of these fits. None stands for any.

        Begins a question. Yields between two looks, at some nodes each. Ends early when that has cost what it may.
        """
        self.question()
        number = LOOKED_AT if self._many else LOOKED_AT_A_TIME
        self.look_further(number - self._update(number))
        while self._unseen and not self.is_exhausted and not (self._many and self._is_any_of(node_names)):
            yield
            before = self.evaluations + self._decider.paid
            self.look_further(LOOKED_AT_A_TIME)
            if self.evaluations + self._decider.paid == before:  # others use up the namespace's turns
                return

    def _is_any_of(self, node_names: Container[str] | None) -> bool:
        """Return whether one of these fits."""
        return any(node_names is None or name in node_names for name in self._fitting)

    def _update(self, at_once: int) -> int:
        """Look at nodes that were touched since the last time, and rank some again whose rank is old.

        Returns how many it has looked at, which are not more than `at_once`.
        """
        if self._version != self._decider.version:
            self._version = self._decider.version
            self._old = sorted(self._old + self._ranked)
            self._ranked = []
            self._turns = deque(name for _, name in self._old)
        touched, changes = list(self._ledger.touched_since(self._seen)), self._ledger.changes
        self._set_aside(touched[at_once:])
        self._decide(touched[:at_once])
        self._seen = changes  # not before: what is not looked at must not count as seen
        if self._old:
            number = RANKED_AGAIN_OF_MANY if self._many else RANKED_AGAIN
            in_turn = [self._turns.popleft() for _ in range(min(number, len(self._turns)))]
            best = [name for _, name in self._old[:number]]
            self._rank_again(dict.fromkeys(best + in_turn))
        return len(touched[:at_once])

    def look_further(self, number: int) -> None:
        """Look at so many of the nodes that are to be looked at."""
        self._decide(list(islice(self._unseen, number)))

    def ranking(self) -> Ranking:
        """Return how the best nodes compare, for people. Costs the same however many there are."""
        return Ranking(self._decider.policy_name, len(self._fitting), tuple(self._ranked[:RANKS_SHOWN]))

    def first(self, node_names: Container[str] | None, but: Container[str] = ()) -> Found | None:
        """Return the preferred node of those named, None if none fits."""
        for is_old, nodes in ((False, self._ranked), (True, self._old)):
            for rank, name in nodes:
                if name not in but and (node_names is None or name in node_names):
                    return is_old, (rank, name)
        return None

    def assignment(self, node_name: str) -> Assignment:
        """Return the cards of each container on a node that fits."""
        return self._fitting[node_name].assignment

    def in_order(self, latest: str = "") -> Iterator[tuple[str, Assignment]]:
        """Yield the nodes that fit with the cards of each container, the preferred first.

        By prices, once there are any, the `latest` node to which a pod went is preferred to those that cost hardly
        less.
        """
        ahead: tuple[str, ...] = ()
        decision = self._fitting.get(latest)
        if decision and decision.effect and self._version and _place(self._ranked, (decision.rank, latest)) is not None:
            best, _ = self._ranked[0]
            ahead = (latest,) if decision.rank[0] <= best[0] + NODES_NEARLY_EQUAL else ()
        for name in chain(ahead, (name for _, name in chain(self._ranked, self._old) if name not in ahead)):
            yield name, self._fitting[name].assignment

    def _set_aside(self, names: list[str]) -> None:
        """Forget what is known of these nodes, and have them looked at later."""
        for name in names:
            self._drop(name)
            self.refused.pop(name, None)
            self._unseen[name] = None

    def _decide(self, names: list[str]) -> None:
        """Look at nodes, as long as the question allows; the others are looked at later."""
        if not names:  # as a rule there are none to look further at
            return
        nodes = [self._ledger.node_room(name) for name in names]
        decisions = self._decider.decide(nodes, self._hard_steps_allowed)
        self.evaluations += len(decisions)
        for node, decision in zip(nodes, decisions, strict=False):
            self._unseen.pop(node.name, None)
            self._drop(node.name)
            self.refused.pop(node.name, None)
            if not isinstance(decision, Refusal):
                self._add(node.name, decision)
            elif node.cards or node.counted is not None:  # another may be gone for good: nothing is kept of it
                self.refused[node.name] = self._reasons.setdefault(decision, decision)
        self._set_aside(names[len(decisions) :])

    def _rank_again(self, names: Iterable[str]) -> None:
        """Rank those of these nodes again whose rank is old."""
        old = [name for name in names if name in self._fitting and _place(self._old, self._rank_of(name)) is not None]
        for name, decision in zip(old, self._decider.rank_again([self._fitting[name] for name in old]), strict=True):
            self._drop(name)
            self._add(name, decision)

    def _rank_of(self, name: str) -> Ranked:
        return (self._fitting[name].rank, name)

    def _drop(self, name: str) -> None:
        if name in self._fitting:
            ranked = self._rank_of(name)
            for nodes in (self._ranked, self._old):
                place = _place(nodes, ranked)
                if place is not None:
                    del nodes[place]
            del self._fitting[name]

    def _add(self, name: str, decision: Decision) -> None:
        insort(self._ranked, (decision.rank, name))
        self._fitting[name] = decision


def _place(nodes: list[Ranked], ranked: Ranked) -> int | None:
    """Return where a node is in a sorted list, None if it is not there."""
    place = bisect_left(nodes, ranked)
    return place if place < len(nodes) and nodes[place] == ranked else None


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
        self,
        ledger: Ledger,
        policy: Policy,
        mix: Mix | None = None,
        entries_kept: int = ENTRIES_KEPT,
        pricers: PricerImports = PRICERS,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._entries_kept = entries_kept
        self._mix = mix or Mix()
        self._pricers = Pricers(ledger, self._mix, policy, pricers)
        # (ask, policy) -> set, least recently asked first
        self._sets: OrderedDict[tuple[Footprint, Policy], FittingNodes] = OrderedDict()
        self._dropped_evaluations = 0
        self._latest = ""  # name of the node to which the last pod went

    @property
    def evaluations(self) -> int:
        """How often a node was compared with an ask so far."""
        return self._dropped_evaluations + sum(known.evaluations for known in self._sets.values())

    def arrived(self, request: PodRequest) -> None:
        """Record that a new pod has come, before it is asked for."""
        self._mix.arrived(Footprint(request.shape, request.host))

    def given_out(self, cards: float) -> None:
        """Record that a pod has got cards, or parts of cards."""
        self._mix.given_out(cards)

    def given_back(self, cards: float) -> None:
        """Record that a pod has ended that had cards."""
        self._mix.given_back(cards)

    def taken_over(self) -> None:
        """Record that the ledger has had holders before it was looked at here."""
        self._mix.taken_over()

    def choose(
        self, request: PodRequest, node_names: Collection[str], count: int, avoided: Collection[str] = ()
    ) -> Choice:
        """Return up to `count` of the named nodes that fit, the preferred first; if none does, why.

        Nodes to be avoided are returned only if no other one fits. Raises WorkLimitExceeded.
        """
        wanted = _quick(node_names)
        known = self.fitting(request)
        self._pricers.tick()
        for _ in known.look_around(wanted):
            pass
        fitting = self._placements(known, request, wanted, avoided)
        if placements := tuple(islice(fitting, count)):
            self._latest = placements[0].node_name
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
        yield from self.fitting(request).look_around(_quick(node_names))

    def best(
        self, request: PodRequest, node_names: Container[str] | None, work: StepBudget | None = None
    ) -> Placement | None:
        """Return the preferred placement on one of these nodes, None if none fits. None as names stands for any.

        Nodes are looked at as long as `work` is left, and it is spent of it. Those that fit but were not looked at yet
        are found when it is asked for again.
        """
        self._pricers.tick()
        known = self.fitting(request)
        if not looked_around(known, node_names, work):
            return None
        best = next(self._placements(known, request, node_names), None)
        if best is not None:
            self._latest = best.node_name
        return best

    def fitting_in(self, rooms: Rooms, request: PodRequest) -> FittingNodes:
        """Return the same for nodes that have other rooms than in the ledger; the caller keeps it."""
        return FittingNodes(Decider(*self._key(request), self._pricers, as_if=True), rooms, ())

    def tick(self) -> None:
        """Let prices do a bit of their work."""
        self._pricers.tick()

    def is_unfinished(self, request: PodRequest) -> bool:
        """Return whether `best` has had no work left to look at all nodes, and goes on where it was."""
        return self.fitting(request).is_unfinished

    def why_it_waits(self, request: PodRequest) -> str:
        """Return why `best` can't look at all nodes now, for people; empty if it can."""
        return self.fitting(request).why_unseen

    def fits(self, shape: Shape, node_name: str, work: StepBudget) -> bool:
        """Return whether a pod of this shape fits on a node now, once offers are taken back. It is spent of `work`."""
        work.spend(STEPS_OF_A_LOOK)
        room = self._ledger.room_if(node_name)
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
        for name, assignment in known.in_order(self._latest):
            if name not in avoided and (node_names is None or name in node_names):
                yield self._placement(request, name, assignment)

    def look_further(self) -> bool:
        """Look at some nodes for a new request while no question waits for an answer; return whether there are any."""
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
        replicated = self._ledger.hosts.is_replicated(node_name)
        room = NodeRoom(node_name, offer=None, cards=(), rooms=(), replicated=replicated)
        refusal = refuse_alone(request.shape[0], room)
        if refusal is None:
            raise AssertionError("a node without cards can't fit")
        return refusal

    def _key(self, request: PodRequest) -> tuple[Footprint, Policy]:
        policy = self._policy.wished(request)
        priced = policy.nodes not in NODE_RANKS or policy.cards not in CARD_RANKS
        return Footprint(request.shape, request.host if priced else NO_HOST), policy

    def _may_keep_all(self) -> bool:
        """Return whether the sets are few enough; each comes to have an entry for every node."""
        nodes = len(self._ledger.node_names())
        return len(self._sets) <= min(SETS_KEPT, self._entries_kept // max(nodes, 1))

    def fitting(self, request: PodRequest) -> FittingNodes:
        """Return the nodes on which a request fits, as far as they were looked at."""
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


def looked_around(known: FittingNodes, node_names: Container[str] | None, work: StepBudget | None) -> bool:
    """Look at nodes as long as `work` is left, of which it is spent; return whether some was left to the end."""
    before = _steps(known)
    try:
        looks = known.look_around(node_names)
        return not any(work is not None and _steps(known) - before > work.left for _ in looks)
    finally:
        if work is not None:
            work.spend(_steps(known) - before)


def _steps(known: FittingNodes) -> int:
    return known.hard_steps + STEPS_OF_A_LOOK * known.evaluations


def _quick(names: Collection[str]) -> Container[str]:
    """Return names as something that tells quickly which are among them."""
    return set(names) if isinstance(names, Sequence) else names
