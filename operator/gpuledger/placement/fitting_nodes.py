"""The nodes on which pods with one ask fit, kept up to date where something has changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from gpuledger.ledger.book import Ledger
from gpuledger.model.refusal import Refusal
from gpuledger.model.share import Assignment
from gpuledger.placement.decide import Decider, Decision
from gpuledger.placement.policy import NodeRank

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
"""Steps of one question, beyond what plain requests take: some 5 ms, and those of its last node. Who asks for more is
told to ask again; what was found out is kept, and between the questions the rest is looked at."""

PAID_STEPS = 200_000
"""What selectors of one question may cost, some microsecond each: kube-scheduler asks nothing else meanwhile."""

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


class FittingNodes:
    """The nodes on which pods with one ask fit, ranked. Costs what has changed since the last look."""

    def __init__(self, decider: Decider, ledger: Ledger, order: Iterable[str]) -> None:
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
        """Tell whether the question has cost what it may."""
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
        """Tell whether one of these fits."""
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

    def in_order(self) -> Iterator[tuple[str, Assignment]]:
        """Yield the nodes that fit with the cards of each container, the preferred first."""
        for _, name in chain(self._ranked, self._old):
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
