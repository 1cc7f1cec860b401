"""How much each kind of card is in demand, when the pods that are expected choose the least wanted that they may have.

Pods that may have any card should leave those alone which other pods need: this load is the price for taking them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LARGEST_LOAD = 3.0
ROUNDS = 20


def loads(demand: Mapping[frozenset[int], float], idle: Sequence[float]) -> list[float]:
    """Return the load of each kind of card: the demand that falls to it, divided by what is idle of it.

    `demand` is, per set of kinds that would do, the expected demand of pods, in any unit; scaled to all that is idle,
    each set's is poured over its kinds like water, where the load is lowest first.
    """
    possible = {kinds: amount for kinds, amount in demand.items() if kinds}
    total = sum(possible.values())
    if not total:
        return [1.0] * len(idle)
    room = [max(amount, 1.0) for amount in idle]
    poured = {kinds: dict.fromkeys(kinds, 0.0) for kinds in possible}
    level = [0.0] * len(idle)  # kind -> what is poured on it by all
    for _ in range(ROUNDS):
        for kinds, amount in possible.items():
            for kind, part in poured[kinds].items():
                level[kind] -= part
            poured[kinds] = _pour(amount * sum(idle) / total, {kind: level[kind] for kind in kinds}, room)
            for kind, part in poured[kinds].items():
                level[kind] += part
    return [min(LARGEST_LOAD, filled / size) for filled, size in zip(level, room, strict=True)]


def _pour(amount: float, level: Mapping[int, float], room: Sequence[float]) -> dict[int, float]:
    """Return how much goes on each kind, so that those which get some end at the same load, and none below it."""
    order = sorted(level, key=lambda kind: (level[kind] / room[kind], kind))
    filled = size = 0.0
    load = 0.0
    for place, kind in enumerate(order):
        filled, size = filled + level[kind], size + room[kind]
        load = (filled + amount) / size
        if place + 1 == len(order) or load <= level[order[place + 1]] / room[order[place + 1]]:
            break
    return {kind: max(0.0, load * room[kind] - level[kind]) for kind in order}
