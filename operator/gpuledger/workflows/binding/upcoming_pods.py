"""Pods that kube-scheduler has to ask for, in the order in which it will: by priority, then as they came."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod

_Rank = tuple[int, str, int, str]
"""Minus the priority, time of creation, number in the order of coming, UID."""


@dataclass(frozen=True, slots=True)
class UpcomingPod:
    """A pod that kube-scheduler has not asked for."""

    pod: Pod
    request: PodRequest
    demands: bytes
    """What it asks of nodes beside cards: see `demands_on_nodes`."""
    created: str
    version: str
    """Its resourceVersion."""


class UpcomingPods:
    """Keeps them in their order."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[_Rank, UpcomingPod]] = {}  # by UID
        self._order: list[_Rank] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._pods)

    def uids(self) -> AbstractSet[str]:
        """Return the UIDs of all."""
        return self._pods.keys()

    def put(self, found: UpcomingPod) -> None:
        """Add a pod that is not there."""
        rank = -found.pod.priority, found.created, self._number, found.pod.uid
        self._number += 1
        insort(self._order, rank)
        self._pods[found.pod.uid] = rank, found

    def drop(self, pod_uid: str) -> None:
        """Remove a pod. Idempotent."""
        known = self._pods.pop(pod_uid, None)
        if known is not None:
            del self._order[bisect_left(self._order, known[0])]

    def pop(self) -> UpcomingPod | None:
        """Remove the first pod and return it; None if there is none."""
        if not self._order:
            return None
        _, found = self._pods.pop(self._order.pop(0)[-1])
        return found
