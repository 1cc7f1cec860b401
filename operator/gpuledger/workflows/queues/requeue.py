"""What becomes of an admitted workload whose pods find no cards: these may have failed, or others may have them."""

from __future__ import annotations

import logging

from gpuledger.formats.kubernetes.workload import CheckState, WorkloadName
from gpuledger.model.clock import Clock
from gpuledger.workflows.queues.card_check import CardCheck
from gpuledger.workflows.queues.check_writer import CheckWriter
from gpuledger.workflows.queues.workload_pods import WorkloadPods

logger = logging.getLogger(__name__)


class WorkloadRequeuer:
    """Has Kueue evict and queue again an admitted workload whose pods find no cards: they may be gone, or taken."""

    def __init__(
        self,
        check: CardCheck,
        pods: WorkloadPods,
        writer: CheckWriter,
        after_s: float,
        clock: Clock,
    ) -> None:
        self._check = check
        self._pods = pods
        self._writer = writer
        self._after_s = after_s
        self._clock = clock
        self._since: dict[str, float] = {}  # UID of a pod that was refused -> since when

    def refused(self, pod_uid: str) -> None:
        """Record that a pod was refused."""
        if self._after_s and self._pods.of(pod_uid) is not None and pod_uid not in self._since:
            self._since[pod_uid] = self._clock.now_s()
            self._check.on_due()

    def next_due_s(self) -> float | None:
        """Return when the next pod has waited for too long; None if none waits."""
        return min(self._since.values()) + self._after_s if self._since else None

    def retry_overdue(self) -> None:
        """Have workloads queued again whose pods have waited for too long."""
        now_s = self._clock.now_s()
        for uid, since_s in list(self._since.items()):
            named = self._pods.of(uid)
            if named is None or not self._pods.is_pending(uid):
                del self._since[uid]
            elif since_s + self._after_s <= now_s:
                self._since[uid] = now_s
                self._retry(named[0])

    def _retry(self, name: WorkloadName) -> None:
        queued = self._check.find(name)
        if queued is None or not queued.workload.is_admitted or self._writer.is_writing(queued.workload.uid):
            return
        text = f"a pod could not be placed for {self._after_s:g} s, though there were cards for all: it is queued again"
        logger.info("workload %s: %s", queued.workload.name, text)
        self._writer.say(queued.workload, queued.check, CheckState.RETRY, text, lambda _: None)
