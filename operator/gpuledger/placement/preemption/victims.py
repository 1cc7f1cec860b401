"""Chooses the cheapest victims on a node for a pod, by kube-scheduler's order of costs.

kube-scheduler's own answer is often dearer: it lets all pods of a lower priority go and takes them back one by one,
the most important first, and it knows nothing of cards. Here whole sets of victims are compared. Pods that leave anyway
are gone for free in all of them.

The answer is exact if no search meets its limit (`sets.STEPS_LIMIT`, `search.LOOKS_LIMIT`, which tell for
how many tenants that is so). Else the victims are the best that were found, and still each of them is necessary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger.ledger.entry import CardEntry, NodeRoom
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Shape, shape_on
from gpuledger.model.share import Assignment
from gpuledger.placement.fit import choose_cards, takes_pods
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.preemption.search import VictimSearch
from gpuledger.placement.preemption.tenants import FREE, Cost, NodeTenants, Tenant, cost_of, find_tenants, together

__all__ = ["FREE", "Cost", "Eviction", "Question", "Tenant", "cheapest_eviction", "cost_of", "node_without", "together"]


WORK_LIMIT = 16_384
"""Steps of one search. On 8 cards with 9 tenants on each, a pod of three containers took 3,400, one of four 20,000, and
one of eight 84,000: with many containers users could make it last as long as they like."""

GIVE_BACK_LIMIT = 16_384
"""Steps to take back those victims that are not necessary, where the search has met its limit."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Pods that have to leave a node, and the cards that another pod gets then."""

    node_name: str
    victims: tuple[str, ...]
    """Pod UIDs, sorted: those on other nodes, too, that leave together with one here. Not those that leave anyway."""
    assignment: Assignment
    """The cards of each container once they are gone."""
    cost: Cost


@dataclass(frozen=True, slots=True)
class Question:
    """All that decides who has to leave a node for a pod. Equal hard questions have equal answers.

    A hard one takes up to some 90 ms, a pod of one container a few. So it can be answered in a thread: it has copies,
    for the ledger may change meanwhile.
    """

    shape: Shape
    node: NodeRoom
    entries: Sequence[CardEntry]
    tenants: Mapping[str, Tenant]
    allowed: Mapping[str, int]
    preference: Preference

    def kept(self) -> Question:
        """Return the question with copies of what may change, if it is a hard one."""
        if not self.is_hard:
            return self
        return replace(self, entries=[entry.as_it_is() for entry in self.entries], allowed=dict(self.allowed))

    @property
    def is_hard(self) -> bool:
        """Return whether it can take long to answer."""
        return len(self.shape) > 1

    def answer(self, below: Cost | None = None, work: StepBudget | None = None) -> Eviction | None:
        """Return what `cheapest_eviction` returns."""
        arguments = (self.shape, self.node, self.entries, self.tenants, self.allowed, self.preference)
        return cheapest_eviction(*arguments, below, work)


def cheapest_eviction(
    shape: Shape,
    node: NodeRoom,
    entries: Sequence[CardEntry],
    tenants: Mapping[str, Tenant],
    allowed: Mapping[str, int],
    preference: Preference,
    below: Cost | None = None,
    work: StepBudget | None = None,
) -> Eviction | None:
    """Return who has to leave a node for a pod of this shape: the victims that cost least; none, if it fits anyway.

    `entries` are the ledger's lines of the node's cards. `tenants`, by pod UID, are all that may be asked to leave,
    here or elsewhere, and those that leave anyway; who is not among them stays. `allowed` are the evictions that each
    budget allows now, by its name. Among victims of equal cost `preference`, one that ranks cards, plays no role: it
    only chooses among the cards that are free then.

    None if the pod does not fit even when all tenants are gone, or if no victims cost less than `below`; and if the
    `work` is spent before it is clear that each of some victims is necessary.
    """
    if not takes_pods(node, shape) or (below is not None and below <= FREE):
        return None
    shape = shape_on(shape, node.cards)
    node_tenants = find_tenants(node, entries, tenants, allowed)
    limited = work or StepBudget(WORK_LIMIT)
    cards_without = _CardsWithout(shape, node, entries, node_tenants, preference, limited)
    search = VictimSearch(shape, node_tenants, below, cards_without.of, limited)
    search.run()
    found = search.found
    if not search.ended:
        giving_back = replace(cards_without, work=StepBudget(GIVE_BACK_LIMIT))
        found = giving_back.given_back(found)
        if giving_back.work.is_spent:
            return None
    if found is None:
        return None
    victims = node_tenants.chosen(found[0])
    cost = cost_of(victims, allowed)
    if below is not None and cost >= below:
        return None
    return Eviction(node.name, tuple(sorted(uid for tenant in victims for uid in tenant.uids)), found[1], cost)


def node_without(node: NodeRoom, entries: Sequence[CardEntry], pod_uids: Collection[str]) -> NodeRoom:
    """Return a node as placement would see it without some pods. `entries` are the ledger's lines of its cards."""
    if not pod_uids:
        return node
    entry_of = {entry.card.uuid: entry for entry in entries}
    return replace(node, rooms=tuple(entry_of[room.card.uuid].room_if(pod_uids) for room in node.rooms))


@dataclass(frozen=True, slots=True)
class _CardsWithout:
    """The cards that a pod gets on a node when some tenants are gone, given as a set of their numbers."""

    shape: Shape
    node: NodeRoom
    entries: Sequence[CardEntry]
    node_tenants: NodeTenants
    preference: Preference
    work: StepBudget

    def of(self, gone: int) -> Assignment | None:
        """Return the cards of each container, None if the pod does not fit."""
        uids = {uid for tenant in self.node_tenants.chosen(gone) for uid in tenant.uids} | self.node_tenants.leaving
        found = choose_cards(self.shape, node_without(self.node, self.entries, uids), self.preference, self.work)
        return None if isinstance(found, Refusal) else found

    def given_back(self, found: tuple[int, Assignment] | None) -> tuple[int, Assignment] | None:
        """Return victims of which none can be taken back: of those found; or of all tenants, if a search found none.

        Source of the order: kube-scheduler takes pods back whose budgets are violated first, then those of the highest
        priority, then those that have started first.
        """
        if found is None:
            everybody = (1 << len(self.node_tenants.tenants)) - 1
            assignment = self.of(everybody)
            if assignment is None:
                return None
            found = everybody, assignment
        gone, assignment = found
        for number in sorted(self.node_tenants.numbers(gone), key=self._importance, reverse=True):
            fewer = gone & ~(1 << number)
            still = self.of(fewer)
            if still is not None:
                gone, assignment = fewer, still
        return gone, assignment

    def _importance(self, number: int) -> tuple[int, int, int]:
        kind, tenant = self.node_tenants.kind_of[number], self.node_tenants.tenants[number]
        return kind.blocked, tenant.priority, -tenant.begin_s
