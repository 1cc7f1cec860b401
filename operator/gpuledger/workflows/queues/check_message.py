"""What is done about workloads for which there is no room: others give cards back, or people are told why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.placement.group import Trial
from gpuledger.reports.explanation import NodeReason, in_short
from gpuledger.workflows.pending.explain_pod import PodExplainer
from gpuledger.workflows.queues.card_check import CardCheck
from gpuledger.workflows.queues.queued_workload import QueuedWorkload, asking
from gpuledger.workflows.queues.reclaim import Reclaimer
from gpuledger.workflows.queues.reservations import Seat
from gpuledger.workflows.tasks.keyed_worker import KeyedWorker
from gpuledger.workflows.tasks.pauses import Throttle, in_slices

logger = logging.getLogger(__name__)

WAITS = "It waits for pods that leave."

LOOKS_AT_ONCE = 1
"""Workloads for which victims are looked for at a time: whoever looks next sees who was evicted."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was found out about a workload's pods at one moment."""

    text: str = ""
    """Why they find no cards, in the words of `explain`; empty if they do."""
    pod_set: str = ""
    """Of which the first is that finds none."""
    nodes: Sequence[NodeReason] = ()
    """Why nodes do not take that one, the nearest first."""


class CheckMessages:
    """Tells workloads why they wait, and has others give cards back.

    Each workload has its turn now and then, and of each namespace one at a time.
    """

    def __init__(
        self,
        ledger: Ledger,
        check: CardCheck,
        take_back: Reclaimer,
        explainer: PodExplainer,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._check = check
        self._take_back = take_back
        self._explainer = explainer
        self._clock = clock
        self._throttle = Throttle()
        self._latest: dict[
            str, tuple[QueuedWorkload, Sequence[Seat]]
        ] = {}  # UID of a workload -> it, and what it wants
        self.worker = KeyedWorker(self._look_at, LOOKS_AT_ONCE, group_of=self._namespace_of)

    def found(self, queued: QueuedWorkload, seats: Sequence[Seat]) -> None:
        """Record that a workload finds no room."""
        uid = queued.workload.uid
        self._latest[uid] = queued, seats
        self._throttle.call(uid, self.worker.mark)

    def _namespace_of(self, uid: str) -> str:
        latest = self._latest.get(uid)
        return latest[0].workload.name.namespace if latest else ""

    async def _look_at(self, uid: str) -> None:
        queued, seats = self._latest.pop(uid, (None, ()))
        if queued is None or not self._check.is_waiting(queued):
            return
        waits = await self._take_back.consider(queued, seats)
        text = (await self.look(queued, seats)).text
        if text and self._check.is_waiting(queued):
            self._check.say_why(queued, f"{text}. {WAITS}" if waits else text)

    async def look(self, queued: QueuedWorkload, seats: Sequence[Seat]) -> Look:
        """Look again why the pods find no cards."""
        trial = Trial(self._ledger)
        await in_slices(trial.steps(asking(queued, seats)), self._clock)
        if not trial.left:
            return Look()
        first = trial.left[0]
        nodes = await self._explainer.nodes_beside(first.pod.uid, first.request.shape, first.node_names, trial)
        text = in_short(nodes)
        if len(seats) > 1:
            text = f"{len(trial.placed)} of {len(seats)} pods find cards at once. For the next one, {text}"
        pod_set = next((seat.pod_set for seat in seats if seat.key == first.pod.uid), "")
        return Look(text, pod_set, nodes)
