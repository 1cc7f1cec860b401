"""A Filter's refusals: counted, remembered, and in the words that kube-scheduler shows."""

from __future__ import annotations

import contextlib

from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.resource_claims.claims import has_claims
from gpuledger.formats.scheduler.extender import FilterArguments
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import BadInput
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.workflows.binding.filter_result import FilterResult, refused
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.preemption.preemption_mode import PreemptionMode
from gpuledger.workflows.resource_claims.claim_requeuer import ClaimRequeuer


class FilterResponses:
    """Answers for pods that no node takes."""

    def __init__(
        self, ledger: Ledger, counts: Counts, trail: Trail, who_preempts: PreemptionMode, claim_waker: ClaimRequeuer
    ) -> None:
        self._ledger, self._counts, self._trail = ledger, counts, trail
        self._who_preempts, self._claim_waker = who_preempts, claim_waker

    def refused(self, pod: Pod, refusals: dict[str, Refusal]) -> FilterResult:
        """Return why each node, by its name, does not take a pod."""
        self._trail.refused(pod, refusals)
        if refusals:
            self._counts.refusals.labels(next(iter(refusals.values())).reason).inc()
        return refused(refusals, self._promised_node(pod.uid), self._who_preempts.scheduler)

    def bad_request(self, arguments: FilterArguments, text: str) -> FilterResult:
        """Return what is wrong with a pod, wherever it goes."""
        self._counts.bad_input.labels("pod").inc()
        self._counts.refusals.labels(Reason.BAD_REQUEST).inc()
        if has_claims(arguments.pod):
            with contextlib.suppress(BadInput):
                self._claim_waker.refused(pod_identity(arguments.pod))
        return FilterResult([], dict.fromkeys(arguments.node_names, text))

    def joins(self, arguments: FilterArguments, pod: Pod, request: PodRequest) -> FilterResult | None:
        """Return where a pod goes that uses claims which other pods have; None if it needs cards of its own there."""
        joined = request.joined[0]
        if joined.node_name in arguments.node_names:
            return None if request.shape else FilterResult([joined.node_name], {})
        text = f"claim {joined.name} of the pod is allocated on node {joined.node_name}"
        refusal = Refusal(Reason.CLAIM_ELSEWHERE, text)
        self._claim_waker.refused(pod)
        return self.refused(pod, dict.fromkeys(arguments.node_names, refusal))

    def _promised_node(self, pod_uid: str) -> str:
        """Return the node on which others are to make room for the pod, empty if there is none."""
        promised = self._ledger.promises.claims_of(pod_uid) or self._ledger.holders_of(pod_uid)
        return promised[0][0].node_name if promised else ""
