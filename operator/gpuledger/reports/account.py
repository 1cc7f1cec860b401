"""What was held from one day to another: sums over records, over what their cards still list, and over what runs.

One implementation for the command, which reads the records itself, and for the operator, which answers the page.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from gpuledger.formats.custom_resource.usage import (
    AMOUNTS,
    DAY,
    HELD_AMOUNTS,
    MODEL,
    NODE,
    OWNER,
    QUEUE,
    row_of,
    rows_of,
)
from gpuledger.ledger.usage import ended_share, lines_of, wasted_ms
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.model.usage import MS_PER_HOUR, EndedShare, Held, Wasted

HOUR_S: Final = 3600

NO_RECORDS: Final = "the cluster has no GPUUsages: its administrator installs the CRD of this release"

NOT_TOLD_APART: Final = "(others)"
"""What was held under names of which a record had too many."""

Values = Sequence[Any]
"""A line of a record: see row_of."""

WAYS: Final[dict[str, Callable[[str, Values], str]]] = {
    "namespace": lambda namespace, _: namespace,
    "queue": lambda _, line: line[QUEUE] or "(no queue)",
    "model": lambda _, line: line[MODEL],
    "owner": lambda namespace, line: f"{namespace}: {line[OWNER] or '(no owner)'}",
    "node": lambda _, line: line[NODE] or NOT_TOLD_APART,
    "day": lambda _, line: line[DAY],
}
"""Way to add up -> the name of a row, by namespace and line of a record."""


DAYS_AGO: Final = re.compile(r"(\d{1,4})d")
MOST_DAYS: Final = 366
USUAL_SINCE: Final = "30d"


@dataclass(frozen=True, slots=True)
class Days:
    """Days of UTC."""

    begin: date
    end: date
    """The first day that is not among them."""

    def until_today(self, today: date) -> list[str]:
        """Return those that have begun, in their order."""
        last = min(self.end, today + timedelta(days=1))
        return [(self.begin + timedelta(days=number)).isoformat() for number in range((last - self.begin).days)]

    def of_records(self, today: date) -> list[str]:
        """Return all days on which a share that was held in these can have ended; one more, for clocks that differ."""
        return Days(self.begin, date.max).until_today(today + timedelta(days=1))


def days_asked(since: str | None, until: str | None, today: date) -> Days:
    """Return the days that are meant; today is counted unless `until` says otherwise. Raises BadInput."""
    ago = DAYS_AGO.fullmatch(since or USUAL_SINCE)
    begin = today - timedelta(days=int(ago[1])) if ago else _day("since", since or "")
    end = _day("until", until) if until else today + timedelta(days=1)
    if begin > today:
        raise BadInput(f"since {begin} is still to come: it is the first day of the report, today at the latest")
    if begin >= end:
        raise BadInput(f"until {end} is the first day that is not counted, so it has to be after {begin}")
    if (today - begin).days > MOST_DAYS:
        raise BadInput(f"since {begin} is more than {MOST_DAYS} days ago")
    return Days(begin, end)


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{name} takes a day, such as 2026-11-01, or for since 30d, not {text[:40]!r}") from None


Prices = Mapping[str, float]
"""Model of a card -> price of an hour of one."""


@dataclass(frozen=True, slots=True)
class Account:
    """The sums of a row."""

    held: Held
    cost: float | None
    """None without prices."""

    def as_json(self) -> Json:
        """Return the sums as JSON: hours, with three digits."""
        held = self.held
        sums = {
            "cardHours": round(held.card_ms / MS_PER_HOUR, 3),
            "memoryGiBHours": round(held.memory_mib_s / 1024 / HOUR_S, 3),
            "coreHours": round(held.core_percent_s / 100 / HOUR_S, 3),
            "shares": held.shares,
            "waitedHours": round(held.waited_s / HOUR_S, 3),
            "idleHours": _hours(held.idle_card_ms),
            "wastedHours": _hours(held.wasted_card_ms),
        }
        return sums if self.cost is None else sums | {"cost": round(self.cost, 2)}


MOST_ROWS: Final = 10_000
MOST_ROWS_OF_NAMESPACE: Final = 1_000
"""Of a bounded report: users choose names of owners and queues, and a row of a year has 3 KiB. Others share a row."""

MANY_LINES: Final = 256

OF_USERS: Final = ("owner", "queue")

LARGEST: Final = 10
"""So many rows are told by day."""


class _Row:
    """The sums of a name."""

    __slots__ = ("_added", "_more", "by_day", "card_ms_of_model")

    def __init__(self, days: int) -> None:
        self._added = [0] * len(HELD_AMOUNTS)
        self._more: list[Sequence[int]] = []
        self.by_day = array("q", bytes(8 * days))
        """Milliseconds of a card."""
        self.card_ms_of_model: Counter[str] = Counter()

    def add(self, amounts: Sequence[int]) -> None:
        """Add what a line has, many lines at once."""
        self._more.append(amounts)
        if len(self._more) == MANY_LINES:
            self.held()

    def held(self) -> Held:
        """Return the sum of all."""
        self._added = list(map(sum, zip(self._added, *self._more, strict=True)))
        self._more.clear()
        return Held(*self._added)


@dataclass(frozen=True, slots=True)
class Question:
    """What a report is to tell."""

    by: str
    """A key of WAYS."""
    days: Days
    namespaces: tuple[str, ...] = ()
    """Of these alone; a name that ends with a star stands for all that begin so. Empty: of all."""

    def admits(self, namespace: str) -> bool:
        """Return whether what a namespace held is asked for."""
        return not self.namespaces or any(_is_named(namespace, name) for name in self.namespaces)

    @property
    def only(self) -> tuple[str, ...]:
        """Return the namespaces that are asked for, by their whole names; empty if others may be among them."""
        return () if any(name.endswith("*") for name in self.namespaces) else self.namespaces


def _is_named(namespace: str, name: str) -> bool:
    return namespace.startswith(name[:-1]) if name.endswith("*") else namespace == name


class Tally:
    """Adds up what was held. First come all records, and then what cards list: a share may be in both.

    The cards have to be read before the records. What a card had listed by then and is off it, a record names.
    """

    def __init__(self, asked: Question, now: datetime, prices: Prices | None = None, *, bounded: bool = False) -> None:
        """`bounded`: users' names can't make it large."""
        self._asked, self._now, self._prices, self._bounded = asked, now, prices, bounded
        self._name_of = WAYS[asked.by]
        self._of_namespace = asked.by == "namespace" and prices is None  # then all of a record's day is one sum
        self._days = asked.days.until_today(now.astimezone(UTC).date())
        self._place = {day: place for place, day in enumerate(self._days)}
        self._sums = array("q", bytes(8 * len(self._days)))
        self._rows: dict[str, _Row] = {}
        self._names: Counter[str] = Counter()  # namespace -> rows that it was the first to have
        self._entered: set[str] = set()

    def add_record(self, found: Json) -> None:
        """Add a GPUUsage: as it is, since there can be hundreds of thousands of lines. Raises BadInput."""
        namespace, status = found["spec"]["namespace"], found.get("status") or {}
        if not self._asked.admits(namespace):
            return
        self._entered.update([share["key"] for share in status.get("entered") or ()])
        try:
            self.add_lines(namespace, rows_of(status.get("lines") or ""))
        except ValueError as error:
            raise BadInput(f"GPUUsage {found['metadata']['name']} can't be read: {error}") from error

    def add_holders(self, holders: Sequence[Holder], card: Card, wasted: Wasted | None) -> None:
        """Add what the shares of a card have had until now that run; `wasted` is what its object says."""
        so_far_ms = wasted_ms(wasted, holders, card, self._now)
        for holder in holders:
            if self._asked.admits(holder.pod.namespace):
                ended = ended_share(holder, card, self._now, so_far_ms=so_far_ms)
                if ended is not None:
                    self.add_share(ended, card)

    def add_share(self, ended: EndedShare, card: Card) -> None:
        """Add a share that has ended, unless a record has it."""
        if ended.key not in self._entered and self._asked.admits(ended.namespace):
            lines = lines_of(ended, card.model, card.node_name)
            self.add_lines(ended.namespace, (row_of(line, held) for line, held in lines))

    def add_lines(self, namespace: str, lines: Iterable[Values]) -> None:
        """Add lines of a record. Raises ValueError for what is none.

        A report has hundreds of thousands of lines: whole columns are added at once, wherever that can be.
        """
        rows = list(lines)
        columns = list(zip(*rows, strict=True))
        held = [list(map(int, column)) for column in columns[AMOUNTS]]
        if self._of_namespace and rows and len(set(columns[DAY])) == 1:
            self._add(namespace, rows[0], list(map(sum, held)))
            return
        for line, amounts in zip(rows, zip(*held, strict=True), strict=True):
            self._add(namespace, line, amounts)

    def _add(self, namespace: str, line: Values, amounts: Sequence[int]) -> None:
        place = self._place.get(line[DAY])
        if place is None:
            return
        row, card_ms = self._row_of(namespace, self._name_of(namespace, line)), amounts[0]
        row.add(amounts)
        row.by_day[place] += card_ms
        self._sums[place] += card_ms
        if self._prices is not None:
            row.card_ms_of_model[line[MODEL]] += card_ms

    def _row_of(self, namespace: str, name: str) -> _Row:
        row = self._rows.get(name)
        if row is not None:
            return row
        if self._bounded:
            many = self._asked.by in OF_USERS and self._names[namespace] >= MOST_ROWS_OF_NAMESPACE
            if many or len(self._rows) >= MOST_ROWS:
                name = f"{namespace}: {NOT_TOLD_APART}" if self._asked.by == "owner" else NOT_TOLD_APART
            self._names[namespace] += name not in self._rows
        return self._rows.setdefault(name, _Row(len(self._days)))

    def accounts(self) -> dict[str, Account]:
        """Return the rows, those that are most first; days in their order. Raises BadInput for what has no price."""
        found = {
            name: Account(row.held(), _cost(row.card_ms_of_model, self._prices)) for name, row in self._rows.items()
        }
        if self._asked.by == "day":
            return dict(sorted(found.items()))
        return dict(sorted(found.items(), key=lambda item: (-item[1].held.card_ms, item[0])))

    def by_day(self, names: Iterable[str]) -> Iterator[Json]:
        """Yield the card hours of each day on which something was held: all, and of some rows."""
        told = [(name, self._rows[name].by_day) for name in names]
        for place, card_ms in enumerate(self._sums):
            if card_ms:
                rows = {name: _hours(by_day[place]) for name, by_day in told if by_day[place]}
                yield {"day": self._days[place], "cardHours": _hours(card_ms), "rows": rows}

    def report(self, created: Iterable[datetime]) -> Json:
        """Return the report as JSON; `created`: of the cards that are there now. Raises as `accounts`."""
        rows, days, cards = self.accounts(), self._asked.days, list(created)
        largest = list(rows)[:LARGEST] if self._asked.by != "day" else []
        return {
            "since": days.begin.isoformat(),
            "until": days.end.isoformat(),
            "by": self._asked.by,
            "rows": [{"name": name} | row.as_json() for name, row in rows.items()],
            "total": in_all(rows).as_json(),
            "days": list(self.by_day(largest)),
            "cluster": {"cards": len(cards), "cardHours": _hours(existed_ms(cards, days, self._now))},
        }


def _hours(card_ms: int) -> float:
    return round(card_ms / MS_PER_HOUR, 3)


def _cost(card_ms: Mapping[str, int], prices: Prices | None) -> float | None:
    if prices is None:
        return None
    unknown = sorted(card_ms.keys() - prices.keys())
    if unknown:
        raise BadInput(f"there is no price of {', '.join(map(repr, unknown))}")
    return sum(prices[model] * amount / MS_PER_HOUR for model, amount in card_ms.items())


def in_all(rows: Mapping[str, Account]) -> Account:
    """Return the sum of all rows."""
    costs = [row.cost for row in rows.values() if row.cost is not None]
    held = sum((row.held for row in rows.values()), Held())
    return Account(held, sum(costs) if costs or not rows else None)


def existed_ms(created: Iterable[datetime], days: Days, now: datetime) -> int:
    """Return for how long cards that are there now existed in these days, in milliseconds of a card."""
    begin = datetime.combine(days.begin, datetime.min.time(), now.tzinfo)
    end = min(now, datetime.combine(days.end, datetime.min.time(), now.tzinfo))
    return sum(max(timedelta(), end - max(begin, moment)) // timedelta(milliseconds=1) for moment in created)
