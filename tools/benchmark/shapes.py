"""The pods that are scheduled."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Limits = Mapping[str, str]

CARDS_PER_NODE = 8
FILLED = 0.9
"""How much of the cluster a burst may fill: the last few cards are another question, that of the full cluster."""

OURS = "gpuledger"
WITH_CLAIMS, STOCK_CLAIMS = "gpuledger, claims", "stock DRA"
"""Who has pods with claims: the operator's, or such as kube-scheduler allocates by itself."""

NO_CARD: Limits = {}
QUARTER: Limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25", "nvidia.com/gpucores": "25"}
SLIVER: Limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "1"}
"""For warming up: a shape that is not measured."""


def whole(cards: int) -> Limits:
    """Ask for cards of one's own."""
    return {"nvidia.com/gpu": str(cards)}


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of pods, or several in an order that is always the same."""

    name: str
    limits: Callable[[int], Limits]
    """What the pod at a position of the burst asks for."""
    cards_per_pod: float
    shares_per_pod: float
    """Cards that it has a share of, however large: each is an entry in the ledger."""

    def pods_for(self, nodes: int, wanted: int) -> int:
        """Return how many pods to create: as many as wanted, if they fit."""
        return max(1, min(wanted, int(FILLED * nodes * CARDS_PER_NODE / self.cards_per_pod)))


def _mixed(position: int) -> Limits:
    chance = random.Random(position)  # noqa: S311 - no secret
    kind = chance.random()
    if kind < 0.7:
        return QUARTER
    return whole(1) if kind < 0.9 else whole(chance.randint(4, 8))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("quarter-card", lambda _: QUARTER, 0.25, 1),
        Shape("whole-card", lambda _: whole(1), 1, 1),
        Shape("8-cards", lambda _: whole(8), 8, 8),
        Shape("mix", _mixed, 0.7 * 0.25 + 0.2 * 1 + 0.1 * 6, 0.7 + 0.2 + 0.1 * 6),
    )
}


def cards_of(limits: Limits) -> float:
    """Return the cards that a pod takes, shared ones in part."""
    share = int(limits.get("nvidia.com/gpumem-percentage", 100)) / 100
    return int(limits.get("nvidia.com/gpu", 0)) * share


def pod(name: str, scheduler: str, limits: Limits, role: str = "measured") -> Json:
    """Return a pod. Its role is a label, by which pods are deleted together."""
    container = {"name": "main", "image": "none", "resources": {"limits": dict(limits)}}
    metadata = {"name": name, "namespace": "default", "labels": {"role": role}}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def burst(shape: Shape, count: int, subject: str) -> list[Json]:
    """Return the pods of one measurement, as far as the subject understands them."""
    return [
        pod(f"pod-{position}", scheduler_of(subject), _understood(shape.limits(position), subject))
        for position in range(count)
    ]


def scheduler_of(subject: str) -> str:
    """Return the name of a subject's scheduler."""
    return {"stock": "plain", STOCK_CLAIMS: "plain", WITH_CLAIMS: OURS}.get(subject, subject)


def _understood(limits: Limits, subject: str) -> Limits:
    """Plain kube-scheduler has pods without cards, and the stock one counts cards."""
    kept = {"plain": (), "stock": ("nvidia.com/gpu",)}.get(subject, limits)
    return {name: limits[name] for name in kept}
