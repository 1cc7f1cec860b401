"""Two policies to compare with: fragmentation gradient descent (FGD), and best fit.

Source of FGD: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023, and the scores of its authors' simulator. A node's fragmentation is the idle GPU that a pod
drawn from the typical ones could not use. A pod goes where that grows least. The authors make whole numbers of the
scores, and the ties that come of it count: without them the policy is several points worse.

Best fit is that of the same authors' simulator. A pod goes to the node on which least is left afterwards of CPU
and of GPU, each as a part of the largest node's; whole numbers from 0 to 100. Its card is the fullest that it fits on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from typing import cast

import numpy as np

from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import NodeRoom
from gpuledger.model.request import HostAmounts
from gpuledger.placement.choose import PRICERS, NewPricer, PricerImports
from gpuledger.placement.decide import Candidate, Effect, Footprint
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.fragmentation.nodes import (
    UNLIMITED,
    CardSums,
    Floats,
    Needs,
    NodeTable,
    Typical,
    together,
    typical,
)
from gpuledger.placement.policy import PREFERENCES, Policy, Preference, policy_of

COVERED = 0.95
"""Typical are the most frequent kinds of pods, until they make up this part of all."""

REFRESHED_EVERY = 1000
"""Arrivals after which the typical pods are determined again."""


class Fgd:
    """Prices of the yardstick: the lower, the less fragmentation grows."""

    def __init__(self, ledger: Ledger, mix: Mix) -> None:
        self._nodes = NodeTable(ledger)
        self._mix = mix
        self._version = 0
        self._next = 0  # number of arrivals at which the typical pods are determined again
        self._typical = _TypicalPods(self._nodes, [])

    @property
    def version(self) -> int:
        """Number of the set of typical pods that is used now."""
        return self._version

    def tick(self) -> None:
        """Determine the typical pods again, when enough pods have come."""
        if self._mix.arrivals >= self._next:
            self._next = self._mix.next_look(REFRESHED_EVERY)
            self._version += 1
            self._typical = _TypicalPods(self._nodes, _most_frequent(self._mix))

    def as_if(self, nodes: Collection[NodeRoom]) -> AbstractContextManager[None]:
        """See `Pricer`."""
        return self._nodes.as_if(nodes)

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does to its node."""
        self._nodes.sync()
        return self._nodes.effect(footprint, candidate)

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Sequence[float]:
        """Return minus the score of each way, a whole number from 0 to 100."""
        scores = 100.0 / (1.0 + np.exp(self._typical.growth(footprint, effects) / 1000.0))
        return [-int(score) for score in scores]


def _most_frequent(mix: Mix) -> list[Typical]:
    """Return the typical pods. Their memory on the node is not looked at, as with the authors."""
    counts: dict[Footprint, float] = {}
    for each in mix.expected():
        footprint = Footprint(each.footprint.shape, HostAmounts(each.footprint.host.cpu_milli))
        counts[footprint] = counts.get(footprint, 0.0) + each.frequency
    found: list[tuple[Footprint, float]] = []
    covered = 0.0
    for footprint, frequency in sorted(counts.items(), key=lambda item: -item[1]):
        if covered >= COVERED:
            break
        found.append((footprint, frequency))
        covered += frequency
    return [typical(footprint, frequency / covered) for footprint, frequency in found]


class _TypicalPods:
    """Fragmentation of nodes as one set of typical pods sees it."""

    def __init__(self, nodes: NodeTable, pods: Sequence[Typical]) -> None:
        # The number of cards with room for a pod must reach this; a pod without cards can use none.
        self._cards = np.array([pod.cards or np.inf for pod in pods], dtype=np.float32)
        self._cpu = np.array([pod.footprint.host.cpu_milli for pod in pods], dtype=np.float32)
        self._frequency = np.array([pod.frequency for pod in pods], dtype=np.float32)
        self._nodes = nodes
        self._needs = Needs(nodes.remnants.kinds, pods)
        self._roomy = CardSums(nodes, self._is_roomy, len(pods))
        self._unusable = CardSums(nodes, self._is_unusable, len(pods) + 1)

    def growth(self, footprint: Footprint, effects: Sequence[Effect]) -> Floats:
        """Return by how much each way lets its node's fragmentation grow, in thousandths of a card."""
        self._nodes.sync()
        self._roomy.sync()
        self._unusable.sync()
        candidates = together(effects)
        cpu, nodes = self._nodes.cpu[candidates.nodes], candidates.nodes
        now = self._fragmentation(self._roomy.of(nodes), self._unusable.of(nodes), cpu)
        roomy, unusable = self._roomy.after(candidates), self._unusable.after(candidates)
        return self._fragmentation(roomy, unusable, cpu - footprint.host.cpu_milli) - now

    def _fragmentation(self, roomy: Floats, unusable: Floats, cpu: Floats) -> Floats:
        """Return the fragmentation of nodes, a row each: what of their idle GPU the expected pod can't use."""
        fits = (roomy >= self._cards) & (cpu[:, np.newaxis] >= self._cpu)
        lost: Floats = np.where(fits, unusable[:, :-1], unusable[:, -1:]) @ self._frequency
        return lost

    def _is_roomy(self, kind: int, milli: int) -> Floats:
        """Return 1 for each typical pod that a card takes of which so much is free, 0 for the others."""
        return (self._needs.of(kind) <= milli).astype(np.float32)

    def _is_unusable(self, kind: int, milli: int) -> Floats:
        """Return what of the card each typical pod can't use, and then all that is free of it."""
        return np.append(np.where(self._needs.of(kind) <= milli, 0, milli), milli).astype(np.float32)


class BestFit:
    """Prices of the yardstick."""

    def __init__(self, ledger: Ledger) -> None:
        self._nodes = NodeTable(ledger)
        self._free = CardSums(self._nodes, lambda _, milli: np.array([milli], dtype=np.float32), 1)
        self._seen = -1
        self._largest = np.ones(2)  # CPU and thousandths of cards of the emptiest node so far
        self._version = 0

    @property
    def version(self) -> int:
        """Grows when a larger node is found."""
        return self._version

    def tick(self) -> None:
        """Look at nodes that are new or have changed."""
        self._nodes.sync()
        self._free.sync()
        changed = self._nodes.changed_since(self._seen)
        self._seen = self._nodes.version
        cpu, cards = _known(self._nodes.cpu[changed]), self._free.of(changed)[:, 0]
        largest = np.maximum(self._largest, [cpu.max(initial=0), cards.max(initial=0)])
        if (largest > self._largest).any():
            self._largest = largest
            self._version += 1

    def as_if(self, nodes: Collection[NodeRoom]) -> AbstractContextManager[None]:
        """See `Pricer`."""
        return self._nodes.as_if(nodes)

    def effect(self, footprint: Footprint, candidate: Candidate) -> Effect:
        """Return what a way does to its node."""
        self._nodes.sync()
        return self._nodes.effect(footprint, candidate)

    def costs(self, footprint: Footprint, effects: Sequence[Effect]) -> Sequence[float]:
        """Return minus the score of each way, a whole number from 0 to 100."""
        self.tick()
        candidates = together(effects)
        cpu = _known(self._nodes.cpu[candidates.nodes]) - footprint.host.cpu_milli
        left = 0.5 * cpu / self._largest[0] + 0.5 * self._free.after(candidates)[:, 0] / self._largest[1]
        return [-int(100 * (1 - part)) for part in left]


def _known(cpu: Floats) -> Floats:
    """Return CPU with 0 where it is not known."""
    return np.where(cpu < UNLIMITED / 2, cpu, np.float32(0))


class Yardstick(StrEnum):
    """What the operator has no preference for, but the comparison does."""

    FGD = "fgd"
    BEST_FIT = "best-fit"


def _best_fit() -> NewPricer:
    return lambda ledger, _: BestFit(ledger)


# Placement asks a preference for its name only, and looks all that it means up in tables.
FGD, BEST_FIT = (cast("Preference", each) for each in Yardstick)

WITH_YARDSTICKS: PricerImports = {**PRICERS, FGD: lambda: Fgd, BEST_FIT: _best_fit}

COMPARED: Mapping[str, Preference] = {**{each.value: each for each in Preference}, "fgd": FGD, "best-fit": BEST_FIT}
"""Name -> preference, of all that are compared, each once."""


def compared_policy(name: str) -> Policy:
    """Return the policy of a name, as `policy_of`, with the yardsticks. Raises KeyError for another.

    On its node, best fit takes the fullest card: that is binpack.
    """
    policy = policy_of(name, {**PREFERENCES, **COMPARED})
    return replace(policy, cards=Preference.BINPACK) if policy.cards == BEST_FIT else policy
