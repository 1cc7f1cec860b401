"""What can happen to a request between a client and its server."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Delay:
    """The request arrives later."""

    seconds: float


@dataclass(frozen=True)
class Drop:
    """The connection is cut before the server has seen the request."""


@dataclass(frozen=True)
class LoseAnswer:
    """The server carries the request out; then the connection is cut."""


@dataclass(frozen=True)
class ApplyLate:
    """The connection is cut; the server gets the request after some seconds, or when the test releases it."""

    seconds: float | None = None


@dataclass(frozen=True)
class Answer:
    """The proxy answers in the server's place, and the server sees nothing."""

    status: int
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Hold:
    """The request, or the answer after it was carried out, waits until the test releases it.

    When it is released and the client is gone, a request is dropped.
    """

    what: Literal["request", "answer"] = "request"


@dataclass(frozen=True)
class EndWatch:
    """A watch ends: with an ERROR event of this code, or without a word. Ends one that runs, or else the next one."""

    code: int | None = 410


@dataclass(frozen=True)
class HoldEvents:
    """A watch that runs shows nothing more until the test releases it; then all of it, in order."""


Fault = Delay | Drop | LoseAnswer | ApplyLate | Answer | Hold | EndWatch | HoldEvents

Rates = Mapping[str, Mapping[Fault, float]]
"""Kind of request -> fault -> probability. "event pods" stands for each event of a watch on pods: these can be
delayed, or end the watch."""


@dataclass
class Weather:
    """Faults by chance.

    What happens to the n-th request of a kind depends on the seed, the kind and n, and on nothing else: so a seed
    repeats itself as far as the cluster's own timing allows.
    """

    seed: int
    rates: Rates
    counts: Counter[str] = field(default_factory=Counter)
    """What has happened: "kind: fault" -> how often."""
    _numbers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for kind, faults in self.rates.items():
            allowed: tuple[type, ...] = (Delay, Drop, LoseAnswer, ApplyLate, Answer)
            if kind.startswith("event "):
                allowed = (Delay, EndWatch)
            for fault in faults:
                if not isinstance(fault, allowed) or fault == ApplyLate(None):
                    raise ValueError(f"{fault} can't happen by chance to: {kind}")
            if not sum(faults.values()) <= 1:
                raise ValueError(f"{kind}: the probabilities add up to more than 1")

    def strike(self, kind: str) -> Fault | None:
        """Return what happens to the next request of a kind, mostly nothing."""
        faults = self.rates.get(kind)
        if not faults:
            return None
        self._numbers[kind] += 1
        point = random.Random(f"{self.seed} {kind} {self._numbers[kind]}").random()  # noqa: S311 - no secret
        for fault, probability in faults.items():
            if point < probability:
                self.counts[f"{kind}: {fault}"] += 1
                return fault
            point -= probability
        return None
