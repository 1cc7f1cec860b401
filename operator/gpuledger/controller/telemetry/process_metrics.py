"""The operator's metrics of itself, read at each scrape: the workflows' counters, and the waiting pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import gpuledger
from gpuledger.ledger.book import Ledger
from gpuledger.model.refusal import Reason
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.counts import Counts, JournalCounts
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.inventory.nodes_without_topology import NodesWithoutTopology
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.repair.adopt import Adopter

NumberOf = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class OperatorState:
    """What is asked for and is not in the workflows' counters. None: unknown."""

    is_active: Callable[[], bool]
    is_synced: Callable[[], bool] | None = None
    pending_by_reason: NumberOf | None = None
    """Reason -> pods that wait for it."""
    members: Members | None = None
    """Who is of which gang."""
    workloads_by_state: NumberOf | None = None
    """How far a workload of Kueue is -> how many are."""


class ProcessMetrics(Collector):
    """One sample for each, or for each value of one label."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        counts: Counts,
        journal: JournalCounts,
        waiting: WaitingPods,
        adopter: Adopter,
        unlinked: NodesWithoutTopology,
        state: OperatorState,
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._counts = counts
        self._journal = journal
        self._waiting = waiting
        self._adopter = adopter
        self._unlinked = unlinked
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield all of them."""
        yield from self._counters()
        yield from self._gauges()
        yield from self._who_waits()
        yield from self._quotas()
        yield self._workloads()

    def _counters(self) -> Iterator[Metric]:
        for family in (*self._counts.registry.collect(), *self._journal.registry.collect()):
            if family.type == "counter":  # without a sample for each that says when it was made
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        text = "Comparisons of a node with a kind of request"
        yield CounterMetricFamily("gpuledger_shape_evaluations", text, value=self._chooser.evaluations)

    def _gauges(self) -> Iterator[Metric]:
        state, cards = self._state, list(self._ledger.entries())
        holders = sum(len(card.holders) for card in cards)
        yield GaugeMetricFamily("gpuledger_cards", "Cards in the ledger", value=len(cards))
        yield GaugeMetricFamily("gpuledger_holders", "Shares in the ledger", value=holders)
        text = "Bound pods that lack shares in the ledger, as of the last comparison with full lists"
        yield GaugeMetricFamily("gpuledger_pods_without_shares", text, value=len(self._adopter))
        text = "Nodes whose cards report no links, if the cluster's policy is topology"
        yield GaugeMetricFamily("gpuledger_nodes_without_links", text, value=sum(1 for _ in self._unlinked))
        text = "Whether this operator writes: its kube-scheduler holds the Lease"
        yield GaugeMetricFamily("gpuledger_leader", text, value=int(state.is_active()))
        synced = GaugeMetricFamily("gpuledger_ready", "Whether the operator has read the ledger and answers")
        if state.is_synced is not None:
            synced.add_metric([], int(state.is_synced()))
        yield synced
        info = GaugeMetricFamily("gpuledger_build_info", "1, with the operator's version", labels=["version"])
        info.add_metric([gpuledger.__version__], 1)
        yield info

    def _quotas(self) -> Iterator[Metric]:
        labels, quotas = ["namespace", "quota", "key"], self._ledger.quotas
        limit = GaugeMetricFamily("gpuledger_namespace_quota_limit", "What ResourceQuotas allow of GPUs", labels=labels)
        text = "What the namespace's pods have of that, holds included"
        used = GaugeMetricFamily("gpuledger_namespace_quota_used", text, labels=labels)
        for namespace in sorted(quotas.limited()):
            for each in quotas.limits(namespace):
                limit.add_metric([namespace, each.quota, each.key], each.most)
                used.add_metric([namespace, each.quota, each.key], quotas.used(namespace, each))
        yield limit
        yield used

    def _workloads(self) -> Metric:
        text = (
            "Workloads of Kueue that have quota and need the check of cards; waiting: for cards, reserved: these are "
            "kept for it, admitted: its pods may come"
        )
        found = GaugeMetricFamily("gpuledger_queued_workloads", text, labels=["state"])
        for state, number in (self._state.workloads_by_state or dict)().items():
            found.add_metric([state], number)
        return found

    def _who_waits(self) -> Iterator[Metric]:
        members, gangs = self._state.members, 0
        of_gangs = members.refused() if members else []
        if members:
            gangs = sum(1 for _ in members.waiting())
        pods = len(self._waiting) + len(of_gangs)
        yield GaugeMetricFamily("gpuledger_waiting_pods", "Pods that wait for room", value=pods)
        text = "Gangs that wait: fewer of their pods are bound than have to start together"
        yield GaugeMetricFamily("gpuledger_waiting_gangs", text, value=gangs)
        text = (
            "Pods that wait, by the reason that applies to most nodes; "
            "kube-scheduler: it has no node for them by itself"
        )
        by_reason = GaugeMetricFamily("gpuledger_waiting_pods_by_reason", text, labels=["reason"])
        if self._state.pending_by_reason is not None:
            numbers = {**dict.fromkeys(map(str, Reason), 0), **self._state.pending_by_reason()}
            for reason, number in sorted(numbers.items()):
                by_reason.add_metric([reason], number)
        yield by_reason
        text = "Creation time of the pod that has been waiting longest; absent if none waits"
        oldest = GaugeMetricFamily("gpuledger_oldest_waiting_pod_created_timestamp_seconds", text)
        created = [*(pod.rank[1] for pod in self._waiting.in_order()), *(member.since for member in of_gangs)]
        created_s = map(_timestamp_s, created)
        known_s = [each for each in created_s if each is not None]
        if known_s:
            oldest.add_metric([], min(known_s))
        yield oldest


def _timestamp_s(time: str) -> float | None:
    """Return seconds since 1970 of a time in RFC 3339, None for any other text."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
