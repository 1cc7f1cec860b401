"""Chooses the cheapest victims for several pods at once, over several nodes: all of them fit then, or nobody leaves.

Three things couple the nodes, and each is enumerated:

- *Which gangs leave* of those that are on several nodes: all sets of up to `EXACT_GANGS` of them; of more, the cheapest
  ones, one after the other.
- *The highest priority* that leaves: it is a maximum, the rest of a cost are sums. With it given, the cheapest victims
  of the nodes add up, so the best way to share the pods out among the nodes is found by dynamic programming.
- *What a budget allows* to several nodes: each way to share it out, up to `EXACT_STATES` of them in all; of more, the
  first nodes take what they need.

So the answer is the cheapest there is, as far as the search for one node is exact (`victims.py`), nothing of the above
is beyond its limit, the work is enough, and the pods have no init containers (where several come to a node, these count
as if they ran beside the others). Of pods that can't share a card, `number` of one kind are one pod with as many times
the cards to the search; others are so many containers of one pod. With 65,536 steps of `Work` it has looked at 40 nodes
of 8 cards for 64 pods of one card (see the test).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import NamedTuple

from gpuledger.ledger.entry import CardEntry, NodeRoom
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import Demand, Lifetime, Shape
from gpuledger.model.share import Assignment
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Preference
from gpuledger.placement.preemption.cost import NOT_STARTED_S, Cost, Tenant, cost_of
from gpuledger.placement.preemption.victims import WORK_LIMIT, Eviction, cheapest_eviction
from gpuledger.placement.work import Work

EXACT_GANGS = 6
EXACT_STATES = 64
"""Ways to share out what budgets allow."""

Numbers = tuple[int, ...]
"""How many pods of each kind."""

_Sum = tuple[int, int, int, int]
"""Violations, sum of the priorities, number of victims, and minus the earliest start of those of highest priority."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that come to the same for everybody else."""

    shape: Shape
    number: int
    """How many of them need a place."""
    node_names: Collection[str]
    """The nodes that they may go to."""
    preference: Preference = Preference.BINPACK


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A node, and who could leave it; `tenants` by pod UID, with those of a gang as one, see `cost.together`."""

    room: NodeRoom
    entries: Sequence[CardEntry]
    tenants: Mapping[str, Tenant]


class Seat(NamedTuple):
    """One pod's place."""

    kind: int
    """Its position among the kinds."""
    node_name: str
    assignment: Assignment
    """The cards of each container."""


@dataclass(frozen=True, slots=True)
class GroupEviction:
    """Pods that have to leave, and the places of all others once they are gone."""

    seats: tuple[Seat, ...]
    victims: tuple[str, ...]
    """Pod UIDs, sorted."""
    cost: Cost


class _Plan(NamedTuple):
    """The best known way to give some pods their places on the nodes so far."""

    sum: _Sum
    answers: tuple[tuple[Numbers, Eviction], ...]


def cheapest_group_eviction(
    kinds: Sequence[Kind],
    nodes: Sequence[GroupNode],
    allowed: Mapping[str, int],
    work: Work,
    host_takes: Callable[[str, Numbers, Collection[str]], bool] = lambda name, numbers, victims: True,
) -> GroupEviction | None:
    """Return who has to leave so that all pods of these kinds fit, at the least cost; None if that can't be had.

    `host_takes` tells whether a node's CPU and memory are enough for so many pods, once some have left it.
    """
    search = _GroupSearch(kinds, nodes, allowed, work, host_takes)
    levels = search.levels
    best = search.solve(levels[-1])
    if best is None:
        return None
    low, high = 0, len(levels) - 1
    while low < high:  # the lowest priority with which there are no more violations
        middle = (low + high) // 2
        found = search.solve(levels[middle])
        best = min((each for each in (best, found) if each), key=lambda each: each.cost)
        if found is not None and found.cost[0] <= best.cost[0]:
            high = middle
        else:
            low = middle + 1
    return best


class _GroupSearch:
    def __init__(
        self,
        kinds: Sequence[Kind],
        nodes: Sequence[GroupNode],
        allowed: Mapping[str, int],
        work: Work,
        host_takes: Callable[[str, Numbers, Collection[str]], bool],
    ) -> None:
        self._kinds = kinds
        self._nodes = nodes
        self._allowed = allowed
        self._work = work
        self._host_takes = host_takes
        tenants = [{t.uid: t for t in node.tenants.values() if not t.leaves} for node in nodes]
        on_nodes = Counter(uid for there in tenants for uid in there)
        everybody = {uid: tenant for there in tenants for uid, tenant in there.items()}
        self._wide = {uid: everybody[uid] for uid, number in on_nodes.items() if number > 1}
        self._all = everybody
        self.levels = sorted({tenant.priority for tenant in everybody.values()}) or [0]
        self._answers: dict[tuple[object, ...], Eviction | None] = {}

    def solve(self, highest: int) -> GroupEviction | None:
        """Return the best where nobody leaves of more than this priority."""
        best: GroupEviction | None = None
        wide = [tenant for tenant in self._wide.values() if tenant.priority <= highest]
        wide.sort(key=lambda tenant: (cost_of([tenant], self._allowed), tenant.uid))
        for gone in _sets_of(wide):
            if best is not None and cost_of(gone, self._allowed) >= best.cost:
                continue
            found = self._with(highest, gone)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        return best

    def _with(self, highest: int, gone: Sequence[Tenant]) -> GroupEviction | None:
        """Return the best when exactly these leave of those that are on several nodes."""
        taken = Counter(name for tenant in gone for name in tenant.budgets)
        left = {name: max(0, number - taken[name]) for name, number in self._allowed.items()}
        shared = self._shared_budgets(highest, left)
        begin_s = min((tenant.begin_s for tenant in gone if tenant.priority == highest), default=NOT_STARTED_S)
        _, _, above_lowest, number, _ = cost_of(gone, {})
        violations = cost_of(gone, self._allowed)[0]
        wanted = tuple(kind.number for kind in self._kinds)
        start = (wanted, tuple(left[name] for name in shared))
        plans = {start: _Plan((violations, above_lowest, number, -begin_s), ())}
        uids = frozenset(tenant.uid for tenant in gone)
        for position in range(len(self._nodes)):
            plans = self._one_more(position, plans, highest, uids, left, shared)
            if self._work.is_spent:
                break
        ended = [plan for (missing, _), plan in plans.items() if not any(missing)]
        return self._result(min(ended, key=lambda plan: plan.sum), gone) if ended else None

    def _shared_budgets(self, highest: int, left: Mapping[str, int]) -> tuple[str, ...]:
        """Return the budgets that allow some evictions, and less than all, on more than one node."""
        covered: Counter[str] = Counter()
        on_nodes: Counter[str] = Counter()
        for node in self._nodes:
            there = {t.uid: t for t in node.tenants.values() if not t.leaves and t.priority <= highest}
            here = Counter(name for tenant in there.values() for name in tenant.budgets)
            covered += here
            on_nodes.update(here.keys())
        shared = sorted(n for n in covered if 0 < left.get(n, 0) < covered[n] and on_nodes[n] > 1)
        states, kept = 1, []
        for name in shared:
            states *= left[name] + 1
            if states <= EXACT_STATES:
                kept.append(name)
        return tuple(kept)

    def _one_more(
        self,
        position: int,
        plans: Mapping[tuple[Numbers, Numbers], _Plan],
        highest: int,
        gone: frozenset[str],
        left: Mapping[str, int],
        shared: tuple[str, ...],
    ) -> dict[tuple[Numbers, Numbers], _Plan]:
        """Return the best plans that use one more node."""
        best = dict(plans)
        name = self._nodes[position].room.name
        may = [name in kind.node_names for kind in self._kinds]
        for (missing, still_allowed), plan in plans.items():
            for splits in product(*(range(number + 1) for number in still_allowed)):
                hopeless: list[Numbers] = []
                most = (range(number + 1 if its else 1) for number, its in zip(missing, may, strict=True))
                for numbers in sorted(product(*most), key=sum):
                    if not any(numbers) or any(_at_least(numbers, other) for other in hopeless):
                        continue
                    budgets = {**left, **dict(zip(shared, splits, strict=True))}
                    answer = self._answer(position, numbers, highest, gone, budgets)
                    if answer is None:
                        hopeless.append(numbers)
                        continue
                    rest = tuple(number - its for number, its in zip(missing, numbers, strict=True))
                    others = tuple(number - its for number, its in zip(still_allowed, splits, strict=True))
                    cost, before = answer.cost, plan.sum
                    total = (
                        before[0] + cost[0],
                        before[1] + cost[2],
                        before[2] + cost[3],
                        max(before[3], cost[4]),
                    )
                    known = best.get((rest, others))
                    if known is None or total < known.sum:
                        best[rest, others] = _Plan(total, (*plan.answers, (numbers, answer)))
        return best

    def _answer(
        self, position: int, numbers: Numbers, highest: int, gone: frozenset[str], allowed: Mapping[str, int]
    ) -> Eviction | None:
        """Return who leaves one node so that so many fit there."""
        node = self._nodes[position]
        names = sorted({name for tenant in node.tenants.values() for name in tenant.budgets})
        here = gone.intersection(tenant.uid for tenant in node.tenants.values())
        key = (position, numbers, highest, here, tuple(allowed.get(name, 0) for name in names))
        if key not in self._answers:
            self._answers[key] = self._asked(node, numbers, highest, gone, allowed)
        return self._answers[key]

    def _asked(
        self, node: GroupNode, numbers: Numbers, highest: int, gone: frozenset[str], allowed: Mapping[str, int]
    ) -> Eviction | None:
        tenants: dict[str, Tenant] = {}
        for uid, tenant in node.tenants.items():
            if tenant.leaves or tenant.uid in gone:
                tenants[uid] = replace(tenant, leaves=True)
            elif tenant.priority <= highest and tenant.uid not in self._wide:
                started_s = tenant.started_s if tenant.priority == highest else 0
                tenants[uid] = replace(tenant, priority=highest, weight=tenant.above_lowest, started_s=started_s)
        shape, preference = self._together(numbers, node.room), self._preference(numbers)
        work = Work(max(0, min(WORK_LIMIT, self._work.left)))
        before = work.left
        found: Eviction | None = None
        if node.room.counted is not None:
            cards = choose_cards(shape, node.room, preference, work)
            found = None if isinstance(cards, Refusal) else Eviction(node.room.name, (), cards, cost_of((), {}))
        else:
            found = cheapest_eviction(shape, node.room, node.entries, tenants, allowed, preference, work=work)
        self._work.spend(1 + len(node.entries) + len(tenants) // 4 + before - max(0, work.left))
        if found is None:
            return None
        left = {uid for uid, tenant in tenants.items() if tenant.leaves} | {*found.victims}
        return found if self._host_takes(node.room.name, numbers, left) else None

    def _preference(self, numbers: Numbers) -> Preference:
        return next(kind.preference for kind, number in zip(self._kinds, numbers, strict=True) if number)

    # Several pods as one.

    def _together(self, numbers: Numbers, node: NodeRoom) -> Shape:
        if sum(numbers) == 1:
            return self._kinds[numbers.index(1)].shape
        shape: list[Demand] = []
        for kind, number in zip(self._kinds, numbers, strict=True):
            if number and _are_alone(kind.shape, node):
                shape.append(replace(kind.shape[0], cards=number * kind.shape[0].cards))
            else:
                shape += [_beside(demand) for demand in kind.shape] * number
        return tuple(shape)

    def _seats(self, numbers: Numbers, found: Eviction) -> Iterator[Seat]:
        """Yield the places of pods that were asked for as one."""
        room = next(node.room for node in self._nodes if node.room.name == found.node_name)
        given = list(found.assignment)
        for position, (kind, number) in enumerate(zip(self._kinds, numbers, strict=True)):
            if not number:
                continue
            if sum(numbers) > 1 and _are_alone(kind.shape, room):
                cards, all_cards = kind.shape[0].cards, given.pop(0)
                if not all_cards:  # of a node whose cards are only counted
                    parts: list[Assignment] = [((),)] * number
                else:
                    parts = [(all_cards[i * cards : (i + 1) * cards],) for i in range(number)]
            else:
                size = len(kind.shape)
                parts = [tuple(given[i * size : (i + 1) * size]) for i in range(number)]
                del given[: number * size]
            yield from (Seat(position, found.node_name, part) for part in parts)

    def _result(self, plan: _Plan, gone: Sequence[Tenant]) -> GroupEviction:
        of_pod = {uid: tenant for tenant in self._all.values() for uid in tenant.uids}
        chosen = {of_pod[uid].uid: of_pod[uid] for _, answer in plan.answers for uid in answer.victims}
        chosen |= {tenant.uid: tenant for tenant in gone}
        return GroupEviction(
            tuple(seat for numbers, answer in plan.answers for seat in self._seats(numbers, answer)),
            tuple(sorted(uid for tenant in chosen.values() for uid in tenant.uids)),
            cost_of(chosen.values(), self._allowed),
        )


def _sets_of(tenants: Sequence[Tenant]) -> Iterator[tuple[Tenant, ...]]:
    """Yield the sets of tenants that are tried."""
    if len(tenants) <= EXACT_GANGS:
        for number in range(len(tenants) + 1):
            yield from combinations(tenants, number)
        return
    yield ()
    yield from ((tenant,) for tenant in tenants)
    yield from (tuple(tenants[:number]) for number in range(2, len(tenants) + 1))


def _at_least(numbers: Numbers, others: Numbers) -> bool:
    return all(number >= other for number, other in zip(numbers, others, strict=True))


def _are_alone(shape: Shape, node: NodeRoom) -> bool:
    """Tell whether pods of one container each never share a card, so that several ask for as many times the cards."""
    demand = shape[0]
    if len(shape) > 1 or demand.one_numa_node or demand.lifetime is not Lifetime.MAIN:
        return False
    amounts = [(demand.amounts_on(card.capacity), card.capacity) for card in node.cards]
    return demand.exclusive or not any((each + each).fits_in(capacity) for each, capacity in amounts)


def _beside(demand: Demand) -> Demand:
    """Return a container as one that runs beside all others: each pod's init containers run at its own time."""
    return demand if demand.lifetime is not Lifetime.INIT else replace(demand, lifetime=Lifetime.MAIN)
