"""What was held from one day to another: sums over records, over what their cards still list, and over what runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from gpuledger.formats.custom_resource.usage import HELD_AMOUNTS
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.model.usage import MS_PER_HOUR, Held

AMOUNTS: Final = tuple(HELD_AMOUNTS.values())

HOUR_S: Final = 3600

NOT_TOLD_APART: Final = "(others)"
"""What was held under names of which a record had too many."""

WAYS: Final[dict[str, Callable[[str, Json], str]]] = {
    "namespace": lambda namespace, _: namespace,
    "queue": lambda _, line: str(line.get("queue") or "(no queue)"),
    "model": lambda _, line: str(line.get("model") or ""),
    "owner": lambda namespace, line: f"{namespace}: {line.get('owner') or '(no owner)'}",
    "node": lambda _, line: str(line.get("node") or NOT_TOLD_APART),
    "day": lambda _, line: str(line["day"]),
}
"""Way to add up -> the name of a row, by namespace and line of a record."""


@dataclass(frozen=True, slots=True)
class Days:
    """Days of UTC."""

    begin: date
    end: date
    """The first day that is not among them."""


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
        }
        return sums if self.cost is None else sums | {"cost": round(self.cost, 2)}


def accounts(
    lines: Iterable[tuple[str, Json]], by: str, days: Days, prices: Prices | None = None
) -> dict[str, Account]:
    """Add up lines of records of namespaces, by a key of WAYS; the rows that are most come first.

    As they are in the objects: there can be hundreds of thousands. Raises BadInput for a model without a price.
    """
    name_of, begin, end = WAYS[by], days.begin.isoformat(), days.end.isoformat()
    rows: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(AMOUNTS))
    card_ms_by_model: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for namespace, line in lines:
        if begin <= line["day"] < end:
            name = name_of(namespace, line)
            row = rows[name]
            for place, amount in enumerate(AMOUNTS):
                row[place] += line.get(amount, 0)
            if prices is not None:
                card_ms_by_model[name][line.get("model", "")] += line.get("cardMilliseconds", 0)
    found = {name: Account(Held(*row), _cost(card_ms_by_model[name], prices)) for name, row in rows.items()}
    if by == "day":
        return dict(sorted(found.items()))
    return dict(sorted(found.items(), key=lambda item: (-item[1].held.card_ms, item[0])))


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
