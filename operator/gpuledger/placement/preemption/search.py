"""The cheapest victims on one node: which containers go on which cards, and which pods leave these.

Branch and bound, card after card. A pod's containers are put on a card, pods in the way leave, and what is
still to be placed goes on the cards that follow. Costs never get smaller on the way, and each card adds at least its
lower bound: what can't be cheaper than the best so far is given up.

The sets of tenants that must leave one card, so that there is room for some containers, are *minimal*: with any one of
a set back, there is no room. Victims on a node are unions of such sets, for a pod in none of them need not leave. Of
two sets, one is left out if the other is as good whatever pods leave the other cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

from gpuledger.model.card import Card, CardRule, Value, attribute_of
from gpuledger.model.request import Demand, Lifetime, Shape, phases
from gpuledger.model.share import Assignment
from gpuledger.placement.fit import numa_node_of
from gpuledger.placement.policy import StepBudget
from gpuledger.placement.preemption.tenants import (
    FREE,
    NONE,
    Cost,
    Low,
    Need,
    NodeTenants,
    Numbers,
    OccupiedCard,
    TenantKind,
    at_least,
    joined,
    need_on,
)

STEPS_LIMIT = 8_192
"""Steps of the search for the sets of one card. It ends before that with up to 12 tenants on the card, whatever they
are, and with many more if they are of few kinds; else the sets found so far are taken, those of the lowest priorities
first."""


COMPARED_A_STEP = 16
"""Sets that are compared in the time of one step."""


@dataclass(frozen=True, slots=True)
class LeavingSet:
    """Tenants whose leaving makes room on a card."""

    cost: Cost
    """Of those that are on this card alone, without the budgets that are counted."""
    counts: tuple[int, ...]
    """How many of these each counted budget covers."""
    bits: int
    """All of them, as a set of numbers."""
    shared: int
    """Those of them that are on other cards as well."""


def lowest_cost(card: OccupiedCard, need: Need) -> Low | None:
    """Return a cost that no set of the card's tenants goes below, without the budgets that are counted.

    None if not even all of them make room. Priorities count of all tenants, the other numbers only of those that are
    on no other card: they can be added up over several cards.
    """
    if not _possible(card, need):
        return None
    forced, others = _split(card, need)
    lacking = _minus(need.free, card.free, forced)
    low = _sum_of(forced)
    if max(lacking) <= 0:
        return low
    priority = _enough(sorted(others, key=lambda other: other[0].priority), lacking)
    if priority is None:
        return None
    number = max(_fewest(others, dimension, lacking[dimension]) for dimension in range(3))
    above_lowest, alone = _cheapest(others, number)
    blocked = _blocked(others, lacking)
    return low[0] + blocked, max(low[1], priority), low[2] + above_lowest, low[3] + alone


def leaving_sets(
    card: OccupiedCard, need: Need, budgets: int, fails: Callable[[Cost], bool], work: StepBudget
) -> tuple[list[LeavingSet], bool]:
    """Return the sets that make room, the cheapest first, and whether that is all of them.

    Those whose cost `fails` are left out: they lead to nothing. `budgets` is the number of budgets that are counted.
    """
    if not _possible(card, need):
        return [], True
    forced, others = _split(card, need)
    search = _SetSearch(others, fails, work)
    start = FREE
    for kind, _, _ in forced:
        start = joined(start, kind.cost(len(kind.tenants)))
    search.grow(0, _minus(need.free, card.free, forced), start)
    all_forced = [(kind, len(kind.tenants)) for kind, _, _ in forced]
    found = [_as_set([*all_forced, *numbers], budgets) for numbers in search.found]
    return _undominated(found, work), search.ended


KindOnCard = tuple[TenantKind, Numbers, bool]


def _possible(card: OccupiedCard, need: Need) -> bool:
    return not card.shut and not (need.idle and card.fixed)


def _split(card: OccupiedCard, need: Need) -> tuple[list[KindOnCard], list[KindOnCard]]:
    """Return the kinds that must leave in any case, and the others."""
    if need.idle:
        return card.kinds, []
    forced = [on_card for on_card in card.kinds if on_card[2]]
    return (forced, [on_card for on_card in card.kinds if not on_card[2]]) if forced else ([], card.kinds)


def _minus(wanted: Numbers, free: Numbers, leaving: Iterable[KindOnCard]) -> Numbers:
    """Return the lacking amounts after all tenants of some kinds have left."""
    memory_mib, cores, number = wanted[0] - free[0], wanted[1] - free[1], wanted[2] - free[2]
    for kind, takes, _ in leaving:
        size = len(kind.tenants)
        memory_mib, cores, number = memory_mib - size * takes[0], cores - size * takes[1], number - size * takes[2]
    return memory_mib, cores, number


def _sum_of(leaving: Iterable[KindOnCard]) -> Low:
    """Return the lower bound if all tenants of some kinds leave."""
    blocked, highest, above_lowest, number = NONE
    for kind, _, _ in leaving:
        highest = max(highest, kind.priority)
        if not kind.shared:
            size = len(kind.tenants)
            blocked, number = blocked + size * kind.blocked, number + size * kind.size
            above_lowest += size * kind.above_lowest
    return blocked, highest, above_lowest, number


def _enough(in_order: Iterable[KindOnCard], lacking: Numbers) -> int | None:
    """Return the priority of the kind with which there is enough, if the kinds leave in this order; None if never."""
    memory_mib, cores, number = lacking
    for kind, takes, _ in in_order:
        size = len(kind.tenants)
        memory_mib, cores, number = memory_mib - size * takes[0], cores - size * takes[1], number - size * takes[2]
        if memory_mib <= 0 and cores <= 0 and number <= 0:
            return kind.priority
    return None


def _fewest(others: Sequence[KindOnCard], dimension: int, lacking: int) -> int:
    """Return how many tenants have to leave at least, looking at one kind of amount alone. It is known to be enough."""
    if lacking <= 0:
        return 0
    found = 0
    for takes, size in sorted(((takes[dimension], len(kind.tenants)) for kind, takes, _ in others), reverse=True):
        number = min(size, -(-lacking // takes)) if takes else size
        found, lacking = found + number, lacking - number * takes
        if lacking <= 0:
            break
    return found


def _cheapest(others: Sequence[KindOnCard], number: int) -> tuple[int, int]:
    """Return the least addition to the sum of priorities and to the number when so many leave."""
    above_lowest = alone = 0
    number -= sum(len(kind.tenants) for kind, _, _ in others if kind.shared)
    for its_sum, size in sorted((kind.above_lowest, len(kind.tenants)) for kind, _, _ in others if not kind.shared):
        taken = min(size, number)
        if taken <= 0:
            break
        number -= taken
        alone += taken
        above_lowest += taken * its_sum
    return above_lowest, alone


def _blocked(others: Sequence[KindOnCard], lacking: Numbers) -> int:
    """Return how many violations there are at least: one, or none."""
    without = [on_card for on_card in others if on_card[0].shared or not on_card[0].blocked]
    return int(len(without) < len(others) and _enough(without, lacking) is None)


Numbered = list[tuple[TenantKind, int]]
"""Kinds, and how many of each."""


class _SetSearch:
    """Depth-first search for all minimal sets, most of the cheapest kinds first."""

    def __init__(self, kinds: Sequence[KindOnCard], fails: Callable[[Cost], bool], work: StepBudget) -> None:
        self._kinds = kinds
        self._work = work
        self._fails = fails
        self._steps_left = STEPS_LIMIT
        self._chosen: list[tuple[TenantKind, int, Numbers]] = []
        self._tails = _tails(kinds)
        self.found: list[Numbered] = []

    @property
    def ended(self) -> bool:
        """No set is missing."""
        return self._steps_left >= 0 and not self._work.is_spent

    def grow(self, position: int, lacking: Numbers, cost: Cost) -> None:
        """Add tenants of the kinds from a position on, until nothing is lacking any more."""
        self._steps_left -= 1
        if self._steps_left < 0 or not self._work.spend():
            return
        if lacking[0] <= 0 and lacking[1] <= 0 and lacking[2] <= 0:
            if all(_exceeds(lacking, takes) for _, _, takes in self._chosen) and not self._fails(cost):
                self.found.append([(kind, number) for kind, number, _ in self._chosen])
            return
        least = _least(self._tails[position], lacking)
        if least is None or self._fails(at_least(cost, least)):
            return
        kind, takes, _ = self._kinds[position]
        for number in range(_most(lacking, takes, len(kind.tenants)), 0, -1):
            self._chosen.append((kind, number, takes))
            left = (lacking[0] - number * takes[0], lacking[1] - number * takes[1], lacking[2] - number * takes[2])
            self.grow(position + 1, left, joined(cost, kind.cost(number)))
            self._chosen.pop()
        self.grow(position + 1, lacking, cost)


class _Tail(NamedTuple):
    """Sums over the kinds from a position on."""

    together: Numbers
    """The amounts of all of them."""
    largest: Numbers
    """The most that one tenant takes."""
    priority: int
    """The lowest of them."""
    above_lowest: int
    """The lowest that is added to the sum of priorities."""


def _tails(kinds: Sequence[KindOnCard]) -> list[_Tail]:
    tails = [_Tail((0, 0, 0), (0, 0, 0), 0, 0)]
    for kind, takes, _ in reversed(kinds):
        last, size = tails[-1], len(kind.tenants)
        sums = last.together
        tails.append(
            _Tail(
                (sums[0] + size * takes[0], sums[1] + size * takes[1], sums[2] + size * takes[2]),
                (max(last.largest[0], takes[0]), max(last.largest[1], takes[1]), max(last.largest[2], takes[2])),
                kind.priority if len(tails) == 1 else min(last.priority, kind.priority),
                kind.above_lowest if len(tails) == 1 else min(last.above_lowest, kind.above_lowest),
            )
        )
    return tails[::-1]


def _least(tail: _Tail, lacking: Numbers) -> Low | None:
    """Return the least cost of the lacking amounts from the remaining kinds; None if they do not suffice."""
    number = 0
    for lack, together, largest in zip(lacking, tail.together, tail.largest, strict=True):
        if lack > together:
            return None
        if lack > 0:
            number = max(number, -(-lack // largest))
    return 0, tail.priority, number * tail.above_lowest, number


def _most(lacking: Numbers, takes: Numbers, size: int) -> int:
    """Return how many tenants of a kind can be of any use."""
    useful = [-(-lack // taken) for lack, taken in zip(lacking, takes, strict=True) if lack > 0 and taken > 0]
    return min(size, max(useful, default=0))


def _exceeds(lacking: Numbers, takes: Numbers) -> bool:
    """Return whether something is lacking again if one tenant comes back."""
    return lacking[0] + takes[0] > 0 or lacking[1] + takes[1] > 0 or lacking[2] + takes[2] > 0


def _as_set(numbered: Numbered, budgets: int) -> LeavingSet:
    cost, counts, bits, shared = FREE, [0] * budgets, 0, 0
    for kind, number in numbered:
        its_bits = kind.bits(number)
        bits |= its_bits
        if kind.shared:
            shared |= its_bits
            continue
        cost = joined(cost, kind.cost(number))
        for budget in kind.counted:
            counts[budget] += number
    return LeavingSet(cost, tuple(counts), bits, shared)


def _undominated(found: Iterable[LeavingSet], work: StepBudget) -> list[LeavingSet]:
    """Return the sets in the order of their costs, without those for which there is always another as good."""
    kept: list[LeavingSet] = []
    for one in sorted(found, key=lambda one: (one.cost, one.shared.bit_count(), one.bits)):
        if not work.spend(1 + len(kept) // COMPARED_A_STEP):
            return kept
        if not any(_replaces(other, one) for other in kept):
            kept.append(one)
    return kept


def _replaces(one: LeavingSet, other: LeavingSet) -> bool:
    """Return whether one set costs no more than the other whatever other pods leave; by itself it costs no more.

    The highest priority can be that of another pod, and then the sum of the priorities decides. So neither may be
    larger. The start only matters where all else is equal.
    """
    if one.shared & ~other.shared or any(mine > its for mine, its in zip(one.counts, other.counts, strict=True)):
        return False
    return one.cost[1] <= other.cost[1] and one.cost[2:4] <= other.cost[2:4]


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
        """Search, within each choice of the values that the cards must share."""
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
        """Return the least cost of each container by itself on a card, None where there is never room for it."""
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
        """Return the least cost of one of some containers on a card."""
        lows = [low for container in group if (low := self._lows[place][container]) is not None]
        if len(lows) <= 1:
            return lows[0] if lows else None
        blocked, priority, above_lowest, number = map(min, zip(*lows, strict=True))
        return blocked, priority, above_lowest, number

    def _lowest_beside(self, group: tuple[int, ...]) -> Low:
        """Return the least cost of the cards of some containers, but for one of the cards."""
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
        """Yield the cards for each container, for each choice of the values that they must share."""
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
        """Return whether nothing that is good enough can come of this."""
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
        """Return the sets of tenants that could leave a card for some containers, the cheapest first."""
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
        """Return whether this cost of a card is too much, given the costs of the other cards of its containers."""
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
        """Return the leaving tenants, their cost and the counts of budgets, when some more tenants leave."""
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
    """Return the least cost of 0, 1, 2... of some cards, up to `most`."""
    if not lows:
        return [NONE]
    blocked, priorities, above_lowest, numbers = (sorted(column) for column in zip(*lows, strict=True))
    result = [NONE]
    for index, priority in enumerate(priorities[:most]):
        last = result[-1]
        result.append((last[0] + blocked[index], priority, last[2] + above_lowest[index], last[3] + numbers[index]))
    return result
