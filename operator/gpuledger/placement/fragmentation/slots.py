"""How many more pods of each expected kind the nodes can take, and what these slots are worth.

A node's worth is the sum over the kinds of pods of weight x slots^0.75. The power says that the last slot of a kind on
a node is worth more than the tenth. The weight is the part of the GPU demand that the kind makes up, divided by the
root of the slots that the cluster has left for it: a kind that few nodes can still take weighs more, and so the
nodes that could take it are left to it. Together that is what keeps whole nodes free for pods with eight cards while
small pods fill what is broken already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.host import HostAmounts
from gpuledger.placement.fragmentation.nodes import CardSums, Effects, NodeTable
from gpuledger.placement.fragmentation.typical import WHOLE, Floats, Ints, Needs, Numbers, Typical

SCARCITY = 0.5
"""Power of a kind's slots in the cluster by which its weight is divided."""

SEVERAL_IN_TURNOVER = 29.0
"""In a steady state, kinds of pods with several cards weigh by so much more. While the cluster fills, what they need is
mostly there; but once their room is broken up, it comes back only if small pods are kept from it for long."""

LINEAR_IN_TURNOVER = 2.0
"""From the half of a steady state on, slots count as they are, and not by their power."""

MANY = 1e4
"""Slots of a node as far as its CPU and memory are concerned, if these are not known, or not asked for."""


class Worth:
    """The worth of slots of each kind, in thousandths of a card; `turnover` says how they are counted, 0 to 1."""

    def __init__(self, weights: Numbers, turnover: float) -> None:
        self._weights = weights.astype(np.float32)
        self._linear = np.float32(min(1.0, LINEAR_IN_TURNOVER * turnover))

    def of(self, slots: Floats) -> Numbers:
        """Return what slots are worth, a node a row."""
        root = np.sqrt(slots)
        counted = (1 - self._linear) * root * np.sqrt(root) + self._linear * slots
        return np.asarray(counted @ self._weights, dtype=np.float64)


class Slots:
    """The slots of the nodes for some kinds of pods with cards."""

    def __init__(self, nodes: NodeTable, pods: Sequence[Typical], needs: Needs) -> None:
        self._nodes = nodes
        self._needs = needs
        self._cards = np.array([pod.cards for pod in pods], dtype=np.float64)
        self._several = np.array([pod.cards > 1 for pod in pods], dtype=bool)
        self._per_card = np.array([1 / pod.cards for pod in pods], dtype=np.float32)
        self._by_cpu = _divided_by([pod.footprint.host.cpu_milli for pod in pods])
        self._by_memory = _divided_by([pod.footprint.host.memory_mib for pod in pods])
        self._sums = CardSums(nodes, self._on_card, len(pods))

    def sync(self) -> None:
        """Apply what has changed of the nodes, which are synced already."""
        self._sums.sync()

    def of(self, nodes: Ints | NDArray[np.intp]) -> Floats:
        """Return how many pods of each kind some nodes could take; fractions where CPU or memory is the limit."""
        return self._limited(self._sums.of(nodes), self._nodes.cpu[nodes], self._nodes.memory[nodes])

    def after(self, effects: Effects, host: HostAmounts) -> Floats:
        """Return the same for the nodes as they would be, a row for each way."""
        cpu = self._nodes.cpu[effects.nodes] - host.cpu_milli
        memory = self._nodes.memory[effects.nodes] - host.memory_mib
        return self._limited(self._sums.after(effects), cpu, memory)

    def sizes(self) -> Numbers:
        """Return how many cards a pod of each kind stands for, a part of one for a share."""
        parts = [self._needs.on_average(position) / WHOLE for position in range(len(self._cards))]
        sizes: Numbers = self._cards * np.array(parts)
        return sizes

    def worth(self, frequency: Numbers, sizes: Numbers, in_all: Numbers, idle_milli: float, turnover: float) -> Worth:
        """Return what slots are worth, when there are `in_all` of each kind in the cluster.

        What all of them are worth comes to what is idle.
        """
        weights = frequency * sizes / np.maximum(1, in_all) ** SCARCITY
        weights[self._several] *= 1 + SEVERAL_IN_TURNOVER * turnover
        volume = (weights * in_all * WHOLE * sizes).sum()
        return Worth(weights * (idle_milli / volume if volume > 0 else 0), turnover)

    def _limited(self, by_cards: Floats, cpu: Floats, memory: Floats) -> Floats:
        (per_cpu, least_cpu), (per_memory, least_memory) = self._by_cpu, self._by_memory
        by_cpu = cpu[:, np.newaxis] * per_cpu + least_cpu
        by_host = np.minimum(np.minimum(by_cpu, memory[:, np.newaxis] * per_memory + least_memory), MANY)
        whole = np.floor(by_cards * self._per_card + 1e-4)
        slots: Floats = np.where(by_host < 1, 0, np.minimum(whole, by_host))
        return slots

    def _on_card(self, kind: int, milli: int) -> Floats:
        """Return how often each kind of pod fits on a card of which so much is free."""
        return (milli // self._needs.of(kind)).astype(np.float32)


def _divided_by(amounts: list[int]) -> tuple[Floats, Floats]:
    """Return what makes quotients of something by these amounts: a factor and a summand; for an amount of 0, `MANY`."""
    factors = np.array([1 / amount if amount else 0 for amount in amounts], dtype=np.float32)
    return factors, np.where(factors, 0, MANY).astype(np.float32)
