"""Answers why a workload of Kueue waits: in Kueue's words for quota, node by node for cards. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuledger.formats.kubernetes.workload import PodSet, WorkloadName, pod_sets
from gpuledger.kube_api.writes import KubeStore
from gpuledger.model.errors import BadInput, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.reports.explanation import request_text
from gpuledger.reports.gang import WorkloadReport, WorkloadState, is_named, workload_report
from gpuledger.workflows.queues.card_check import CardCheck
from gpuledger.workflows.queues.reclaim import CheckMessages
from gpuledger.workflows.queues.workloads import QueuedWorkload, SeatReader


class WorkloadExplainer:
    """Explains workloads, one at a time."""

    def __init__(
        self,
        store: KubeStore,
        check: CardCheck,
        reader: SeatReader,
        no_room: CheckMessages,
        read_request: Callable[[Json], PodRequest | None],
    ) -> None:
        self._store = store
        self._check = check
        self._reader = reader
        self._no_room = no_room
        self._read_request = read_request

    async def explain(self, namespace: str, name: str) -> WorkloadReport:
        """Return all that there is to say of a workload, named by itself or by its job.

        Raises NotFound, and what else the API server says.
        """
        found = await self._find(namespace, name)
        report = workload_report(found)
        queued = self._check.find(WorkloadName(report.namespace, report.name))
        if queued is not None and self._check.is_waiting(queued):
            report = await self._with_nodes(report, queued)
        pods = [self._text(each) for each in pod_sets(found)]
        return replace(report, pods=pods)

    async def stop(self) -> None:
        """Look at no workload any more."""
        await self._no_room.worker.stop()

    async def _with_nodes(self, report: WorkloadReport, queued: QueuedWorkload) -> WorkloadReport:
        """Return the report of a workload that waits for cards, with why its pods find none at this moment."""
        try:
            looked = await self._no_room.look(queued, await self._reader.seats(queued))
        except BadInput as error:
            return replace(report, state=WorkloadState.NO_CARDS, summary=f"can't be placed: {error}")
        summary = looked.text or report.summary
        state = WorkloadState.NO_CARDS
        return replace(report, state=state, summary=summary, example=looked.pod_set, nodes=looked.nodes)

    async def _find(self, namespace: str, name: str) -> Json:
        try:
            return await self._store.workload(namespace, name)
        except NotFound:
            async for page in self._store.workloads(namespace):
                for each in page:
                    if is_named(each, name):
                        return each
        text = f"namespace {namespace} has no workload of Kueue, and no job with one, that is called {name!r}"
        raise NotFound(text, 404)

    def _text(self, pod_set: PodSet) -> str:
        pods = "1 pod" if pod_set.count == 1 else f"{pod_set.count} pods"
        try:
            request = self._read_request(pod_set.pod)
        except BadInput as error:
            return f"{pod_set.name}: {pods}, whose request can't be read: {error}"
        asks = request_text(request) if request else "no GPU"
        return f"{pod_set.name}: {pods}, {asks}{' for each' if pod_set.count > 1 and request else ''}"
