"""Chooses the cheapest victims for several pods at once, over several nodes: all of them fit then, or nobody leaves.

Three things couple the nodes, and each is enumerated:

- *Which gangs leave* of those that are on several nodes: all sets of up to `EXACT_GANGS` of them; of more, the cheapest
  ones, one after the other.
- *The highest priority* that leaves: it is a maximum, the rest of a cost are sums. With it given, the cheapest victims
  of the nodes add up, so the best way to share the pods out among the nodes is found by dynamic programming.
- *What a budget allows* to several nodes: each way to share it out, up to `EXACT_STATES` of them in all; of more, the
  first nodes take what they need.

So the answer is the cheapest there is, as far as the answers for each node are (`several_pods.py`), nothing of that is
beyond its limit, and the work is enough: for 64 pods of one whole card, 74,000 steps with 40 nodes of 8 cards, and
380,000 with 200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple, TypeAlias

from gpuledger.placement.preemption.cost import LOWEST_PRIORITY, NOT_STARTED_S, Cost, Tenant, cost_of
from gpuledger.placement.preemption.several_pods import GroupNode, Kind, Numbers, Seat, SeveralPods
from gpuledger.placement.preemption.victims import Eviction
from gpuledger.placement.step_budget import StepBudget

EXACT_GANGS = 6
EXACT_STATES = 64
"""Ways to share out what budgets allow."""

_Sum = tuple[int, int, int, int]
"""Violations, sum of the priorities, number of victims, and minus the earliest start of those of highest priority."""


@dataclass(frozen=True, slots=True)
class GroupEviction:
    """Pods that have to leave, and the places of all others once they are gone."""

    seats: tuple[Seat, ...]
    victims: tuple[str, ...]
    """Pod UIDs, sorted."""
    cost: Cost


_Chain: TypeAlias = "tuple[()] | tuple[_Chain, Numbers, Eviction]"


class _Plan(NamedTuple):
    """The best known way to give some pods their places on the nodes so far."""

    sum: _Sum
    chain: _Chain
    """Who leaves the last of these nodes, and what was before."""

    def answers(self) -> Iterator[tuple[Numbers, Eviction]]:
        """Yield how many come to each node, and who leaves it."""
        chain = self.chain
        while chain:
            chain, numbers, answer = chain
            yield numbers, answer


def cheapest_group_eviction(
    kinds: Sequence[Kind],
    nodes: Sequence[GroupNode],
    allowed: Mapping[str, int],
    work: StepBudget,
    host_takes: Callable[[str, Numbers, Collection[str]], bool] = lambda name, numbers, victims: True,
) -> GroupEviction | None:
    """Return who has to leave so that all pods of these kinds fit, at the least cost; None if that can't be had.

    `host_takes` tells whether a node's CPU and memory are enough for so many pods, once some have left it.
    """
    search = _GroupSearch(kinds, nodes, allowed, work, host_takes)
    levels = search.levels
    with search.half_of(work):  # what follows makes it better
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
        work: StepBudget,
        host_takes: Callable[[str, Numbers, Collection[str]], bool],
    ) -> None:
        self._kinds = kinds
        self._nodes = sorted(nodes, key=_promising)
        self._allowed = allowed
        self._work = work
        tenants = [{t.uid: t for t in node.tenants.values() if not t.leaves} for node in nodes]
        on_nodes = Counter(uid for there in tenants for uid in there)
        everybody = {uid: tenant for there in tenants for uid, tenant in there.items()}
        self._wide = {uid: everybody[uid] for uid, number in on_nodes.items() if number > 1}
        self._all = everybody
        self.levels = sorted({tenant.priority for tenant in everybody.values()}) or [0]
        self._several = SeveralPods(kinds, self._nodes, self._wide.keys(), work, host_takes)

    @contextmanager
    def half_of(self, work: StepBudget) -> Iterator[None]:
        """Have only half of the work that is left for a while."""
        half = work.left // 2
        self._work = self._several.work = StepBudget(half)
        yield
        work.spend(half - max(0, self._work.left))
        self._work = self._several.work = work

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
        most_allowed = tuple(left[name] for name in shared)
        for splits in product(*(range(number + 1) for number in most_allowed)):
            budgets = {**left, **dict(zip(shared, splits, strict=True))}
            options = list(self._options(position, highest, gone, budgets))
            for (missing, still_allowed), plan in plans.items():
                if not _at_least(still_allowed, splits) or not self._work.spend(1 + len(options) // 4):
                    continue
                others = tuple(map(int.__sub__, still_allowed, splits))
                for numbers, answer in options:
                    if not _at_least(missing, numbers):
                        continue
                    before, cost = plan.sum, answer.cost
                    total = before[0] + cost[0], before[1] + cost[2], before[2] + cost[3], max(before[3], cost[4])
                    key = tuple(map(int.__sub__, missing, numbers)), others
                    known = best.get(key)
                    if known is None or total < known.sum:
                        best[key] = _Plan(total, (plan.chain, numbers, answer))
        return best

    def _options(
        self, position: int, highest: int, gone: frozenset[str], allowed: Mapping[str, int]
    ) -> Iterator[tuple[Numbers, Eviction]]:
        """Yield how many can come to a node, and who leaves it then."""
        name = self._nodes[position].room.name
        most = (range(kind.number + 1 if name in kind.node_names else 1) for kind in self._kinds)
        hopeless: list[Numbers] = []
        for numbers in sorted(product(*most), key=sum):
            if any(numbers) and not self._work.is_spent and not any(_at_least(numbers, other) for other in hopeless):
                answer = self._several.answer(position, numbers, highest, gone, allowed)
                if answer is None:
                    hopeless.append(numbers)
                else:
                    yield numbers, answer

    def _result(self, plan: _Plan, gone: Sequence[Tenant]) -> GroupEviction:
        of_pod = {uid: tenant for tenant in self._all.values() for uid in tenant.uids}
        chosen = {of_pod[uid].uid: of_pod[uid] for _, answer in plan.answers() for uid in answer.victims}
        chosen |= {tenant.uid: tenant for tenant in gone}
        return GroupEviction(
            tuple(seat for numbers, answer in plan.answers() for seat in self._several.seats(numbers, answer)),
            tuple(sorted(uid for tenant in chosen.values() for uid in tenant.uids)),
            cost_of(chosen.values(), self._allowed),
        )


def _promising(node: GroupNode) -> tuple[int, int]:
    """Sort key: where there is room, and then where the least important pods are."""
    idle = sum(room.idle for room in node.room.rooms)
    return -idle, min((tenant.priority for tenant in node.tenants.values()), default=LOWEST_PRIORITY)


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
