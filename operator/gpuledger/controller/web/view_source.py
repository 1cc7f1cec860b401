"""What the page shows, from the parts of the operator: nodes from the ledger, the rest from the part that has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from gpuledger.controller.web.agents_usage import NO_TIME, AgentsUsage, Answers
from gpuledger.controller.web.view_server import HistoryQuery
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.change_log import ChangeLog
from gpuledger.model.errors import NotFound
from gpuledger.reports.cards import NodeCards, report_of
from gpuledger.reports.usage import node_use
from gpuledger.workflows.gangs.gang_report import GangReporter
from gpuledger.workflows.inventory.agent_pods import AgentPods
from gpuledger.workflows.pending.explain_pod import PodExplainer
from gpuledger.workflows.pending.trail import RecordFilter, Trail
from gpuledger.workflows.pending.why_waiting import WhyWaiting
from gpuledger.workflows.queues.explain_workload import WorkloadExplainer

Json = dict[str, Any]


class LedgerSource:
    """The ledger as people see it: what the API server stores, not what is only on its way there.

    The ledger tells of changes of *room*. A share that arrives where it was on hold, or another reason for a card's
    phase, changes no room, and is seen all the same: `note` has to be called for these.
    """

    def __init__(
        self,
        ledger: Ledger,
        waiting: Callable[[], Iterable[Json]],
        explain: Callable[[str, str], Awaitable[Json]],
        explain_gang: Callable[[str, str], Awaitable[Json]],
        history: Callable[[HistoryQuery], Json],
        active_elsewhere: Callable[[], str | None] = lambda: None,
        gang_of: Callable[[str], str] = lambda uid: "",
        explain_workload: Callable[[str, str], Awaitable[Json]] | None = None,
        agents_answers: Callable[[], Awaitable[Answers]] | None = None,
    ) -> None:
        self._ledger = ledger
        self._active_elsewhere = active_elsewhere
        self._gang_of = gang_of
        self._waiting, self._explain, self._history = waiting, explain, history
        self._explain_gang = explain_gang
        self._explain_workload = explain_workload
        self._agents_answers = agents_answers
        self._taken = 0  # the ledger's number of its last change that was looked at
        self._touches = ChangeLog()  # an edition is the number of one

    def note_pod(self, pod_uid: str) -> None:
        """Note that something is shown of a pod, wherever it holds a card, that has changed."""
        for card, _ in self._ledger.holders_of(pod_uid):
            self.note(card.node_name)

    def note(self, node_name: str) -> None:
        """Note that something is shown of a node that has changed. Costs next to nothing."""
        self._touches.touch(node_name)

    @property
    def edition(self) -> int:
        """Number of the last change of any node."""
        if self._ledger.changes != self._taken:
            for name in self._ledger.touched_since(self._taken):
                self._touches.touch(name)
            self._taken = self._ledger.changes
        return self._touches.changes

    def touched_since(self, edition: int) -> Iterable[str]:
        """Return the nodes that may have changed later than this edition, or gone; -1: all that have a card."""
        if edition < 0:
            return list(self._ledger.node_names())
        return [name for _, name in self._touches.since(edition)]

    def node(self, name: str) -> NodeCards | None:
        """Return a node's cards as they are now; None if it has none."""
        return node_cards(self._ledger, name, self._gang_of)

    def active_elsewhere(self) -> str | None:
        """Return the name of the active replica, empty if there is none; None if this one is active."""
        return self._active_elsewhere()

    def waiting(self) -> Iterable[Json]:
        """Yield the waiting pods."""
        return self._waiting()

    async def explain(self, namespace: str, name: str) -> Json:
        """Return why a pod waits, or where it is. Raises NotFound."""
        return await self._explain(namespace, name)

    async def explain_gang(self, namespace: str, name: str) -> Json:
        """Return how far a gang has come. Raises NotFound."""
        return await self._explain_gang(namespace, name)

    async def explain_workload(self, namespace: str, name: str) -> Json:
        """Return why a workload of Kueue waits. Raises NotFound."""
        if self._explain_workload is None:
            raise NotFound("there are no workloads here", 404)
        return await self._explain_workload(namespace, name)

    async def usage(self, idle_after_s: int) -> Iterator[Json]:
        """Return what is used of each node's cards beside what is held, a node when it is taken. Raises NotFound."""
        if self._agents_answers is None:
            raise NotFound("no agents are asked here", 404)
        answers = await self._agents_answers()
        nodes = (self.node(name) for name in sorted(self._ledger.node_names()))
        return (node_use(node, answers.get(node.name, NO_TIME), idle_after_s).json() for node in nodes if node)

    def history(self, query: HistoryQuery) -> Json:
        """Return what has happened."""
        return self._history(query)


def node_cards(ledger: Ledger, name: str, gang_of: Callable[[str], str] = lambda uid: "") -> NodeCards | None:
    """Return a node's cards as they are now; None if it has none."""
    entries = ledger.entries_of_node(name)
    return NodeCards(name, tuple(report_of(entry, gang_of) for entry in entries)) if entries else None


def operators_source(
    ledger: Ledger,
    waiting: WhyWaiting,
    explainer: PodExplainer,
    gang_reporter: GangReporter,
    workload_explainer: WorkloadExplainer,
    trail: Trail,
    active_elsewhere: Callable[[], str | None],
    gang_of: Callable[[str], str],
    agents: AgentPods,
) -> LedgerSource:
    """Return what the page shows of an operator."""

    async def explain(namespace: str, name: str) -> Json:
        return (await explainer.explain(namespace, name)).json()

    async def explain_gang(namespace: str, name: str) -> Json:
        return (await gang_reporter.explain(namespace, name)).json()

    async def explain_workload(namespace: str, name: str) -> Json:
        return (await workload_explainer.explain(namespace, name)).json()

    def history(query: HistoryQuery) -> Json:
        record_filter = RecordFilter(query.namespace, query.pod, query.card, query.node, query.kind, query.gang)
        records = [record.json() for record in trail.latest(record_filter, query.limit)]
        return {"kept": trail.kept, "dropped": trail.dropped, "records": records}

    def reports() -> Iterable[Json]:
        return (report.json() for report in waiting.reports())

    usage = AgentsUsage(agents.by_node, lambda: sorted(ledger.node_names()), lambda name: node_cards(ledger, name))
    return LedgerSource(
        ledger, reports, explain, explain_gang, history, active_elsewhere, gang_of, explain_workload, usage.answers
    )
