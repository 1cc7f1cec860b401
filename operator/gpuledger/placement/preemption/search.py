"""The cheapest victims on one node: which containers go on which cards, and who leaves these.

Branch and bound, card after card. A pod's containers are put on a card, pods in the way leave, and what is
still to be placed goes on the cards that follow. Costs never get smaller on the way, and each card adds at least its
lower bound: what can't be cheaper than the best so far is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product

from gpuledger.model.card import Card
from gpuledger.model.card_attributes import Value, attribute_of
from gpuledger.model.card_rule import CardRule
from gpuledger.model.request import Demand, Lifetime, Shape, phases
from gpuledger.model.share import Assignment
from gpuledger.placement.card_rules import numa_node_of
from gpuledger.placement.preemption.card_needs import Need, need_on
from gpuledger.placement.preemption.cost import FREE, NONE, Cost, Low, at_least, joined
from gpuledger.placement.preemption.sets import LeavingSet, leaving_sets, lowest_cost
from gpuledger.placement.preemption.tenants import NodeTenants, OccupiedCard
from gpuledger.placement.step_budget import StepBudget

LOOKS_LIMIT = 8_192
"""Ways to go on that are looked at on one node, before the best so far is taken. Measured on thousands of random nodes
of 8 cards, with budgets and with pods on several cards: a pod of one container took 230 at most with 12 tenants, one of
two containers 2,000 with 12 tenants, one of three containers 6,400 with 8 tenants. So far the answer is exact. A pod of
one container took 40 with 80 tenants on one card each, if no budget allows some of them and not all. All of the limit
takes some 60 ms."""

LOWS_A_STEP = 8
"""Bounds of a card for a group of containers that are added up in the time of one step."""

Missing = tuple[int, ...]
"""For each container, how many cards it still needs."""

Match = tuple[tuple[int, ...], Callable[[Card], Value | None]]
"""Containers, and what must be the same of all of their cards."""


class VictimSearch:
    """Search for the victims on one node, as a set of their numbers.

    `accept` tells the cards of each container when some tenants have left, None if it finds none.
    """

    def __init__(
        self,
        shape: Shape,
        node_tenants: NodeTenants,
        below: Cost | None,
        accept: Callable[[int], Assignment | None],
        work: StepBudget,
    ) -> None:
        self.found: tuple[int, Assignment] | None = None
        """The best victims, and the cards that the pod gets."""
        self._shape = shape
        self._node_tenants = node_tenants
        self._best = below
        self._accept = accept
        self._looks_left = LOOKS_LIMIT
        self._work = work
        self._cut_short = False  # some sets of one card were not looked at
        self._phases = phases(shape)
        self._missing = tuple(demand.cards for demand in shape)
        self._needs: dict[tuple[int, tuple[int, ...]], Need | None] = {}
        self._sets: dict[tuple[int, tuple[int, ...]], list[LeavingSet]] = {}
        lows = [self._lowest(card) for card in range(self._count)]
        self._order = sorted(range(self._count), key=lambda card: max((low for low in lows[card] if low), default=NONE))
        self._lows = [lows[card] for card in self._order]
        self._places = range(self._count)
        self._matches = self._what_must_match()
        self._marks = self._what_must_differ()
        self._groups = self._groups_apart()
        self._beside = [self._lowest_beside(group) for group in self._groups]
        self._bounds: list[list[list[Low]]] = []  # for each group
        self._open: Sequence[frozenset[int]] = []
        self._seen: set[tuple[int, Missing, int, int]] = set()

    @property
    def ended(self) -> bool:
        """Everything was looked at that could be cheaper: the best found is the best."""
        return self._looks_left >= 0 and not self._cut_short and not self._work.is_spent

    def run(self) -> None:
        """Search, within each choice of what the cards have in common that must match."""
        usable = [self._open_to(container) for container in range(len(self._shape))]
        for chosen in self._choices(usable, self._matches):
            self._open = chosen
            self._bounds = [self._bounds_of(group) for group in self._groups]
            self._seen.clear()
            self._descend(0, self._missing, 0, FREE, (0,) * len(self._node_tenants.limits), 0)

    @property
    def _count(self) -> int:
        return len(self._node_tenants.cards)

    def _card(self, place: int) -> OccupiedCard:
        """Return a card by its place in the order of the search."""
        return self._node_tenants.cards[self._order[place]]

    # The data of each card before the search.

    def _lowest(self, card: int) -> list[Low | None]:
        """Return what each container by itself costs on a card at least, None where there is never room for it."""
        known: dict[Demand, Low | None] = {}
        for container, demand in enumerate(self._shape):
            if demand not in known:
                need = self._need(card, (container,))
                known[demand] = None if need is None else lowest_cost(self._node_tenants.cards[card], need)
        return [known[demand] for demand in self._shape]

    def _groups_apart(self) -> list[tuple[int, ...]]:
        """Return each container, and all together if no two of them fit on one card: groups that add up their cards."""
        everybody = tuple(range(len(self._shape)))
        groups: list[tuple[int, ...]] = [(container,) for container in everybody]
        pairs = product(range(self._count), combinations(everybody, 2))
        if len(groups) > 1 and all(self._need(card, pair) is None for card, pair in pairs):
            groups.append(everybody)
        return groups

    def _low_of(self, place: int, group: tuple[int, ...]) -> Low | None:
        """Return what one of some containers costs on a card at least."""
        lows = [low for container in group if (low := self._lows[place][container]) is not None]
        if len(lows) <= 1:
            return lows[0] if lows else None
        blocked, priority, above_lowest, number = map(min, zip(*lows, strict=True))
        return blocked, priority, above_lowest, number

    def _lowest_beside(self, group: tuple[int, ...]) -> Low:
        """Return what the cards of some containers cost at least, but for one of the cards."""
        lows = [low for place in range(self._count) if (low := self._low_of(place, group)) is not None]
        return _added_up(lows, max(0, sum(self._missing[container] for container in group) - 1))[-1]

    def _need(self, card: int, containers: tuple[int, ...]) -> Need | None:
        key = (card, containers)
        if key not in self._needs:
            self._work.spend(2 * len(containers))
            self._needs[key] = need_on(self._node_tenants.cards[card].card, self._shape, containers, self._phases)
        return self._needs[key]

    def _what_must_match(self) -> list[Match]:
        """Return the conditions by which several cards have to match."""
        found: list[Match] = [
            ((container,), numa_node_of)
            for container, demand in enumerate(self._shape)
            if demand.one_numa_node and demand.cards > 1
        ]
        rules = dict.fromkeys(rule for demand in self._shape for rule in demand.rules if not rule.distinct)
        for rule in rules:
            having = tuple(each for each, demand in enumerate(self._shape) if rule in demand.rules)
            if sum(self._missing[each] for each in having) > 1:
                found.append((having, partial(attribute_of, name=rule.attribute)))
        return found

    def _what_must_differ(self) -> list[list[int]]:
        """Return, for each card in order, what each container has there that no other card may have: a set of bits.

        Nothing, if there are no such rules.
        """
        if not any(rule.distinct for demand in self._shape for rule in demand.rules):
            return []
        bits: dict[tuple[CardRule, Value | None], int] = {}
        found: list[list[int]] = []
        for place in self._places:
            card = self._card(place).card
            values = [
                [(rule, attribute_of(card, rule.attribute)) for rule in demand.rules if rule.distinct]
                for demand in self._shape
            ]
            found.append([sum(1 << bits.setdefault(key, len(bits)) for key in {*keys}) for keys in values])
        return found

    def _choices(
        self, usable: Sequence[frozenset[int]], matches: Sequence[Match]
    ) -> Iterator[Sequence[frozenset[int]]]:
        """Yield the cards for each container, for each choice of what those have in common that must match."""
        if any(len(places) < number for places, number in zip(usable, self._missing, strict=True)):
            return
        if not matches:
            yield usable
            return
        (containers, value_of), *others = matches
        any_of = sorted(frozenset().union(*(usable[container] for container in containers)))
        values = {place: value_of(self._card(place).card) for place in any_of}
        for value in dict.fromkeys(values.values()):
            if not self._work.spend(1 + len(self._groups) * self._count // LOWS_A_STEP):
                return
            with_it = {place for place, its_value in values.items() if its_value == value}
            fewer = [places & with_it if each in containers else places for each, places in enumerate(usable)]
            yield from self._choices(fewer, others)

    def _open_to(self, container: int) -> frozenset[int]:
        """Return the cards, by their place in the order, on which there can be room for the container."""
        return frozenset(place for place in self._places if self._lows[place][container] is not None)

    def _bounds_of(self, group: tuple[int, ...]) -> list[list[Low]]:
        """Return, for each place from which the search goes on, what 0, 1, 2... cards from there on cost at least."""
        bounds: list[list[Low]] = [[NONE]]
        lows: list[Low] = []
        most = sum(self._missing[container] for container in group)
        for place in reversed(range(self._count)):
            low = self._low_of(place, group)
            if low is None or not any(place in self._open[container] for container in group):
                bounds.append(bounds[-1])
                continue
            lows.append(low)
            bounds.append(_added_up(lows, most))
        bounds.reverse()
        return bounds

    # The search.

    def _descend(
        self, place: int, missing: Missing, gone: int, cost: Cost, counts: tuple[int, ...], marks: int
    ) -> None:
        """Put the containers that miss cards on those from a place on, when some tenants are gone.

        `marks` are those of the cards before, which must differ.
        """
        if not any(missing):
            self._note(gone, cost, counts)
            return
        key = (place, missing, gone, marks)
        if key in self._seen or self._hopeless(place, missing, cost, counts):
            return
        self._seen.add(key)
        for containers in self._containers_for(place, missing):
            marked = self._marked(place, containers, marks)
            if marked is None:
                continue
            left = tuple(number - (container in containers) for container, number in enumerate(missing))
            for leaving in self._sets_for(place, containers):
                self._looks_left -= 1
                if self._looks_left < 0 or not self._work.spend():
                    return
                self._descend(place + 1, left, *self._without(leaving, gone, cost, counts), marked)
        self._descend(place + 1, missing, gone, cost, counts, marks)

    def _note(self, gone: int, cost: Cost, counts: tuple[int, ...]) -> None:
        total = self._total(cost, counts)
        if self._best is not None and total >= self._best:
            return
        assignment = self._accept(gone)
        if assignment is not None:
            self.found, self._best = (gone, assignment), total

    def _hopeless(self, place: int, missing: Missing, cost: Cost, counts: tuple[int, ...]) -> bool:
        """Tell whether nothing that is good enough can come of this."""
        if self._looks_left < 0 or self._work.is_spent:
            return True
        total = self._total(cost, counts)
        for group, bounds_from in zip(self._groups, self._bounds, strict=True):
            number, bounds = sum(missing[container] for container in group), bounds_from[place]
            if number >= len(bounds):
                return True
            if self._best is not None and at_least(total, bounds[number]) >= self._best:
                return True
        return False

    def _containers_for(self, place: int, missing: Missing) -> Iterator[tuple[int, ...]]:
        """Yield the sets of containers that can be put on a card, the largest first.

        Of equal containers that miss as many cards, the first is taken.
        """
        open_here = [i for i, number in enumerate(missing) if number and place in self._open[i]]
        for size in range(len(open_here), 0, -1):
            for containers in combinations(open_here, size):
                if not self._work.spend():
                    return
                twins = (
                    self._alike(other, container) and missing[other] == missing[container] and other not in containers
                    for container in containers
                    for other in range(container)
                )
                if not any(twins):
                    yield containers

    def _marked(self, place: int, containers: tuple[int, ...], marks: int) -> int | None:
        """Return the marks with those of some containers on a card, None if two of them are the same."""
        for container in containers if self._marks else ():
            own = self._marks[place][container]
            if own & marks:
                return None
            marks |= own
        return marks

    def _alike(self, one: int, other: int) -> bool:
        first, second = self._shape[one], self._shape[other]
        return first == second and first.lifetime is Lifetime.MAIN and not first.one_numa_node

    def _sets_for(self, place: int, containers: tuple[int, ...]) -> list[LeavingSet]:
        """Return who could leave a card for some containers, the cheapest first."""
        key = (self._order[place], containers)
        found = self._sets.get(key)
        if found is None:
            need = self._need(*key)
            found = self._sets[key] = []
            if need is not None:
                fails = partial(self._too_much, containers)
                sets, ended = leaving_sets(self._card(place), need, len(self._node_tenants.limits), fails, self._work)
                found += sets
                self._cut_short = self._cut_short or not ended
        return found

    def _too_much(self, containers: tuple[int, ...], cost: Cost) -> bool:
        """Tell whether a card may not cost so much, because of what the other cards of the containers on it cost."""
        best = self._best
        if best is None:
            return False
        self._work.spend(len(self._groups) // 2)
        groups = zip(self._groups, self._beside, strict=True)
        return cost >= best or any(
            at_least(cost, beside) >= best for group, beside in groups if any(each in group for each in containers)
        )

    def _without(
        self, leaving: LeavingSet, gone: int, cost: Cost, counts: tuple[int, ...]
    ) -> tuple[int, Cost, tuple[int, ...]]:
        """Return who is gone, what it costs, and what budgets count, when some more tenants leave."""
        cost = joined(cost, leaving.cost)
        if counts:
            counts = tuple(map(int.__add__, counts, leaving.counts))
        for number in self._node_tenants.numbers(leaving.shared & ~gone):
            kind, begin_s = self._node_tenants.kind_of[number], self._node_tenants.tenants[number].begin_s
            cost = joined(cost, (*kind.cost(1)[:4], -begin_s))
            if kind.counted:
                counts = tuple(count + kind.counted.count(budget) for budget, count in enumerate(counts))
        return gone | leaving.bits, cost, counts

    def _total(self, cost: Cost, counts: tuple[int, ...]) -> Cost:
        if not counts:
            return cost
        beyond = sum(max(0, count - limit) for count, limit in zip(counts, self._node_tenants.limits, strict=True))
        return (cost[0] + beyond, *cost[1:])


def _added_up(lows: Sequence[Low], most: int) -> list[Low]:
    """Return what 0, 1, 2... of some cards cost at least, up to `most`."""
    if not lows:
        return [NONE]
    blocked, priorities, above_lowest, numbers = (sorted(column) for column in zip(*lows, strict=True))
    result = [NONE]
    for index, priority in enumerate(priorities[:most]):
        last = result[-1]
        result.append((last[0] + blocked[index], priority, last[2] + above_lowest[index], last[3] + numbers[index]))
    return result
