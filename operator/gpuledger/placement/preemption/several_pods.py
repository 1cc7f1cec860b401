"""Who leaves one node for several pods of a group.

Of pods that can't share a card, any number are one pod with as many times the cards to the search. Others are so many
containers of one pod, up to `EXACT_TOGETHER` where the group has up to `EXACT_NODES` nodes; init containers count then
as if they ran beside the others. Of more, each gets the cheapest place beside those before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuledger.ledger.entry import CardEntry, NodeRoom
from gpuledger.model.refusal import Refusal
from gpuledger.model.request import Demand, Lifetime, PodRequest, Shape
from gpuledger.model.share import Assignment, shares_of
from gpuledger.placement.fit import choose_cards
from gpuledger.placement.policy import Preference
from gpuledger.placement.preemption.cost import FREE, Tenant, joined
from gpuledger.placement.preemption.victims import WORK_LIMIT, Eviction, cheapest_eviction
from gpuledger.placement.step_budget import StepBudget

EXACT_TOGETHER = 4
"""Containers that could share cards, of pods that come to one node together."""
EXACT_NODES = 8

Numbers = tuple[int, ...]
"""How many pods of each kind."""


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
        """Return who leaves one node so that so many fit there."""
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
        """Tell whether so many pods are asked for as one."""
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
        """Return who leaves for all but one of them, and for one more beside these."""
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
                entries[share.uuid].holds[f"seat {number}"] = share
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
    """Tell whether pods of one container each never share a card, so that several ask for as many times the cards."""
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
