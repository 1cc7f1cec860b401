"""Metrics, read from the ledger and from the counters of the workflows at each scrape.

The ledger can be large, and while its text is made no Filter is answered. `chunks` therefore pauses between slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gpuledger.controller.telemetry.card_metrics import CARD_SHEETS, POD_SHEET, Sums
from gpuledger.controller.telemetry.compatible_metrics import COMPATIBLE
from gpuledger.controller.telemetry.compatible_quotas import CompatibleQuotas
from gpuledger.controller.telemetry.loop_lag import LoopLag
from gpuledger.controller.telemetry.metric_sheets import Scrape, Sheet
from gpuledger.controller.telemetry.process_metrics import NumberOf, OperatorState, ProcessMetrics
from gpuledger.ledger.book import Ledger
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.counts import SECONDS, Counts, JournalCounts
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.inventory.nodes_without_topology import NodesWithoutTopology
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.repair.adopt import Adopter

FILTER_SECONDS = (
    *(float(f"{figure}e{power}") for power in (-5, -4, -3, -2) for figure in (1, 1.5, 2, 3, 4, 5, 6, 8)),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Fine steps: while a Filter is answered, everything else waits."""

JOINED_BYTES = 256 * 1024
"""Small families are sent together."""


class Metrics:
    """One registry for the process, and the sheets about cards.

    Only the active operator shows cards, so that nothing is counted twice. `compatibility` names rows of COMPATIBLE.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        counts: Counts,
        journal: JournalCounts,
        waiting: WaitingPods,
        adopter: Adopter,
        unlinked: NodesWithoutTopology,
        *,
        is_active: Callable[[], bool] = lambda: True,
        is_synced: Callable[[], bool] | None = None,
        pending_by_reason: NumberOf | None = None,
        members: Members | None = None,
        workloads_by_state: NumberOf | None = None,
        per_card: bool = True,
        per_pod: bool = True,
        compatibility: Sequence[str] = (),
    ) -> None:
        self._ledger = ledger
        self._is_active = is_active
        self._quotas = CompatibleQuotas(ledger.quotas, compatibility)
        self._sheets: list[Sheet] = [
            *(CARD_SHEETS if per_card else ()),
            *([POD_SHEET] if per_pod else ()),
            *(sheet for name in dict.fromkeys(compatibility) for sheet in COMPATIBLE[name]),
        ]
        state = OperatorState(is_active, is_synced, pending_by_reason, members, workloads_by_state)
        self._registry = CollectorRegistry()
        self._registry.register(ProcessMetrics(ledger, chooser, counts, journal, waiting, adopter, unlinked, state))
        ProcessCollector(registry=self._registry)
        self.filter_seconds = self._histogram(
            "filter_seconds",
            "Time to answer a Filter request, from reading its body to writing the response",
            FILTER_SECONDS,
        )
        self.bind_seconds = self._histogram("bind_seconds", "Time to answer a Bind request", SECONDS)
        self.garbage_seconds = self._histogram(
            "garbage_seconds", "Time for which Python's garbage collector stopped everything else", SECONDS
        )
        self.loop_lag_seconds = self._histogram(
            "event_loop_lag_seconds", "Delay of a timer of the event loop, measured once a second", SECONDS
        )

    async def while_served(self, _application: object) -> AsyncIterator[None]:
        """Measure how late the event loop is, from the server's start to its end: a context as aiohttp wants it."""
        lag = LoopLag(self.loop_lag_seconds.observe)
        lag.start()
        yield
        lag.stop()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, at once: nothing else runs meanwhile."""
        scrape, sums = self._begin()
        for _ in scrape.steps() if scrape else ():
            pass
        return b"".join(self._text(scrape, sums))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the same text in pieces. Others get their turn all the time."""
        scrape, sums = self._begin()
        for _ in scrape.steps() if scrape else ():
            await asyncio.sleep(0)
        for piece in _joined(self._text(scrape, sums)):
            yield piece
            await asyncio.sleep(0)

    def _begin(self) -> tuple[Scrape | None, Sums]:
        sums = Sums()
        if not self._is_active():
            return None, sums
        return Scrape(list(self._ledger.entries()), self._sheets, sums.count), sums

    def _text(self, scrape: Scrape | None, sums: Sums) -> Iterator[bytes]:
        yield generate_latest(self._registry)
        if scrape is not None:
            registry = CollectorRegistry()
            registry.register(_Once(sums))
            registry.register(self._quotas)
            yield generate_latest(registry)
            yield from scrape.text()

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"gpuledger_{name}", text, buckets=buckets, registry=self._registry)


class _Once(Collector):
    """Sums of one look at the cards."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    def collect(self) -> Iterator[Metric]:
        return self._sums.collect()


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces, small ones together."""
    waiting: list[bytes] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(map(len, waiting)) >= JOINED_BYTES:
            yield b"".join(waiting)
            waiting = []
    if waiting:
        yield b"".join(waiting)
