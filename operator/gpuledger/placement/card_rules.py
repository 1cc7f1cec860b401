"""What counts of several cards together: one NUMA node for those of a demand, and the rules of claims.

Rules couple demands. While cards are given to one demand after the other, `RulesSoFar` keeps what that leaves to those
that follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpuledger.ledger.entry import Room
from gpuledger.model.card import Card
from gpuledger.model.card_attributes import Value, attribute_of
from gpuledger.model.card_rule import CardRule
from gpuledger.model.request import Demand, Shape
from gpuledger.placement.step_budget import StepBudget

UNKNOWN_NUMA_NODE = -1
"""That of the cards of which it is not known: they count as on one."""

ATTRIBUTES_IN_A_TEXT = 3
"""Attributes that a reason names: users write as many rules as they like."""


def numa_node_of(card: Card) -> int:
    """Return the NUMA node of a card."""
    return UNKNOWN_NUMA_NODE if card.numa_node is None else card.numa_node


def most_on_one_numa_node(cards: Iterable[Card]) -> int:
    """Return how many of some cards are on one NUMA node."""
    return max(Counter(map(numa_node_of, cards)).values(), default=0)


def matching(demand: Demand, rooms: Iterable[Room]) -> list[list[Room]]:
    """Return the rooms in groups of those that match: all cards of the demand have to be of one group."""
    groups: dict[tuple[Value | None, ...], list[Room]] = {}
    for room in rooms:
        numa_node = numa_node_of(room.card) if demand.one_numa_node else None
        groups.setdefault((numa_node, *_matched(demand, room.card)), []).append(room)
    return list(groups.values())


def differing(demand: Demand, rooms: Sequence[Room], work: StepBudget) -> Iterator[tuple[Room, ...]]:
    """Yield the sets of cards for a demand of which no two have a value in common that must differ, in their order."""
    rows = [[attribute_of(room.card, name) for room in rooms] for name in _that_differ(demand)]
    chosen: list[int] = []

    def extended(begin: int) -> Iterator[tuple[Room, ...]]:
        missing = demand.cards - len(chosen)
        if not missing:
            yield tuple(rooms[place] for place in chosen)
            return
        for place in range(begin, len(rooms) - missing + 1):
            left = [{*row[place:]} - {row[each] for each in chosen} for row in rows]
            if not work.spend(len(rows)) or any(len(values) < missing for values in left):
                return
            if all(row[place] in values for row, values in zip(rows, left, strict=True)):
                chosen.append(place)
                yield from extended(place + 1)
                chosen.pop()

    return extended(0)


def differ(demand: Demand, cards: Collection[Card]) -> bool:
    """Tell whether no two of some cards have a value in common that must differ."""
    return all(len({attribute_of(card, name) for card in cards}) == len(cards) for name in _that_differ(demand))


def most_by_rules(demand: Demand, cards: Iterable[Card]) -> int:
    """Return how many of some cards, which it admits, a demand can have at most by its rules. It may be fewer."""
    groups: dict[tuple[Value | None, ...], list[Card]] = {}
    for card in cards:
        groups.setdefault(_matched(demand, card), []).append(card)
    names = _that_differ(demand)
    numbers = (
        [len(group), *(len({attribute_of(card, name) for card in group}) for name in names)]
        for group in groups.values()
    )
    return max(map(min, numbers), default=0)


def match(demand: Demand, one: Card, other: Card) -> bool:
    """Tell whether a demand may have both cards, as far as they must match by its rules."""
    return _matched(demand, one) == _matched(demand, other)


def rules_text(demands: Sequence[Demand]) -> str:
    """Return what the rules say of the cards of some demands together: "have the same … and differ in …"."""
    rules = dict.fromkeys(rule for demand in demands for rule in demand.rules)
    if len(demands) == 1 and demands[0].cards == 1:
        return f"has {_names(rules)}"
    same, other = _names(rule for rule in rules if not rule.distinct), _names(rule for rule in rules if rule.distinct)
    return " and ".join(filter(None, (same and f"have the same {same}", other and f"differ in {other}")))


class RulesSoFar:
    """What the rules leave to the demands that still wait for their cards."""

    def __init__(self, shape: Shape, usable: Sequence[Sequence[Card]]) -> None:
        """Begin; `usable` are the cards that each demand could have if it were alone."""
        # rule -> the values of the cards that were given, in their order
        self._used: dict[CardRule, list[Value | None]] = {rule: [] for demand in shape for rule in demand.rules}
        self._names = list(dict.fromkeys(rule.attribute for rule in self._used))
        # rule by which cards match -> the values of which each demand finds enough cards
        self._possible: dict[CardRule, set[Value | None]] = {}
        for demand, cards in zip(shape, usable, strict=True):
            for rule in demand.rules:
                if not rule.distinct:
                    numbers = Counter(attribute_of(card, rule.attribute) for card in cards)
                    enough = {value for value, number in numbers.items() if number >= demand.cards}
                    self._possible[rule] = enough & self._possible.get(rule, enough)

    def allow(self, demand: Demand, card: Card) -> bool:
        """Tell whether the demand, which admits the card, can have it beside those that were given."""
        return all(self._allows(rule, attribute_of(card, rule.attribute)) for rule in demand.rules)

    def _allows(self, rule: CardRule, value: Value | None) -> bool:
        used = self._used[rule]
        if rule.distinct:
            return value not in used
        return value == used[0] if used else value in self._possible[rule]

    def values_of(self, card: Card) -> tuple[Value | None, ...]:
        """Return what cards have in common that are the same to all rules."""
        return tuple(attribute_of(card, name) for name in self._names)

    def give(self, demand: Demand, cards: Collection[Card]) -> None:
        """Note that a demand gets these cards."""
        for rule in demand.rules:
            self._used[rule] += [attribute_of(card, rule.attribute) for card in cards]

    def take_back(self, demand: Demand, cards: Collection[Card]) -> None:
        """Undo the last `give`."""
        for rule in demand.rules:
            del self._used[rule][-len(cards) :]


def _matched(demand: Demand, card: Card) -> tuple[Value | None, ...]:
    """Return what all cards of a demand must have in common with this one."""
    return tuple(attribute_of(card, rule.attribute) for rule in demand.rules if not rule.distinct)


def _that_differ(demand: Demand) -> list[str]:
    """Return the attributes in which the cards of a demand must differ."""
    return list(dict.fromkeys(rule.attribute for rule in demand.rules if rule.distinct))


def _names(rules: Iterable[CardRule]) -> str:
    """Return the first attributes that some rules are about."""
    names = list(dict.fromkeys(rule.attribute for rule in rules))
    more = [f"{len(names) - ATTRIBUTES_IN_A_TEXT} more"] if len(names) > ATTRIBUTES_IN_A_TEXT else []
    return " and ".join(names[:ATTRIBUTES_IN_A_TEXT] + more)
