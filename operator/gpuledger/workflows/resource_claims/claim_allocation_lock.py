"""Which pod is about to be the first that uses a ResourceClaim: the others that name it wait, and join it then."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.model.errors import BindInProgress
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod


class ClaimAllocationLock:
    """Remembers for each claim that pods share, by its UID, for which pod cards were chosen last."""

    def __init__(self, is_under_way: Callable[[str], bool]) -> None:
        """Make one; `is_under_way` tells whether a pod has cards on hold, or is being bound."""
        self._is_under_way = is_under_way
        self._first: dict[str, str] = {}

    def check(self, pod: Pod, request: PodRequest) -> None:
        """Raise BindInProgress if a claim of the pod is just being allocated for another one."""
        for claim in request.claims:
            first = self._first.get(claim.uid, pod.uid) if claim.shared else pod.uid
            if first != pod.uid and self._is_under_way(first):
                raise BindInProgress(f"claim {claim.name} of pod {pod} is being allocated for another pod")

    def chosen(self, pod: Pod, request: PodRequest) -> None:
        """Note that cards were chosen for a pod."""
        if any(claim.shared for claim in request.claims):
            self._first = {uid: first for uid, first in self._first.items() if self._is_under_way(first)}
            self._first.update({claim.uid: pod.uid for claim in request.claims if claim.shared})
