"""Reports which pods wait and why, from placement's memory, without looking at nodes or writing.

Those, too, for which kube-scheduler itself has no node: placement knows nothing of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import chain

from gpuledger.ledger.book import Ledger
from gpuledger.model.refusal import BEING_FREED, Reason, Refusal
from gpuledger.placement.choose import Chooser
from gpuledger.reports.waiting import WaitingReport
from gpuledger.workflows.gangs.gang_state import Member
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.pending.refused_by_scheduler import RefusedByScheduler
from gpuledger.workflows.pending.waiting_pod import WaitingPod
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.quota.namespace_quotas import over_quota

UNKNOWN = Refusal(Reason.GANG, "the pod waits for its gang")
"""Of a member that was refused before this operator has started."""


class WhyWaiting:
    """Reports on the pods that wait."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        waiting: WaitingPods,
        members: Members,
        refused_by_scheduler: RefusedByScheduler,
        queue_of: Callable[[str], str] = lambda uid: "",
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._waiting = waiting
        self._members = members
        self._refused_by_scheduler = refused_by_scheduler
        self._queue_of = queue_of

    @property
    def edition(self) -> tuple[int, int, int]:
        """Return what is another one when the reports may have changed."""
        return self._waiting.changes, self._refused_by_scheduler.changes, self._ledger.changes

    def reports(self) -> Iterator[WaitingReport]:
        """Yield everybody who waits at this moment, first who goes first. Pods that ask alike cost as much as one.

        Pods that kube-scheduler itself refuses come last: no room helps them.
        """
        known: dict[tuple[object, ...], Counter[Refusal]] = {}
        refused = {uid: self._with_names(each) for uid, each in self._refused_by_scheduler.reports().items()}
        asked = (self._report(waiting, known) for waiting in self._waiting.all() if waiting.pod.uid not in refused)
        gangs = (
            self._with_names(_of_member(member)) for member in self._members.refused() if member.pod.uid not in refused
        )
        in_order = merge(asked, sorted(gangs, key=_rank), key=_rank)
        return chain(in_order, sorted(refused.values(), key=_rank))

    def pods_by_reason(self) -> Counter[str]:
        """Return how many pods wait for each main reason."""
        return Counter(report.main_reason for report in self.reports())

    def _report(self, waiting: WaitingPod, known: dict[tuple[object, ...], Counter[Refusal]]) -> WaitingReport:
        request, pod = waiting.request, waiting.pod
        reasons: Counter[Refusal] = Counter()
        if self._ledger.promises.claims_of(pod.uid):
            reasons[BEING_FREED] = 1
        elif limit := self._waiting.limit_of(pod.uid):
            reasons[over_quota(limit)] = 1
        elif self._waiting.lookup(pod.uid):  # there is no room for it
            alike = (request.shape, request.node_policy, request.card_policy, request.host, id(waiting.node_names))
            if alike not in known:
                known[alike] = self._chooser.reasons(request, waiting.node_names)
            reasons = known[alike]
        report = WaitingReport(pod, request, waiting.created, waiting.tried_s, reasons)
        return self._with_names(report)

    def _with_names(self, report: WaitingReport) -> WaitingReport:
        """Return the report with the gang and the queue of its pod."""
        state, queue = self._members.of(report.pod.uid), self._queue_of(report.pod.uid)
        if state is None and not queue:
            return report
        return replace(report, gang=state.name.name if state else report.gang, queue=queue)


def _of_member(member: Member) -> WaitingReport:
    refusal = member.refusal or UNKNOWN
    nodes = len(member.node_names) if member.node_names is not None else 1
    reasons = {refusal: max(nodes, 1)}
    return WaitingReport(member.pod, member.request, member.since, member.tried_s, reasons, member.gang.name.name)


def _rank(report: WaitingReport) -> tuple[int, str]:
    return -report.pod.priority, report.created
