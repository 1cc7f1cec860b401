"""How often which request meets which fault: a climate for each seed."""

from __future__ import annotations

from random import Random

from faults.kinds import Answer, ApplyLate, Delay, Drop, EndWatch, Fault, LoseAnswer, Rates

DELAYS = (Delay(0.05), Delay(0.3), Delay(1.5), Delay(4.0))
LOST: tuple[Fault, ...] = (Drop(), LoseAnswer())
LATE = (ApplyLate(0.2), ApplyLate(1.0), ApplyLate(4.0), ApplyLate(12.0))
BUSY = (Answer(429, 1), Answer(429), Answer(503), Answer(500))
REFUSED = (Answer(409), Answer(422))

FAULTS: dict[str, tuple[Fault, ...]] = {
    "ledger write": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "binding": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "patch pods": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "eviction": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "delete pods": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "create events": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED, Answer(403)),
    "create gpuallocations": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "patch gpuallocations": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "delete gpuallocations": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "read pods": (*DELAYS, *LOST, *BUSY),
    "read gpuallocations": (*DELAYS, *LOST, *BUSY),
    "list poddisruptionbudgets": (*DELAYS, *LOST, *BUSY),
    "list pods": (*DELAYS, *LOST, *BUSY),
    "list nodes": (*DELAYS, *LOST, *BUSY),
    "list gpuallocations": (*DELAYS, *LOST, *BUSY),
    "list leases": (*DELAYS, *LOST, *BUSY),
    "watch pods": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "watch nodes": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "watch gpuallocations": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "patch resourceclaims": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "read resourceclaims": (*DELAYS, *LOST, *BUSY),
    "patch workloads": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "read workloads": (*DELAYS, *LOST, *BUSY),
    "patch resourcequotas": (*DELAYS, *LOST, *LATE, *BUSY, *REFUSED),
    "list resourceclaims": (*DELAYS, *LOST, *BUSY),
    "list resourcequotas": (*DELAYS, *LOST, *BUSY),
    "list workloads": (*DELAYS, *LOST, *BUSY),
    "watch resourceclaims": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "watch resourcequotas": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "watch workloads": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "watch leases": (*DELAYS, *LOST, *BUSY, Answer(410)),
    "event pods": (Delay(0.1), Delay(0.5), Delay(2.0)),
    "event nodes": (Delay(0.1), Delay(0.5), Delay(2.0)),
    "event gpuallocations": (Delay(0.1), Delay(0.5), Delay(2.0)),
    "event leases": (Delay(0.1), Delay(0.5), Delay(2.0)),
    "event resourceclaims": (Delay(0.1), Delay(0.5), Delay(2.0)),
    "event resourcequotas": (Delay(0.1), Delay(0.5), Delay(2.0)),
    "event workloads": (Delay(0.1), Delay(0.5), Delay(2.0)),
}
"""Kind of request of the operator -> what can happen to it."""

RARE = dict.fromkeys((kind for kind in FAULTS if kind.startswith("event ")), 0.1)
"""Kind -> by how much less often: one such delay holds up everything behind it."""

ENDINGS: tuple[Fault, ...] = (EndWatch(410), EndWatch(500), EndWatch(None))
ENDING = 0.002
"""Probability that an event of a watch is its last, at the severity 1."""

EXTENDER_FAULTS: dict[str, tuple[Fault, ...]] = {
    kind: (Delay(0.05), Delay(1.0), Delay(5.0), Delay(9.0), *LOST, ApplyLate(1.0), Answer(500), Answer(503))
    for kind in ("filter", "prioritize", "bind", "preempt")
}
"""Kind of question of kube-scheduler -> what can happen to it. It waits 8 s for an answer (see arena.py)."""


STORM = 0.4
"""Of the requests of one kind, in a storm: so many that one pod or card meets several faults."""

STORM_FAULTS = 3

STORMY = (
    "ledger write",
    "binding",
    "patch pods",
    "read pods",
    "read gpuallocations",
    "eviction",
    "patch resourceclaims",
    "patch workloads",
)


def api_rates(dice: Random, severity: float) -> Rates:
    """Return the faults between operator and API server: `severity` is how many requests meet one, about.

    In half of the climates there is a storm over one kind of request.
    """
    rates = {kind: _spread(dice, faults, severity * RARE.get(kind, 1.0)) for kind, faults in FAULTS.items()}
    if severity and dice.random() < 0.5:
        kind = dice.choice(STORMY)
        rates[kind] = dict.fromkeys(dice.sample(FAULTS[kind], STORM_FAULTS), STORM / STORM_FAULTS)
    for kind in RARE:
        rates[kind] |= dict.fromkeys(ENDINGS, severity * ENDING)
    return rates


def extender_rates(dice: Random, severity: float) -> Rates:
    """Return the faults between kube-scheduler and operator."""
    return {kind: _spread(dice, faults, severity / 2) for kind, faults in EXTENDER_FAULTS.items()}


def _spread(dice: Random, faults: tuple[Fault, ...], total: float) -> dict[Fault, float]:
    """Give each fault its part of the probability: some seeds have much of one and little of the others."""
    weights = [dice.random() ** 3 for _ in faults]
    return {fault: total * weight / sum(weights) for fault, weight in zip(faults, weights, strict=True)}
