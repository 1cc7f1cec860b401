"""Gauges of cards and shares for Prometheus, from the facts of their reports, in base units.

Memory is in bytes. Cores are a ratio of one card: 1 is all of its compute, and a card that lends its cores twice has 2.
Slots are a number. Amounts are what the ledger stores, as `kubectl get gpua` shows them: holds are not in them.

A thousand nodes with eight cards have some 180,000 samples. The client library takes seconds to write them, in which no
Filter would be answered. So they are written here, a few cards at a time: what is in one slice was true at one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from gpuledger.controller.telemetry.usage_metrics import UsageTime
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Amounts, CardPhase, Outage
from gpuledger.reports.cards import CardReport, report_of

SLICE_CARDS = 20
"""Cards that are looked at without a pause: some 2 ms with all metrics there are."""

Row = tuple[tuple[str, ...], tuple[float, ...]]
"""Values of a sheet's labels, and one number for each of its families."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Gauges that have their labels in common. No two rows of all cards may have the same values of the labels."""

    labels: tuple[str, ...]
    families: tuple[tuple[str, str], ...]
    """Name and help of each gauge."""
    rows: Callable[[CardReport], Iterable[Row]]
    """Returns what a card adds to the sheet."""


class Scrape:
    """One look at all cards. Run through `steps`, with pauses between them; then take the `text`."""

    def __init__(
        self, entries: Sequence[CardEntry], sheets: Sequence[Sheet], count: Callable[[CardReport], None]
    ) -> None:
        self._entries = entries
        self._sheets = sheets
        self._count = count  # is called with the report of each card
        self._written: list[list[list[str]]] = [[[] for _ in sheet.families] for sheet in sheets]
        self._templates = [",".join(f'{label}="%s"' for label in sheet.labels) for sheet in sheets]

    def steps(self) -> Iterator[None]:
        """Look at the cards, a slice in each step."""
        for begin in range(0, len(self._entries), SLICE_CARDS):
            reports = [report_of(entry) for entry in self._entries[begin : begin + SLICE_CARDS]]
            for report in reports:
                self._count(report)
            for sheet, template, written in zip(self._sheets, self._templates, self._written, strict=True):
                _write(sheet, template, reports, written)
            yield

    def text(self) -> Iterator[bytes]:
        """Yield all families, each whole, as the format wants it."""
        for sheet, written in zip(self._sheets, self._written, strict=True):
            for (name, text), slices in zip(sheet.families, written, strict=True):
                yield f"# HELP {name} {text}\n# TYPE {name} gauge\n{''.join(slices)}".encode()


def _write(sheet: Sheet, template: str, reports: Iterable[CardReport], written: Sequence[list[str]]) -> None:
    lines: list[list[str]] = [[] for _ in sheet.families]
    names = [name for name, _ in sheet.families]
    for report in reports:
        for values, numbers in sheet.rows(report):
            labels = template % _escaped(values)
            for name, number, of_family in zip(names, numbers, lines, strict=True):
                of_family.append(f"{name}{{{labels}}} {number}\n")
    for slices, of_family in zip(written, lines, strict=True):
        slices.append("".join(of_family))


def _escaped(values: tuple[str, ...]) -> tuple[str, ...]:
    together = "".join(values)
    if "\\" in together or '"' in together or "\n" in together:
        return tuple(value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in values)
    return values


MIB = 2**20

CARD_LABELS = ("node", "uuid", "index", "model")

AMOUNTS = (
    ("memory_{}_bytes", "Memory"),
    ("cores_{}_ratio", "Cores, as a ratio of one card's,"),
    ("slots_{}", "Slots"),
)
"""Name and beginning of the help for what `in_base_units` returns."""


def in_base_units(amounts: Amounts) -> tuple[int, float, int]:
    """Return memory in bytes, cores as a ratio of one card's, and slots."""
    return amounts.memory_mib * MIB, amounts.cores / 100, amounts.number


def _cards(report: CardReport) -> Iterable[Row]:
    card = report.card
    numbers = (len(report.holders), int(report.alone), report.claims, report.conflicts)
    yield _labels(report), (*in_base_units(card.capacity), *in_base_units(report.used), *numbers)


def _phases(report: CardReport) -> Iterable[Row]:
    yield (*_labels(report), report.phase), (1,)


def _facts(report: CardReport) -> Iterable[Row]:
    card = report.card
    numa_node = "" if card.numa_node is None else str(card.numa_node)
    yield (*_labels(report), card.vendor, card.mode, numa_node), (1,)


def _shares(report: CardReport) -> Iterable[Row]:
    uuid, node_name = report.card.uuid, report.card.node_name
    for holder in report.holders:
        pod = holder.pod
        yield (pod.namespace, pod.name, pod.uid, node_name, uuid), in_base_units(holder.share.amounts)


def _labels(report: CardReport) -> tuple[str, str, str, str]:
    card = report.card
    return card.node_name, card.uuid, str(card.index), card.model


CARD_SHEETS = (
    Sheet(
        CARD_LABELS,
        (
            *((f"gpuledger_card_{name.format('capacity')}", f"{what} of a card") for name, what in AMOUNTS),
            *((f"gpuledger_card_{name.format('used')}", f"{what} that pods hold of a card") for name, what in AMOUNTS),
            ("gpuledger_card_holders", "Pods that hold shares of a card"),
            ("gpuledger_card_exclusive", "Whether a pod has the card alone"),
            ("gpuledger_card_claims", "Pods that wait for others to leave a card"),
            ("gpuledger_card_conflicts", "Shares found on a card that has no room for them"),
        ),
        _cards,
    ),
    Sheet((*CARD_LABELS, "phase"), (("gpuledger_card_phase", "1 for the phase that a card is in"),), _phases),
    Sheet(
        (*CARD_LABELS, "vendor", "mode", "numa_node"),
        (("gpuledger_card_info", "1 for each card, with its properties as labels"),),
        _facts,
    ),
)
"""At most one sample of each for a card."""

POD_SHEET = Sheet(
    ("namespace", "pod", "pod_uid", "node", "uuid"),
    (
        ("gpuledger_pod_memory_bytes", "Memory that a pod holds of a card"),
        ("gpuledger_pod_cores_ratio", "Cores that a pod holds of a card, as a ratio of the card's"),
        ("gpuledger_pod_slots", "Slots that a pod holds of a card"),
    ),
    _shares,
)
"""One sample of each for a holder. The UID keeps apart a pod that is being released and its successor."""


CAUSES = {outage.value: outage.name.lower().replace("_", "-") for outage in Outage}
"""Why a card is Unavailable, in its status -> in a metric."""

KUBELET = "kubelet"
"""The same where its node's kubelet starts no pods: the status names one."""


class Sums:
    """The sums over all cards: by model, by namespace, by phase; by node, of those that take no pods."""

    def __init__(self, usage: UsageTime) -> None:
        self._usage = usage
        self._capacity: dict[str, list[int]] = {}  # model -> memory in MiB, cores in percent, slots
        self._used: dict[str, list[int]] = {}  # the same of what is taken
        self._held: dict[str, list[int]] = {}  # namespace -> the same of what its pods hold
        self._phases: Counter[str] = Counter({phase.value: 0 for phase in CardPhase})  # phase -> cards in it
        self._closed: Counter[tuple[str, str, str]] = Counter()  # node, phase, cause -> cards that take no pods
        self._cordoned: dict[str, float] = {}  # node name -> when a card of it was cordoned first, in Unix seconds
        self._conflicts = 0
        self._over = 0  # cards on which more is held than they have

    def count(self, report: CardReport) -> None:
        """Add a card."""
        capacity, used = report.card.capacity, report.used
        self._phases[report.phase] += 1
        if report.phase != CardPhase.READY:
            cause = CAUSES.get(report.reason, KUBELET) if report.phase == CardPhase.UNAVAILABLE else ""
            self._closed[report.card.node_name, report.phase, cause] += 1
        if report.cordoned_s is not None:
            first_s = self._cordoned.get(report.card.node_name, report.cordoned_s)
            self._cordoned[report.card.node_name] = min(first_s, report.cordoned_s)
        self._conflicts += report.conflicts
        self._over += not used.fits_in(capacity)
        _add(self._capacity, report.card.model, capacity)
        _add(self._used, report.card.model, used)
        for holder in report.holders:
            _add(self._held, holder.pod.namespace, holder.share.amounts)
        self._usage.count(report)

    def collect(self) -> Iterator[Metric]:
        """Yield the sums as metrics."""
        phases = GaugeMetricFamily("gpuledger_cards_in_phase", "Cards, by phase", labels=["phase"])
        for phase, number in sorted(self._phases.items()):
            phases.add_metric([phase], number)
        yield phases
        text = "Cards of a node that take no new pods, by phase; for Unavailable with the cause"
        closed = GaugeMetricFamily("gpuledger_node_cards_in_phase", text, labels=["node", "phase", "cause"])
        for labels, number in sorted(self._closed.items()):
            closed.add_metric(labels, number)
        yield closed
        text = "When a card of a node was cordoned, of several the first, by the marks that say when"
        cordoned = GaugeMetricFamily("gpuledger_node_cordoned_timestamp_seconds", text, labels=["node"])
        for node_name, first_s in sorted(self._cordoned.items()):
            cordoned.add_metric([node_name], first_s)
        yield cordoned
        text = "Cards of which pods hold more than the card has"
        yield GaugeMetricFamily("gpuledger_cards_over_capacity", text, value=self._over)
        text = "Shares found on cards that have no room for them"
        yield GaugeMetricFamily("gpuledger_conflicts", text, value=self._conflicts)
        yield from _families("gpuledger_model_{}", "capacity", "of all cards of a model", "model", self._capacity)
        yield from _families("gpuledger_model_{}", "used", "that pods hold of a model's cards", "model", self._used)
        yield from _families("gpuledger_namespace_{}", "used", "that a namespace's pods hold", "namespace", self._held)
        yield from self._usage.collect()


def _add(sums: dict[str, list[int]], key: str, amounts: Amounts) -> None:
    sum_of = sums.setdefault(key, [0, 0, 0])
    sum_of[0] += amounts.memory_mib
    sum_of[1] += amounts.cores
    sum_of[2] += amounts.number


def _families(pattern: str, kind: str, text: str, label: str, sums: dict[str, list[int]]) -> Iterator[Metric]:
    for position, (name, what) in enumerate(AMOUNTS):
        family = GaugeMetricFamily(pattern.format(name.format(kind)), f"{what} {text}", labels=[label])
        for key, sum_of in sorted(sums.items()):
            family.add_metric([key], in_base_units(Amounts(*sum_of))[position])
        yield family
