"""The operator's metrics, read from the ledger and the workflows' counters at each scrape, and measures of the process.

The ledger can be large, and while its text is made no Filter is answered. `chunks` therefore pauses between slices. One
text serves all clients that ask at the same time, and only few are served at once.

The loop's lag is how long anything waits for the event loop: a Filter, or an object from a watch.

Garbage is collected at chosen moments, and not in the middle of a Filter. The ledger of 5,000 nodes is some 600,000
objects that live long. A full collection looks at each of them, which takes a third of a second, and Python begins one
whenever it thinks that enough is new. So after each comparison with full lists, itself a pause in which little depends
on the operator, what is left is taken out of later collections. Objects are still freed when nothing refers to them;
cycles among those that were there by then wait until, now and then, all is searched.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

import gpuledger
from gpuledger.controller.telemetry.card_metrics import CARD_SHEETS, POD_SHEET, Scrape, Sheet, Sums
from gpuledger.controller.telemetry.compatible import COMPATIBLE, CompatibleQuotas
from gpuledger.controller.telemetry.usage_metrics import Shown, UsageTime
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.budgets import Spending
from gpuledger.ledger.quotas import stated
from gpuledger.model.errors import Reason
from gpuledger.model.failure import FaultClass
from gpuledger.model.share import part_of_card
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.accounts import Today
from gpuledger.workflows.audit_runs import AuditRuns
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.idle_shares import IdleShare
from gpuledger.workflows.inventory import NodesWithoutTopology
from gpuledger.workflows.pending.pod_condition import WaitingReport
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.repair import Adopter
from gpuledger.workflows.reporting import SECONDS, Counts, JournalCounts

NumberOf = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The parts that are measured, and what else is asked for at each scrape. None: unknown."""

    ledger: Ledger
    chooser: Chooser
    counts: Counts
    journal: JournalCounts
    waiting: WaitingPods
    adopter: Adopter
    unlinked: NodesWithoutTopology
    is_active: Callable[[], bool] = lambda: True
    is_synced: Callable[[], bool] | None = None
    pending: Callable[[], Iterable[WaitingReport]] = tuple
    """The pods that wait."""
    audits: AuditRuns = field(default_factory=AuditRuns)
    members: Members | None = None
    """The members of all gangs."""
    workloads_by_state: NumberOf | None = None
    """How far a workload of Kueue is -> how many are."""
    nodes_asked_for: Callable[[], Mapping[str, tuple[int, int]]] | None = None
    """Template of nodes -> how many are wanted, and how many stand-ins there are."""
    today: Callable[[], Today | None] = lambda: None
    """Returns what has been held today and is in records."""
    budgets: Callable[[], Iterable[tuple[str, Spending]]] = tuple
    """Returns namespaces with what is spent of their budgets."""
    idle: Callable[[], Iterable[IdleShare]] = tuple
    """Returns the shares that are idle now."""
    cards_held: Callable[[], int] = lambda: 0
    """How many cards have failed whose pods stay, as too many have failed at once."""


class ProcessMetrics(Collector):
    """One sample for each, or for each value of one label."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        """Yield all of them."""
        yield from self._counters()
        yield from self._gauges()
        yield from self._who_waits()
        yield from self._failures()
        yield from self._quotas()
        yield from self._budgets()
        yield from self._idle()
        yield self._workloads()
        yield from self._growth()
        yield from self._audits()

    def _counters(self) -> Iterator[Metric]:
        for family in (*self._measured.counts.registry.collect(), *self._measured.journal.registry.collect()):
            if family.type == "counter":  # without a sample for each that says when it was made
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        text = "Comparisons of a node with a kind of request"
        yield CounterMetricFamily("gpuledger_shape_evaluations", text, value=self._measured.chooser.evaluations)

    def _gauges(self) -> Iterator[Metric]:
        measured, cards = self._measured, list(self._measured.ledger.entries())
        holders = sum(len(card.holders) for card in cards)
        yield GaugeMetricFamily("gpuledger_cards", "Cards in the ledger", value=len(cards))
        yield GaugeMetricFamily("gpuledger_holders", "Shares in the ledger", value=holders)
        text = "Bound pods that lack shares in the ledger, as of the last comparison with full lists"
        yield GaugeMetricFamily("gpuledger_pods_without_shares", text, value=len(measured.adopter))
        text = "Nodes whose cards report no links, if the cluster's policy is topology"
        yield GaugeMetricFamily("gpuledger_nodes_without_links", text, value=sum(1 for _ in measured.unlinked))
        text = "Whether this operator writes: its kube-scheduler holds the Lease"
        yield GaugeMetricFamily("gpuledger_leader", text, value=int(measured.is_active()))
        synced = GaugeMetricFamily("gpuledger_ready", "Whether the operator has read the ledger and answers")
        if measured.is_synced is not None:
            synced.add_metric([], int(measured.is_synced()))
        yield synced
        info = GaugeMetricFamily("gpuledger_build_info", "1, with the operator's version", labels=["version"])
        info.add_metric([gpuledger.__version__], 1)
        yield info

    def _failures(self) -> Iterator[Metric]:
        failed = Counter(each.card.failure.fault_class for each in self._measured.ledger.entries() if each.card.failure)
        text = "Cards that are out of service by a fault of which their node says the class"
        found = GaugeMetricFamily("gpuledger_failed_cards", text, labels=["fault_class"])
        for fault_class in FaultClass:
            found.add_metric([fault_class], failed[fault_class])
        yield found
        text = "Cards that have failed whose pods are not evicted, as too many have failed at once"
        yield GaugeMetricFamily("gpuledger_failed_cards_held", text, value=self._measured.cards_held())

    def _quotas(self) -> Iterator[Metric]:
        labels, quotas = ["namespace", "quota", "key"], self._measured.ledger.quotas
        limit = GaugeMetricFamily("gpuledger_namespace_quota_limit", "What ResourceQuotas allow of GPUs", labels=labels)
        text = "What the namespace's pods have of that, holds included"
        used = GaugeMetricFamily("gpuledger_namespace_quota_used", text, labels=labels)
        for namespace in sorted(quotas.limited()):
            for each in stated(quotas.limits(namespace)):
                limit.add_metric([namespace, each.quota, each.key], each.most)
                used.add_metric([namespace, each.quota, each.key], quotas.used(namespace, each))
        yield limit
        yield used

    def _budgets(self) -> Iterator[Metric]:
        labels = ["namespace", "quota", "key"]
        text = "Time of cards that a budget has for each of its periods"
        most = GaugeMetricFamily("gpuledger_namespace_budget_card_seconds", text, labels=labels)
        text = "Time of cards of a budget that is spent since its period began"
        spent = GaugeMetricFamily("gpuledger_namespace_budget_spent_card_seconds", text, labels=labels)
        for namespace, each in self._measured.budgets():
            most.add_metric([namespace, each.budget.quota, each.budget.key], each.most_ms / 1000)
            spent.add_metric([namespace, each.budget.quota, each.budget.key], each.spent_ms / 1000)
        yield most
        yield spent

    def _idle(self) -> Iterator[Metric]:
        cards: defaultdict[str, float] = defaultdict(float)
        for each in self._measured.idle():
            cards[each.holder.pod.namespace] += part_of_card(each.holder.share, each.card)
        text = "Cards that a namespace's pods hold and do not use, its shares as parts of a card"
        found = GaugeMetricFamily("gpuledger_namespace_idle_cards", text, labels=["namespace"])
        for namespace, amount in sorted(cards.items()):
            found.add_metric([namespace], amount)
        yield found

    def _workloads(self) -> Metric:
        text = (
            "Workloads of Kueue that have quota and need the check of cards; waiting: for cards, reserved: these are "
            "kept for it, admitted: its pods may come"
        )
        found = GaugeMetricFamily("gpuledger_queued_workloads", text, labels=["state"])
        for state, number in (self._measured.workloads_by_state or dict)().items():
            found.add_metric([state], number)
        return found

    def _growth(self) -> Iterator[Metric]:
        text = "Nodes of a template that are wanted for pods that wait"
        wanted = GaugeMetricFamily("gpuledger_nodes_wanted", text, labels=["template"])
        text = "Pods by which an autoscaler is asked for nodes of a template"
        stand_ins = GaugeMetricFamily("gpuledger_stand_ins", text, labels=["template"])
        for template, (nodes, pods) in (self._measured.nodes_asked_for or dict)().items():
            wanted.add_metric([template], nodes)
            stand_ins.add_metric([template], pods)
        yield wanted
        yield stand_ins

    def _audits(self) -> Iterator[Metric]:
        audits, last = self._measured.audits, self._measured.audits.last()
        text = "When a regular audit has compared the ledger last; 0: each of them failed, absent: none has run"
        compared = GaugeMetricFamily("gpuledger_audit_timestamp_seconds", text)
        if audits:
            compared.add_metric([], last.ended_s if last else 0)
        yield compared
        text = "Whether that audit has found differences"
        differs = GaugeMetricFamily("gpuledger_audit_differs", text)
        if last:
            differs.add_metric([], int(bool(last.differs)))
        yield differs

    def _who_waits(self) -> Iterator[Metric]:
        measured, members, gangs = self._measured, self._measured.members, 0
        pods = len(measured.waiting)
        if members:
            gangs, pods = sum(1 for _ in members.waiting()), pods + len(members.refused())
        yield GaugeMetricFamily("gpuledger_waiting_pods", "Pods that wait for room", value=pods)
        text = "Gangs that wait: fewer of their pods are bound than have to start together"
        yield GaugeMetricFamily("gpuledger_waiting_gangs", text, value=gangs)
        text = (
            "Pods that wait, by the reason that applies to most nodes; "
            "kube-scheduler: it has no node for them by itself"
        )
        by_reason = GaugeMetricFamily("gpuledger_waiting_pods_by_reason", text, labels=["reason"])
        text = (
            "Creation time of the pod that has been waiting longest, by the reason of the nodes that could take it; "
            "its own, such as not-wanted, where none can"
        )
        oldest = GaugeMetricFamily("gpuledger_oldest_waiting_pod_created_timestamp_seconds", text, labels=["reason"])
        numbers, first_s = Counter(dict.fromkeys(map(str, Reason), 0)), dict[str, float]()
        for report in measured.pending():
            numbers[report.main_reason] += 1
            created_s, nearest = _timestamp_s(report.created), report.nearest_reason
            if created_s is not None:
                first_s[nearest] = min(created_s, first_s.get(nearest, created_s))
        for reason, number in sorted(numbers.items()):
            by_reason.add_metric([reason], number)
        for reason, created_s in sorted(first_s.items()):
            oldest.add_metric([reason], created_s)
        yield by_reason
        yield oldest


def _timestamp_s(time: str) -> float | None:
    """Return seconds since 1970 of a time in RFC 3339, None for any other text."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None


INTERVAL_S = 1.0


class LoopLag:
    """Looks once a second by how much a timer comes late. Nothing is sent or written."""

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe  # is called with seconds
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Measure from now on, in the running loop."""
        self._next(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + INTERVAL_S
        self._timer = loop.call_at(self._due_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._observe(max(0.0, loop.time() - self._due_s))
        self._next(loop)


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
        self, measured: Measured, *, per_card: bool = True, per_pod: bool = True, compatibility: Sequence[str] = ()
    ) -> None:
        self._measured = measured
        self._quotas = CompatibleQuotas(measured.ledger.quotas, compatibility)
        self._shown = Shown()
        self._sheets: list[Sheet] = [
            *(CARD_SHEETS if per_card else ()),
            *([POD_SHEET] if per_pod else ()),
            *(sheet for name in dict.fromkeys(compatibility) for sheet in COMPATIBLE[name]),
        ]
        self._registry = CollectorRegistry()
        self._registry.register(ProcessMetrics(measured))
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
        sums = Sums(UsageTime(self._measured.today(), self._shown))
        if not self._measured.is_active():
            return None, sums
        return Scrape(list(self._measured.ledger.entries()), self._sheets, sums.count), sums

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


MOST_READERS = 8
"""How many readers are served at a time; each keeps a text in memory, which for 1,000 nodes of 8 cards has 30 MB."""

READER_S = 30.0
"""How long one may take to read it: three times Prometheus' own default."""


class Scrapes:
    """Answers requests for metrics."""

    def __init__(self, pieces: Callable[[], AsyncIterator[bytes]], content_type: str) -> None:
        self._pieces = pieces
        self._content_type = content_type
        self._readers = 0
        self._made: asyncio.Task[list[bytes]] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Write the text in pieces: other tasks run while it is made and sent."""
        if self._readers >= MOST_READERS:
            text = f"{MOST_READERS} other requests are reading the metrics: retry later\n"
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=text)
        self._readers += 1
        response = web.StreamResponse(headers={"Content-Type": self._content_type})
        try:
            async with asyncio.timeout(READER_S):
                pieces = await self._text()
                await response.prepare(request)
                for piece in pieces:
                    await response.write(piece)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._readers -= 1
        return response

    async def _text(self) -> list[bytes]:
        if self._made is None:
            self._made = asyncio.create_task(self._make(), name="make the text of the metrics")
        return await asyncio.shield(self._made)

    async def _make(self) -> list[bytes]:
        try:
            return [piece async for piece in self._pieces()]
        finally:
            self._made = None


YOUNG_OBJECTS = 2_000
"""New objects after which the young ones are looked at, for about a millisecond; as usual, that is after 700."""

STARTING_OBJECTS = 50_000
"""The same until the first comparison: nearly all that comes by then stays, and each look would find that again."""

ALL_EVERY = 50
"""Comparisons after which everything is looked at once."""


class GcTuning:
    """Collects and measures. `pause` is called with the seconds of each collection, whatever has begun it."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._begin_s = 0.0
        self._settled = 0  # times

    def start(self) -> None:
        """Measure from now on; look at young objects less often, and seldom before all has been read once."""
        gc.callbacks.append(self._measure)
        gc.freeze()  # the program itself stays
        gc.set_threshold(STARTING_OBJECTS, *gc.get_threshold()[1:])

    def settle(self) -> None:
        """Collect what is new since the last time, and leave out the rest; every so often, look at that, too."""
        self._settled += 1
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        if self._settled % ALL_EVERY == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        _give_back()

    def _measure(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begin_s = time.perf_counter()
        else:
            self._pause(time.perf_counter() - self._begin_s)


def _give_back() -> None:
    """Have the C library give memory back that lists of thousands of objects have left; others have no such call."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
