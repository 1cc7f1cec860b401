"""Keeps pods to what their namespace may have: of the places that there are, only those within its quota."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gpuledger.ledger.book import Ledger
from gpuledger.model.quota import QuotaLimit
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.placement.choose import Choice, Chooser


class QuotaGate:
    """Answers for pods whose namespace has a quota; for all others it costs a look into a table."""

    def __init__(self, ledger: Ledger, chooser: Chooser, nodes_offered: int) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._nodes_offered = nodes_offered

    def refuses(self, pod: Pod, request: PodRequest) -> Refusal | None:
        """Return why a pod gets no cards, whichever these are; None if it may get some."""
        self._ledger.quotas.knows(pod.uid, pod.namespace)
        limit = self._ledger.quotas.sure_to_exceed(pod, request.shape)
        return over_quota(limit) if limit else None

    def within(self, pod: Pod, request: PodRequest, node_names: Collection[str], choice: Choice) -> Choice:
        """Return of a choice what the pod's namespace may have; others that fit if that is nothing; or why none is."""
        limit = self._ledger.quotas.refusing(pod.uid, choice.placements)
        if limit is None:
            return choice
        found = self._fitting(pod, choice.placements)
        if not found:  # cards elsewhere may be smaller
            every = self._chooser.choose(request, node_names, len(node_names))
            found = self._fitting(pod, every.placements)[: self._nodes_offered]
        if found:
            return Choice(tuple(found), {})
        return Choice((), dict.fromkeys(node_names, over_quota(limit)))

    def _fitting(self, pod: Pod, placements: Collection[Placement]) -> list[Placement]:
        exceeded = self._exceeded(pod)
        return [placement for placement in placements if exceeded(placement) is None]

    def _exceeded(self, pod: Pod) -> Callable[[Placement], QuotaLimit | None]:
        quotas = self._ledger.quotas
        return lambda placement: quotas.exceeded_by(pod.uid, pod.namespace, placement)


def over_quota(limit: QuotaLimit) -> Refusal:
    """Return the refusal of a pod with which its namespace would exceed a limit."""
    text = f"the quota of the pod's namespace does not allow it: {limit.key} of ResourceQuota {limit.quota}"
    return Refusal(Reason.QUOTA, text, limit)
