"""Which room there is for pods that wait, worked out from cards, nodes and what is bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from chaos.arithmetic import AMOUNTS, Ask, asks_of, cpus_of, has_ended, holders_of, totals

Json = dict[str, Any]


def room_of(cards: Mapping[str, Json], nodes: Mapping[str, Json]) -> dict[str, list[Json]]:
    """Return node name -> cards that take pods."""
    room: dict[str, list[Json]] = {}
    for card in cards.values():
        name = card["spec"]["nodeName"]
        if (card.get("status") or {}).get("phase") == "Ready" and name in nodes:
            room.setdefault(name, []).append(card)
    return room


def places(pod: Json, cards: Iterable[Json], free_cpus: Decimal | int | None) -> int:
    """Return how many pods like this one, which asks for one card, find room on a node at once; None: CPUs enough."""
    (ask,) = asks_of(pod)
    by_cards = sum(_takes_many(card, ask) for card in cards)
    if free_cpus is None or not cpus_of(pod):
        return by_cards
    return min(by_cards, int(free_cpus // cpus_of(pod)))


def _takes_many(card: Json, ask: Ask) -> int:
    """Return for how many pods a card has room at once."""
    if not takes(card, ask):
        return 0
    if ask.exclusive:
        return 1
    capacity, used, number = card["spec"]["capacity"], totals(holders_of(card)), 0
    while ask.fits(capacity, used, is_idle=False, is_shut=False):
        number += 1
        used["memoryMiB"] += ask.memory_on(capacity)
        used["cores"] += ask.cores_on(capacity)
        used["number"] += 1
    return number


def living_on(pods: Mapping[str, Json], node_name: str) -> Iterator[Json]:
    """Yield the pods of a node that have not ended."""
    return (pod for pod in pods.values() if pod["spec"].get("nodeName") == node_name and not has_ended(pod))


def fitting(asks: Sequence[Ask], cards: Iterable[Json]) -> list[Json]:
    """Return which cards of a node take a pod with one container, none if they are too few."""
    if len(asks) != 1:
        return []
    found = [card for card in cards if takes(card, asks[0])]
    return found if len(found) >= asks[0].cards else []


def takes(card: Json, ask: Ask) -> bool:
    """Return whether a card has room for what a container asks for."""
    holders = holders_of(card)
    is_shut = any(holder["exclusive"] for holder in holders)
    return ask.fits(card["spec"]["capacity"], totals(holders), is_idle=not holders, is_shut=is_shut)


def amounts_on(ask: Ask, cards: Iterable[Json]) -> dict[str, int]:
    """Return the most that a container takes of all its cards together, whichever of these it gets."""
    capacities = [card["spec"]["capacity"] for card in cards]
    most = [(ask.memory_on(each), ask.cores_on(each), 1) for each in capacities]
    return {field: ask.cards * max((each[place] for each in most), default=0) for place, field in enumerate(AMOUNTS)}
