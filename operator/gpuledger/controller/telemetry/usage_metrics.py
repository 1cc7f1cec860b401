"""The time of cards that namespaces have held today, as a counter that agrees with the records.

It begins anew with each day of UTC, as a counter does that was reset, and goes on over restarts: what has ended is in
the records of the day, or on its card's list, and what runs says since when. It is `LAG_S` behind. So it never goes
back where a share has ended a moment before it was looked at: Prometheus would take that for a reset, and count twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, time, timedelta
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuledger.model.share import part_of_card
from gpuledger.model.usage import MILLION
from gpuledger.reports.cards import CardReport
from gpuledger.workflows.accounts import Today

LAG_S: Final = 10.0
"""Longer than a write of a card takes: the time at which a share ends is that of the write which takes it off."""

MOST_QUEUES: Final = 20
"""Of a namespace. Users write queues as labels of their pods; what more there are count without one."""

Key = tuple[str, str, str]
"""Namespace, queue, model."""


class Shown:
    """What was shown last of a day, which is never more than what comes."""

    def __init__(self) -> None:
        self._date = ""
        self._seconds: dict[Key, float] = {}

    def show(self, date: str, seconds: Mapping[Key, float]) -> Mapping[Key, float]:
        """Return what is to be shown now."""
        if date != self._date:
            self._date, self._seconds = date, {}
        for key, value in seconds.items():
            self._seconds[key] = max(value, self._seconds.get(key, 0.0))
        return self._seconds


class UsageTime(Collector):
    """Looks at one card after the other, and adds up."""

    def __init__(self, today: Today | None, shown: Shown) -> None:
        """Take the account of today; None: it is not known, and nothing is shown."""
        self._today, self._shown = today, shown
        self._sums: defaultdict[Key, float] = defaultdict(float)
        if today is not None:
            self._begin = datetime.combine(today.now.date(), time(), today.now.tzinfo)
            self._until = today.now - timedelta(seconds=LAG_S)
            for (namespace, queue, model), card_ms in today.card_ms.items():
                self._sums[self._key(namespace, queue, model)] += card_ms / 1000

    def count(self, report: CardReport) -> None:
        """Add the shares of a card that are in no record: those that run, and those that it lists as ended."""
        if self._today is None:
            return
        model = report.card.model
        for holder in report.holders:
            if holder.since:
                key = self._key(holder.pod.namespace, holder.pod.charge.queue, model)
                since = datetime.fromisoformat(holder.since)
                self._sums[key] += self._seconds(since, self._until) * part_of_card(holder.share, report.card)
        for ended in report.ended:
            if not self._today.has(ended):
                key = self._key(ended.namespace, ended.charge.queue, model)
                self._sums[key] += self._seconds(ended.since, ended.until) * ended.part / MILLION

    def _seconds(self, since: datetime, until: datetime) -> float:
        return max(0.0, (until - max(self._begin, since)).total_seconds())

    def _key(self, namespace: str, queue: str, model: str) -> Key:
        key = (namespace, queue, model)
        if key in self._sums or not queue:
            return key
        queues = {each[1] for each in self._sums if each[0] == namespace}
        return key if queue in queues or len(queues) < MOST_QUEUES else (namespace, "", model)

    def collect(self) -> Iterator[Metric]:
        """Yield the counter, if its value is known."""
        text = (
            "Time of cards that a namespace's pods have held since the day began (UTC), its shares as parts of a card"
        )
        family = CounterMetricFamily("gpuledger_namespace_card_seconds", text, labels=["namespace", "queue", "model"])
        if self._today is not None:
            for key, seconds in sorted(self._shown.show(self._today.date, self._sums).items()):
                family.add_metric(key, seconds)
        yield family
