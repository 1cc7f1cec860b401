"""Remembers the pods for which kube-scheduler itself finds no node: it does not ask the operator about them."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.formats.kubernetes.pod import created_at, pod_identity
from gpuledger.formats.scheduler.configuration import SchedulerWords, scheduler_words
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import PodRequest
from gpuledger.reports.waiting import WaitingReport


class RefusedByScheduler:
    """Follows the pods without a node, by what kube-scheduler has written into their status."""

    def __init__(self, read_request: Callable[[Json], PodRequest | None]) -> None:
        self._read_request = read_request
        self._reports: dict[str, WaitingReport] = {}  # pod UID -> why it waits
        self.changes = 0
        """How often a pod has come, gone, or got another reason so far."""

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        words = scheduler_words(pod)
        report = self._report(pod, words) if words.refused_all else None
        uid = pod["metadata"]["uid"]
        if report is None:
            self.forget_pending(uid)
        elif report != self._reports.get(uid):
            self._reports[uid] = report
            self.changes += 1

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        self.changes += self._reports.pop(pod_uid, None) is not None

    def known_pending(self) -> set[str]:
        """Return the UIDs of the pods that kube-scheduler itself refuses."""
        return set(self._reports)

    def reports(self) -> dict[str, WaitingReport]:
        """Return why each of them waits, by the pod's UID."""
        return self._reports

    def _report(self, pod: Json, words: SchedulerWords) -> WaitingReport | None:
        try:
            request = self._read_request(pod)
        except BadInput:
            return None
        if request is None:
            return None
        reasons = {Refusal(Reason.KUBE_SCHEDULER, text): count for text, count in words.own}
        return WaitingReport(pod_identity(pod), request, created_at(pod), None, reasons)
