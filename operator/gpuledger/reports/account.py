"""What was held from one day to another: sums over records, over what their cards still list, and over what runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.usage import Held, Line, total_of

HOUR_MS: Final = 3_600_000
HOUR_S: Final = 3600

NOT_TOLD_APART: Final = "(others)"
"""What was held under names of which a record had too many."""

WAYS: Final[dict[str, Callable[[str, Line], str]]] = {
    "namespace": lambda namespace, _: namespace,
    "queue": lambda _, line: line.queue or "(no queue)",
    "model": lambda _, line: line.model,
    "owner": lambda namespace, line: f"{namespace}: {line.owner or '(no owner)'}",
    "node": lambda _, line: line.node or NOT_TOLD_APART,
    "day": lambda _, line: line.day,
}
"""Way to add up -> the name of a row, by namespace and line."""


@dataclass(frozen=True, slots=True)
class Days:
    """Days of UTC."""

    begin: date
    end: date
    """The first day that is not among them."""

    def __contains__(self, day: str) -> bool:
        return self.begin.isoformat() <= day < self.end.isoformat()


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
            "cardHours": round(held.card_ms / HOUR_MS, 3),
            "memoryGiBHours": round(held.memory_mib_s / 1024 / HOUR_S, 3),
            "coreHours": round(held.core_percent_s / 100 / HOUR_S, 3),
            "shares": held.shares,
            "waitedHours": round(held.waited_s / HOUR_S, 3),
        }
        return sums if self.cost is None else sums | {"cost": round(self.cost, 2)}


def accounts(
    lines: Iterable[tuple[str, Line, Held]], by: str, days: Days, prices: Prices | None = None
) -> dict[str, Account]:
    """Add up lines of namespaces, by a key of WAYS; the rows that are most come first.

    Raises BadInput for a model without a price.
    """
    rows: defaultdict[str, dict[Line, Held]] = defaultdict(dict)
    for namespace, line, held in lines:
        if line.day in days:
            row, model = rows[WAYS[by](namespace, line)], Line("", line.model)
            row[model] = row.get(model, Held()) + held
    found = {name: Account(total_of(row), _cost(row, prices)) for name, row in rows.items()}
    if by == "day":
        return dict(sorted(found.items()))
    return dict(sorted(found.items(), key=lambda item: (-item[1].held.card_ms, item[0])))


def _cost(row: Mapping[Line, Held], prices: Prices | None) -> float | None:
    if prices is None:
        return None
    unknown = sorted({line.model for line in row} - prices.keys())
    if unknown:
        raise BadInput(f"there is no price of {', '.join(map(repr, unknown))}")
    return sum(prices[line.model] * held.card_ms / HOUR_MS for line, held in row.items())


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
