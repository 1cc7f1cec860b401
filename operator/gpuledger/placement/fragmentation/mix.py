"""The pods to expect: those that came lately, the later the more they count.

And how many of those that get cards give them back: whether the cluster fills, or is in a steady state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger.placement.decide import Footprint

HALF_LIFE = 1_000
"""Arrivals after which one counts half as much as a new one. Counted in arrivals and not in hours: a quiet night must
not make the cluster forget its days."""


FIRST_LOOK = 100
"""Arrivals before there are prices. A few pods say little of those to come: prices made of them break up whole nodes
and cards for what seems to be all that there is. Until then `binpack` decides, as between equal prices."""

KINDS_KEPT = 128
"""Kinds of pods that prices are made of; kinds that came so seldom that they matter less are left out."""


TURNOVER_HALF_LIFE = 300
"""Arrivals after which cards that were given out or given back count half."""


CARDS_BEFORE = 500
"""So many cards count as given out and given back lately when a ledger is taken over that has holders."""


LEAST_CARDS = 0.001
"""A pod counts as if it asked for so many cards at least, when kinds are compared."""


_LARGEST_STEP = 1e100


@dataclass(frozen=True, slots=True)
class Expected:
    """One kind of pod with its part of all that are expected, 0 to 1."""

    footprint: Footprint
    frequency: float


class Mix:
    """The frequencies of the kinds of pods, learned as they arrive.

    Instead of letting all old counts shrink, each arrival counts for more than the one before. `first_look` is after
    how many arrivals there is enough to look at; 0 if the mix is known before the first one.
    """

    def __init__(self, half_life: float = HALF_LIFE, first_look: int = FIRST_LOOK) -> None:
        self._growth = 2.0 ** (1.0 / half_life)
        self._step = 1.0
        self._counts: dict[Footprint, float] = {}
        self._fading = 0.5 ** (1.0 / TURNOVER_HALF_LIFE)
        self._given_out = self._given_back = 0.0
        self.arrivals = 0
        """How many pods have come."""
        self.first_look = first_look
        """Arrivals at which to look at the mix for the first time."""

    def arrived(self, footprint: Footprint) -> None:
        """Observe a new pod."""
        self.arrivals += 1
        self._given_out *= self._fading
        self._given_back *= self._fading
        self._counts[footprint] = self._counts.get(footprint, 0.0) + self._step
        self._step *= self._growth
        if self._step > _LARGEST_STEP:
            self._counts = {known: count / self._step for known, count in self._counts.items()}
            self._step = 1.0
        if len(self._counts) > 4 * KINDS_KEPT:
            self._counts = self._that_matter(2 * KINDS_KEPT)

    def next_look(self, every: int) -> int:
        """Return the number of arrivals at which to look at the mix again: so many later, at the start sooner."""
        return self.arrivals + max(1, min(self.arrivals, every))

    def given_out(self, cards: float) -> None:
        """Record that a pod has got cards, or parts of cards."""
        self._given_out += cards

    def given_back(self, cards: float) -> None:
        """Record that a pod has ended that had cards."""
        self._given_back += cards

    def taken_over(self) -> None:
        """Record that pods come and go since before this began to count."""
        self._given_out = self._given_back = CARDS_BEFORE

    @property
    def turnover(self) -> float:
        """Cards released lately, divided by cards given out: 0 while the cluster fills, 1 in a steady state."""
        return min(1.0, self._given_back / self._given_out) if self._given_out > 0 else 0.0

    def expected(self) -> Sequence[Expected]:
        """Return the kinds of pods that matter most, in an order that stays while these do."""
        return by_frequency(self._that_matter(KINDS_KEPT))

    def _that_matter(self, number: int) -> dict[Footprint, float]:
        """Return the kinds that ask for most in all: rare ones with many cards matter, too."""
        if len(self._counts) <= number:
            return self._counts
        most = sorted(
            self._counts, key=lambda footprint: -self._counts[footprint] * max(_cards(footprint), LEAST_CARDS)
        )
        kept = set(most[:number])
        return {footprint: count for footprint, count in self._counts.items() if footprint in kept}


def by_frequency(counts: Mapping[Footprint, float]) -> list[Expected]:
    """Return kinds of pods with their parts of all, from how often each comes."""
    total = sum(counts.values())
    return [Expected(footprint, count / total) for footprint, count in counts.items()]


def _cards(footprint: Footprint) -> float:
    """Return roughly how many cards a pod stands for; memory in MiB can't be compared with cards yet, nor need be."""
    return sum(
        demand.cards * (1.0 if demand.exclusive or demand.memory_mib is not None else demand.memory_percent / 100)
        for demand in footprint.shape
    )
