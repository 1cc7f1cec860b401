"""The costs of `fragmentation` again, for clusters of a few nodes: loops and whole numbers instead of arrays.

Cards have 1000 MiB and pods ask for MiB, so that thousandths are MiB. The worth of remnants is taken from the code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger.placement.fragmentation.prices import GRID, LENGTH, RemnantWorth, loads


@dataclass(frozen=True)
class PlainPod:
    """A kind of pod. `milli` is 1000 for whole cards."""

    cards: int
    milli: int
    cpu: int = 0
    frequency: float = 1.0

    @property
    def size(self) -> float:
        return self.cards * self.milli / 1000


@dataclass
class PlainNode:
    """A node: the free thousandths of each card, and its free CPU; None if that is not known."""

    free: list[int]
    cpu: int | None = None

    def slots(self, pod: PlainPod) -> float:
        by_cpu = 1e4 if self.cpu is None or not pod.cpu else min(1e4, self.cpu / pod.cpu)
        if by_cpu < 1:
            return 0.0
        return min(by_cpu, sum(free // pod.milli for free in self.free) // pod.cards)


def costs(
    nodes: Sequence[PlainNode],
    pods: Sequence[PlainPod],
    ways: Sequence[tuple[int, PlainPod, list[int]]],
    turnover: float,
) -> list[float]:
    """Return the cost of each way: (number of a node, pod, positions of its cards)."""
    total = sum(pod.frequency for pod in pods)
    pods = [pod for pod in pods if pod.cards]
    in_all = [sum(node.slots(pod) for node in nodes) for pod in pods]
    idle = sum(sum(node.free) for node in nodes)
    weights = [
        pod.frequency / total * pod.size / max(1, slots) ** 0.5 * (1 + 29 * turnover if pod.cards > 1 else 1)
        for pod, slots in zip(pods, in_all, strict=True)
    ]
    volume = sum(w * slots * 1000 * pod.size for w, slots, pod in zip(weights, in_all, pods, strict=True))

    linear = min(1.0, 2 * turnover)

    def worth(node: PlainNode) -> float:
        value = 0.0
        for weight, pod in zip(weights, pods, strict=True):
            slots = node.slots(pod)
            value += weight * ((1 - linear) * slots**0.75 + linear * slots)
        return value * idle / volume if volume else 0.0

    left = np.zeros(LENGTH)
    for node in nodes:
        for free in node.free:
            left[free // GRID] += 1
    remnants = RemnantWorth()
    demand: dict[int, float] = {}
    for pod in pods:
        demand[pod.milli] = demand.get(pod.milli, 0.0) + pod.frequency / total * pod.cards
    for _ in remnants.refresh(demand, left):
        pass
    [load] = loads({frozenset({0}): 1.0}, [float(idle)]) if demand else [1.0]
    found = []
    for number, pod, positions in ways:
        node = nodes[number]
        after = PlainNode(list(node.free), None if node.cpu is None else node.cpu - pod.cpu)
        cost = 0.0
        for position in positions:
            after.free[position] -= pod.milli
            cost += 0.2 * load * pod.milli
            if pod.milli < 1000:
                cost += 0.1 * (
                    remnants.worth[node.free[position] // GRID] - remnants.worth[after.free[position] // GRID]
                )
        found.append(cost + worth(node) - worth(after))
    return found
