"""Metrics, read from the counters of the workflows when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gpuledger.ledger.book import Ledger
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.adopt import Adopter
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.journal import JournalCounts
from gpuledger.workflows.unlinked_nodes import UnlinkedNodes
from gpuledger.workflows.wake_up import WaitingPods

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
FILTER_SECONDS = (
    *(float(f"{figure}e{power}") for power in (-5, -4, -3, -2) for figure in (1, 1.5, 2, 3, 4, 5, 6, 8)),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Fine steps: while a Filter is answered, everything else waits."""


class Metrics:
    """One registry for the process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        counts: Counts,
        journal: JournalCounts,
        waiting: WaitingPods,
        adopter: Adopter,
        unlinked: UnlinkedNodes,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(ledger, chooser, counts, journal, waiting, adopter, unlinked))
        self.filter_seconds = Histogram(
            "gpuledger_filter_seconds",
            "Time to answer a Filter, from its body to the answer's",
            buckets=FILTER_SECONDS,
            registry=self._registry,
        )
        self.bind_seconds = Histogram(
            "gpuledger_bind_seconds", "Time to answer a Bind", buckets=SECONDS, registry=self._registry
        )
        self.garbage_seconds = Histogram(
            "gpuledger_garbage_seconds",
            "Time in which Python looked for garbage, and nothing else ran",
            buckets=SECONDS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        counts: Counts,
        journal: JournalCounts,
        waiting: WaitingPods,
        adopter: Adopter,
        unlinked: UnlinkedNodes,
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._counts = counts
        self._journal = journal
        self._waiting = waiting
        self._adopter = adopter
        self._unlinked = unlinked

    def collect(self) -> Iterator[Metric]:
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
        for name, text, label, values in (
            ("binds", "Bind requests by outcome", "outcome", counts.binds),
            ("refusals", "Filters without a node, by reason", "reason", counts.refusals),
            ("preemptions", "Preemptions by what has become of them", "outcome", counts.preemptions),
            ("bad_input", "Objects that could not be understood", "kind", counts.bad_input),
        ):
            family = CounterMetricFamily(f"gpuledger_{name}", text, labels=[label])
            for value_of_label, number in sorted(values.items()):
                family.add_metric([value_of_label], number)
            yield family
        cards = list(self._ledger.entries())
        holders = sum(len(card.holders) for card in cards)
        yield GaugeMetricFamily("gpuledger_cards", "Cards in the ledger", value=len(cards))
        yield GaugeMetricFamily("gpuledger_holders", "Shares in the ledger", value=holders)
        yield GaugeMetricFamily("gpuledger_waiting_pods", "Pods that wait for room", value=len(self._waiting))
        text = "Bound pods that lack shares in the ledger, as of the last comparison with full lists"
        yield GaugeMetricFamily("gpuledger_pods_without_shares", text, value=len(self._adopter))
        text = "Nodes whose cards report no links, if the cluster's policy is topology"
        yield GaugeMetricFamily("gpuledger_nodes_without_links", text, value=sum(1 for _ in self._unlinked))
