"""What the operator counts about itself, read when somebody asks: the workflows' counters, and who waits."""

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
from gpuledger.workflows.inventory.unlinked_nodes import UnlinkedNodes
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.repair.adopt import Adopter

NumberOf = Callable[[], Mapping[str, int]]

KNOWN = {
    "refusals": [reason.value for reason in Reason],
    "binds": ["bound", "failed", "late"],
    "preemptions": ["begun", "done", "forbidden", "given-up"],
    "bad_input": ["allocation", "node", "pod", "request"],
    "ledger_write_failures": ["conflict", "error", "not-found", "unreachable"],
}
"""Values of labels that count from 0: Prometheus sees no increase where a sample begins with 1."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is asked for and is not in the workflows' counters. None: nobody knows."""

    is_active: Callable[[], bool]
    is_synced: Callable[[], bool] | None = None
    pending_by_reason: NumberOf | None = None
    """Reason -> pods that wait for it."""
    ledger_failures: NumberOf | None = None
    """Kind of error -> writes of a card's status that failed by it; what a rule refuses is not among them."""


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
        unlinked: UnlinkedNodes,
        told: Told,
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._counts = counts
        self._journal = journal
        self._waiting = waiting
        self._adopter = adopter
        self._unlinked = unlinked
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """Yield all of them."""
        yield from self._counters()
        yield from self._labelled_counters()
        yield from self._gauges()
        yield from self._who_waits()

    def _counters(self) -> Iterator[Metric]:
        counts, journal = self._counts, self._journal
        for name, text, value in (
            ("filters", "Filter requests of the scheduler", counts.filters),
            ("pods_examined", "Events of bound pods that were looked at", counts.pods_examined),
            ("node_events", "Events of nodes", counts.node_events),
            ("nodes_examined", "Events of nodes that changed something for the ledger", counts.nodes_examined),
            ("shape_evaluations", "Comparisons of a node with a shape of request", self._chooser.evaluations),
            ("cards_written", "Cards created, changed or deleted, their status apart", counts.cards_written),
            ("ledger_patches", "Writes of a card's status", journal.patches),
            ("ledger_entries", "Changes that these writes carried", journal.entries),
            ("ledger_refusals", "Writes of a card's status that a rule of the ledger refused", journal.refusals),
            ("releases", "Pods whose shares were given back", counts.releases),
            ("wake_ups", "Patches of waiting pods that made the scheduler try them again", counts.wake_ups),
            ("evictions", "Pods that were evicted for others of higher priority", counts.evictions),
            ("plugin_late", "Pods that HAMi's or Volcano's device plugin had not found in time", counts.plugin_late),
        ):
            yield CounterMetricFamily(f"gpuledger_{name}", text, value=value)

    def _labelled_counters(self) -> Iterator[Metric]:
        counts, failures = self._counts, self._told.ledger_failures
        for name, text, label, values in (
            ("binds", "Bind requests by outcome", "outcome", counts.binds),
            ("refusals", "Filters without a node, by reason", "reason", counts.refusals),
            ("preemptions", "Preemptions by what has become of them", "outcome", counts.preemptions),
            ("bad_input", "Objects that could not be understood", "kind", counts.bad_input),
            (
                "ledger_write_failures",
                "Writes of a card's status that failed, refusals apart; each is tried again",
                "kind",
                failures() if failures else {},
            ),
        ):
            family = CounterMetricFamily(f"gpuledger_{name}", text, labels=[label])
            _add_all(family, {**dict.fromkeys(KNOWN[name], 0), **values})
            yield family

    def _gauges(self) -> Iterator[Metric]:
        told, cards = self._told, list(self._ledger.entries())
        holders = sum(len(card.holders) for card in cards)
        yield GaugeMetricFamily("gpuledger_cards", "Cards in the ledger", value=len(cards))
        yield GaugeMetricFamily("gpuledger_holders", "Shares in the ledger", value=holders)
        text = "Bound pods that lack shares in the ledger, as of the last comparison with full lists"
        yield GaugeMetricFamily("gpuledger_pods_without_shares", text, value=len(self._adopter))
        text = "Nodes whose cards report no links, if the cluster's policy is topology"
        yield GaugeMetricFamily("gpuledger_nodes_without_links", text, value=sum(1 for _ in self._unlinked))
        text = "Whether this operator writes: its kube-scheduler holds the Lease"
        yield GaugeMetricFamily("gpuledger_leader", text, value=int(told.is_active()))
        synced = GaugeMetricFamily("gpuledger_ready", "Whether the operator has read the ledger and answers")
        if told.is_synced is not None:
            synced.add_metric([], int(told.is_synced()))
        yield synced
        info = GaugeMetricFamily("gpuledger_build_info", "1, with the operator's version", labels=["version"])
        info.add_metric([gpuledger.__version__], 1)
        yield info

    def _who_waits(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("gpuledger_waiting_pods", "Pods that wait for room", value=len(self._waiting))
        text = "Pods that wait for room, by the reason that most nodes give"
        by_reason = GaugeMetricFamily("gpuledger_waiting_pods_by_reason", text, labels=["reason"])
        if self._told.pending_by_reason is not None:
            known = dict.fromkeys(KNOWN["refusals"], 0)
            _add_all(by_reason, {**known, **self._told.pending_by_reason()})
        yield by_reason
        text = "When the pod was created that has been waiting longest; missing if none waits"
        oldest = GaugeMetricFamily("gpuledger_oldest_waiting_pod_created_timestamp_seconds", text)
        created_s = [_timestamp_s(pod.rank[1]) for pod in self._waiting.in_order()]
        known_s = [each for each in created_s if each is not None]
        if known_s:
            oldest.add_metric([], min(known_s))
        yield oldest


def _add_all(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, int]) -> None:
    for value, number in sorted(values.items()):
        family.add_metric([value], number)


def _timestamp_s(time: str) -> float | None:
    """Return seconds since 1970 of a time in RFC 3339, None for any other text."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
