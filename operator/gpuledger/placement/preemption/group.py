"""Chooses the cheapest victims for several pods at once, over several nodes: all of them fit then, or no pod leaves.

Three things couple the nodes, and each is enumerated:

- *Which gangs leave* of those that are on several nodes: all sets of up to `EXACT_GANGS` of them; of more, the cheapest
  ones, one after the other.
- *The highest priority* that leaves: it is a maximum, the rest of a cost are sums. With it given, the cheapest victims
  of the nodes add up, so the best way to share the pods out among the nodes is found by dynamic programming.
- *The disruptions that a budget allows* on several nodes: each way to share them out, up to `EXACT_STATES` of them in
  all; of more, the first nodes take as many as they need.

So the answer is the cheapest there is, as far as the answers for each node are, nothing of that is beyond its limit,
and the work is enough: for 64 pods of one whole card, 74,000 steps with 40 nodes of 8 cards, and 380,000 with 200.

The victims on one node for several pods of a group: of pods that can't share a card, any number are one pod with as
many times the cards to the search. Others are so many containers of one pod, up to `EXACT_TOGETHER` where the group has
up to `EXACT_NODES` nodes; init containers count then as if they ran beside the others. Of more, each gets the cheapest
place beside those before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import NamedTuple, TypeAlias

from gpuledger.ledger.entry import CardEntry, NodeRoom
from gpuledger.model.errors import Refusal
from gpuledger.model.request import Demand, Lifetime, PodRequest, Shape
from gpuledger.model.share import LOWEST_PRIORITY, Assignment, shares_of
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Preference, StepBudget
from gpuledger.placement.preemption.tenants import FREE, NOT_STARTED_S, Cost, Tenant, cost_of, joined
from gpuledger.placement.preemption.victims import WORK_LIMIT, Eviction, cheapest_eviction

EXACT_TOGETHER = 4
"""Containers that could share cards, of pods that come to one node together."""
EXACT_NODES = 8

Numbers = tuple[int, ...]
"""How many pods of each kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Interchangeable pods: of one shape, for the same nodes."""

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


@dataclass(slots=True)
class SeveralPods:
    """Answers for each node, each once."""

    kinds: Sequence[Kind]
    nodes: Sequence[GroupNode]
    wide: Collection[str]
    """UIDs of the tenants that are on several nodes."""
    work: StepBudget
    host_takes: Callable[[str, Numbers, Collection[str]], bool]
    _answers: dict[tuple[object, ...], Eviction | None] = field(default_factory=dict)

    def answer(
        self, position: int, numbers: Numbers, highest: int, gone: frozenset[str], allowed: Mapping[str, int]
    ) -> Eviction | None:
        """Return the victims on one node for so many pods of each kind."""
        node = self.nodes[position]
        names = sorted({name for tenant in node.tenants.values() for name in tenant.budgets})
        here = gone.intersection(tenant.uid for tenant in node.tenants.values())
        key = (position, numbers, highest, here, tuple(allowed.get(name, 0) for name in names))
        if key not in self._answers:
            self._answers[key] = self._asked(position, numbers, highest, gone, allowed)
        return self._answers[key]

    def _asked(
        self, position: int, numbers: Numbers, highest: int, gone: frozenset[str], allowed: Mapping[str, int]
    ) -> Eviction | None:
        node, tenants = self.nodes[position], dict[str, Tenant]()
        for uid, tenant in node.tenants.items():
            if tenant.leaves or tenant.uid in gone:
                tenants[uid] = replace(tenant, leaves=True)
            elif tenant.priority <= highest and tenant.uid not in self.wide:
                started_s = tenant.started_s if tenant.priority == highest else 0
                tenants[uid] = replace(tenant, priority=highest, weight=tenant.above_lowest, started_s=started_s)
        asked = self._together_on if self._are_exact(numbers, node.room) else self._one_by_one_on
        found = asked(
            node, numbers, tenants, allowed, lambda fewer: self.answer(position, fewer, highest, gone, allowed)
        )
        if found is None:
            return None
        left = {uid for uid, tenant in tenants.items() if tenant.leaves} | {*found.victims}
        return found if self.host_takes(node.room.name, numbers, left) else None

    def _are_exact(self, numbers: Numbers, room: NodeRoom) -> bool:
        """Return whether so many pods are asked for as one."""
        kinds = [(kind.shape, number) for kind, number in zip(self.kinds, numbers, strict=True) if number]
        containers = sum(1 if _are_alone(shape, room) else number * len(shape) for shape, number in kinds)
        few = EXACT_TOGETHER if len(self.nodes) <= EXACT_NODES else 1
        return containers <= few or sum(numbers) == 1 or room.counted is not None

    def _together_on(
        self,
        node: GroupNode,
        numbers: Numbers,
        tenants: Mapping[str, Tenant],
        allowed: Mapping[str, int],
        fewer: Callable[[Numbers], Eviction | None],
    ) -> Eviction | None:
        shape, preference = self._together(numbers, node.room), self._preference(numbers)
        if node.room.counted is None:
            return self._cheapest(shape, node.room, node.entries, tenants, allowed, preference)
        cards = choose_cards(shape, node.room, preference)
        return None if isinstance(cards, Refusal) else Eviction(node.room.name, (), cards, FREE)

    def _one_by_one_on(
        self,
        node: GroupNode,
        numbers: Numbers,
        tenants: Mapping[str, Tenant],
        allowed: Mapping[str, int],
        fewer: Callable[[Numbers], Eviction | None],
    ) -> Eviction | None:
        """Return the victims for all but one of them, and for one more beside these."""
        last = max(position for position, number in enumerate(numbers) if number)
        others = tuple(number - (position == last) for position, number in enumerate(numbers))
        found, kind = fewer(others), self.kinds[last]
        if found is None:
            return None
        entries = {entry.card.uuid: entry.as_it_is() for entry in node.entries}
        for number, seat in enumerate(self.seats(others, found)):
            shape = self.kinds[seat.kind].shape
            request = PodRequest(tuple(map(str, range(len(shape)))), shape)
            for share in shares_of(request, seat.assignment, node.room.cards):
                entries[share.uuid].seats[f"seat {number}"] = share
        rooms = tuple(entries[room.card.uuid].room() for room in node.room.rooms)
        victims = {tenants[uid].uid: tenants[uid] for uid in found.victims if uid in tenants}
        taken = Counter(name for tenant in victims.values() for name in tenant.budgets)
        left = {name: max(0, number - taken[name]) for name, number in allowed.items()}
        now = {uid: replace(t, leaves=True) if t.uid in victims else t for uid, t in tenants.items()}
        room = replace(node.room, rooms=rooms)
        more = self._cheapest(kind.shape, room, list(entries.values()), now, left, kind.preference)
        if more is None:
            return None
        given = (*found.assignment, *more.assignment)
        if _are_alone(kind.shape, node.room) and others[last]:
            given = (*found.assignment[:-1], found.assignment[-1] + more.assignment[0])
        cost = joined(found.cost, more.cost)
        return Eviction(node.room.name, tuple(sorted((*found.victims, *more.victims))), given, cost)

    def _cheapest(
        self,
        shape: Shape,
        room: NodeRoom,
        entries: Sequence[CardEntry],
        tenants: Mapping[str, Tenant],
        allowed: Mapping[str, int],
        preference: Preference,
    ) -> Eviction | None:
        work = StepBudget(max(0, min(WORK_LIMIT, self.work.left)))
        before = work.left
        found = cheapest_eviction(shape, room, entries, tenants, allowed, preference, work=work)
        self.work.spend(1 + 2 * len(entries) + before - max(0, work.left))
        return found

    def _preference(self, numbers: Numbers) -> Preference:
        return next(kind.preference for kind, number in zip(self.kinds, numbers, strict=True) if number)

    # Several pods as one.

    def _together(self, numbers: Numbers, node: NodeRoom) -> Shape:
        if sum(numbers) == 1:
            return self.kinds[numbers.index(1)].shape
        shape: list[Demand] = []
        for kind, number in zip(self.kinds, numbers, strict=True):
            if number and _are_alone(kind.shape, node):
                shape.append(replace(kind.shape[0], cards=number * kind.shape[0].cards))
            else:
                for _ in range(number):
                    shape += _beside(kind.shape, rules=sum(len(demand.rules) for demand in shape))
        return tuple(shape)

    def seats(self, numbers: Numbers, found: Eviction) -> Iterator[Seat]:
        """Yield the places of pods that were asked for as one."""
        room = next(node.room for node in self.nodes if node.room.name == found.node_name)
        given = list(found.assignment)
        for position, (kind, number) in enumerate(zip(self.kinds, numbers, strict=True)):
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


def _are_alone(shape: Shape, node: NodeRoom) -> bool:
    """Return whether pods of one container each never share a card, so that several ask for as many times the cards."""
    demand = shape[0]
    if len(shape) > 1 or demand.joint or demand.lifetime is not Lifetime.MAIN:
        return False
    amounts = [(demand.amounts_on(card.capacity), card.capacity) for card in node.cards]
    return demand.exclusive or not any((each + each).fits_in(capacity) for each, capacity in amounts)


def _beside(shape: Shape, rules: int) -> list[Demand]:
    """Return a pod's containers as some that run beside all others: each pod's init containers run at its own time.

    Its rules are numbered from `rules` on, for they are about this pod's cards alone.
    """
    constraints = sorted({rule.constraint for demand in shape for rule in demand.rules})
    number_of = {constraint: rules + number for number, constraint in enumerate(constraints)}
    main = [replace(each, lifetime=Lifetime.MAIN) if each.lifetime is Lifetime.INIT else each for each in shape]
    return [
        replace(each, rules=tuple(replace(rule, constraint=number_of[rule.constraint]) for rule in each.rules))
        if each.rules
        else each
        for each in main
    ]


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
    """The victims on the last of these nodes, and the chain before."""

    def answers(self) -> Iterator[tuple[Numbers, Eviction]]:
        """Yield each node's number of new pods and its victims."""
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
    """Return the cheapest victims so that all pods of these kinds fit; None if there are none.

    `host_takes` says whether a node's CPU and memory are enough for so many pods, once some have left it.
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
        """Return the best solution without victims above this priority."""
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
