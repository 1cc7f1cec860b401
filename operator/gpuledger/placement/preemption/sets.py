"""Finds the sets of tenants that must leave one card, so that there is room for some containers of a pod.

A *set* is minimal: with any one of its tenants back, there is no room. Victims on a node are unions of such sets, for
a pod in none of them need not leave. Of two sets, one is left out if the other is as good whatever pods leave the
other cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.placement.preemption.card_needs import Need, Numbers
from gpuledger.placement.preemption.cost import FREE, NONE, Cost, Low, at_least, joined
from gpuledger.placement.preemption.tenants import OccupiedCard, TenantKind
from gpuledger.placement.step_budget import StepBudget

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
    """Return what is still lacking of what is wanted, when all tenants of some kinds leave."""
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
    """Return what is added to the sum of priorities and to the number, if so many leave: those that add least."""
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
    """What all of them take."""
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
    """Return what it costs at least to get what is lacking from the kinds that are left; None if it can't be got."""
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
    """Tell whether something is lacking again if one tenant comes back."""
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
    """Tell whether one set costs no more than the other whatever other pods leave; by itself it costs no more.

    The highest priority can be that of another pod, and then the sum of the priorities decides. So neither may be
    larger. The start only matters where all else is equal.
    """
    if one.shared & ~other.shared or any(mine > its for mine, its in zip(one.counts, other.counts, strict=True)):
        return False
    return one.cost[1] <= other.cost[1] and one.cost[2:4] <= other.cost[2:4]
