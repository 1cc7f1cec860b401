"""Reports which pods wait and why, from placement's memory, without looking at nodes or writing.

Those, too, for which kube-scheduler itself has no node: placement knows nothing of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from gpuledger.ledger.book import Ledger
from gpuledger.model.refusal import BEING_FREED, Refusal
from gpuledger.placement.choose import Chooser
from gpuledger.reports.waiting import WaitingReport
from gpuledger.workflows.pending.refused_by_scheduler import RefusedByScheduler
from gpuledger.workflows.pending.waiting_pod import WaitingPod
from gpuledger.workflows.pending.waiting_pods import WaitingPods


class WhyWaiting:
    """Reports on the pods that wait."""

    def __init__(
        self, ledger: Ledger, chooser: Chooser, waiting: WaitingPods, refused_by_scheduler: RefusedByScheduler
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._waiting = waiting
        self._refused_by_scheduler = refused_by_scheduler

    @property
    def edition(self) -> tuple[int, int, int]:
        """Return what is another one when the reports may have changed."""
        return self._waiting.changes, self._refused_by_scheduler.changes, self._ledger.changes

    def reports(self) -> Iterator[WaitingReport]:
        """Yield everybody who waits at this moment, first who goes first. Pods that ask alike cost as much as one.

        Pods that kube-scheduler itself refuses come last: no room helps them.
        """
        known: dict[tuple[object, ...], Counter[Refusal]] = {}
        refused = self._refused_by_scheduler.reports()
        asked = (self._report(waiting, known) for waiting in self._waiting.all() if waiting.pod.uid not in refused)
        return chain(asked, sorted(refused.values(), key=_rank))

    def pods_by_reason(self) -> Counter[str]:
        """Return how many pods wait for each main reason."""
        return Counter(report.main_reason for report in self.reports())

    def _report(self, waiting: WaitingPod, known: dict[tuple[object, ...], Counter[Refusal]]) -> WaitingReport:
        request, pod = waiting.request, waiting.pod
        reasons: Counter[Refusal] = Counter()
        if self._ledger.promises.claims_of(pod.uid):
            reasons[BEING_FREED] = 1
        elif self._waiting.lookup(pod.uid):  # there is no room for it
            alike = (request.shape, request.node_policy, request.card_policy, request.host, id(waiting.node_names))
            if alike not in known:
                known[alike] = self._chooser.reasons(request, waiting.node_names)
            reasons = known[alike]
        return WaitingReport(pod, request, waiting.created, waiting.tried_s, reasons)


def _rank(report: WaitingReport) -> tuple[int, str]:
    return -report.pod.priority, report.created
