"""GPUUsage: the record of what a namespace's pods held on one day of UTC, as the operator reads and writes it.

A share is in the record of the day on which it ended, whole: its lines say on which days it was held. So one write
enters it, and whoever adds up a time looks at the records of all days from its beginning on.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.usage import MS_PER_HOUR, Held, Line, total_of

KIND: Final = "GPUUsage"
PLURAL: Final = "gpuusages"

NAMESPACE_LABEL: Final = "gpuledger.dev/namespace"
DATE_LABEL: Final = "gpuledger.dev/date"


LINE_WORDS: Final = {
    "day": "day",
    "model": "model",
    "node": "node",
    "queue": "queue",
    "owner": "owner",
    "priority_class": "priorityClass",
}
"""Field of a line -> its name in the object."""
HELD_AMOUNTS: Final = {
    "card_ms": "cardMilliseconds",
    "memory_mib_s": "memoryMiBSeconds",
    "core_percent_s": "corePercentSeconds",
    "shares": "shares",
    "waited_s": "waitedSeconds",
    "idle_card_ms": "idleCardMilliseconds",
    "wasted_card_ms": "wastedCardMilliseconds",
}
"""Field of what was held -> its name in the object."""

COLUMNS: Final = (*LINE_WORDS.values(), *HELD_AMOUNTS.values())
"""Of a record's lines, which are CSV: one text costs the API server, etcd and us a fraction of what objects cost."""
DAY, MODEL, NODE, QUEUE, OWNER = range(5)
"""Columns by which reports add up."""
AMOUNTS: Final = slice(len(LINE_WORDS), len(COLUMNS))
"""The columns of what was held, all of them whole numbers."""


@dataclass(frozen=True, slots=True, order=True)
class RecordName:
    """Which record: of a namespace, and of the day on which shares ended."""

    namespace: str
    date: str
    """Of UTC, YYYY-MM-DD."""

    def __str__(self) -> str:
        return f"{self.namespace}.{self.date}"


def record_name(namespace: str, until: datetime) -> RecordName:
    """Return the record that a share is entered in which has ended then."""
    return RecordName(namespace, f"{until:%Y-%m-%d}")


def records_of(dates: Sequence[str], namespaces: Sequence[str] = ()) -> dict[str, str]:
    """Return the parameters that select the records of some days, of all namespaces without a name of one."""
    selector = f"{DATE_LABEL} in ({','.join(dates)})"
    if namespaces:
        selector += f",{NAMESPACE_LABEL} in ({','.join(namespaces)})"
    return {"labelSelector": selector}


def side_by_side(dates: Sequence[str], number: int) -> list[Sequence[str]]:
    """Return days in so many parts of about the same size: for each, the API server can use another core."""
    return [part for part in (dates[first::number] for first in range(number)) if part]


@dataclass(frozen=True, slots=True)
class Record:
    """A record in one version."""

    name: RecordName
    version: int
    lines: Mapping[Line, Held]
    entered: Mapping[str, str]
    """Key of a share that is in it, and may still be listed by its card -> UUID of the card."""


def new_record(name: RecordName) -> Json:
    """Return the object to create. What it says is written into its status."""
    labels = {NAMESPACE_LABEL: name.namespace, DATE_LABEL: name.date}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": str(name), "labels": labels},
        "spec": {"namespace": name.namespace, "date": name.date},
    }


def record(found: JsonMapping) -> Record:
    """Read a record. Raises BadInput for one that another release's definition has let through."""
    try:
        spec, status = found["spec"], found.get("status") or {}
        return Record(
            name=RecordName(spec["namespace"], spec["date"]),
            version=int(found["metadata"]["resourceVersion"]),
            lines=_lines(status.get("lines") or ""),
            entered={each["key"]: each["card"] for each in status.get("entered") or ()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"GPUUsage {(found.get('metadata') or {}).get('name')} can't be read: {error!r}") from error


def _lines(text: str) -> dict[Line, Held]:
    lines: dict[Line, Held] = {}
    for row in rows_of(text):
        line, held = Line(*row[: AMOUNTS.start]), Held(*map(int, row[AMOUNTS]))
        lines[line] = lines.get(line, Held()) + held
    return lines


def rows_of(text: str) -> list[list[str]]:
    """Return a record's lines, each as the values of COLUMNS. Raises ValueError for what is no CSV with a first line.

    Another release may have other columns: what is not known here is left out, and what is not there is empty, or 0.
    """
    lines = text.split("\n")
    try:
        if '"' in text or "\r" in text:
            found = [row for row in csv.reader(lines, strict=True) if row]
        else:  # nearly always, and in half of the time
            found = [line.split(",") for line in lines if line]
    except csv.Error as error:
        raise ValueError(f"lines are no CSV: {error}") from error
    heads, rows = (found[0], found[1:]) if found else ([], [])
    if set(map(len, rows)) - {len(heads)}:
        raise ValueError(f"{len(heads)} values have names, and not all lines have as many")
    if tuple(heads) == COLUMNS:
        return rows
    places = [heads.index(name) if name in heads else None for name in COLUMNS]
    return [_known(row, places) for row in rows]


def _known(row: Sequence[str], places: Sequence[int | None]) -> list[str]:
    missing = ("",) * AMOUNTS.start + ("0",) * (AMOUNTS.stop - AMOUNTS.start)
    return [none if place is None else row[place] for place, none in zip(places, missing, strict=True)]


def record_patch(before: Record, lines: Mapping[Line, Held], entered: Mapping[str, str]) -> Json:
    """Return the merge patch that writes a record's status, if it is still in the version that was read."""
    in_all = total_of(lines)
    status = {
        "cardHours": round(in_all.card_ms / MS_PER_HOUR, 3),
        "shares": in_all.shares,
        "lines": csv_of(lines),
        "entered": [{"key": key, "card": card} for key, card in sorted(entered.items())],
    }
    return {"metadata": {"resourceVersion": str(before.version)}, "status": status}


def csv_of(lines: Mapping[Line, Held]) -> str:
    """Return what was held as `status.lines`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row_of(line, held) for line, held in sorted(lines.items()))
    return text.getvalue()


def row_of(line: Line, held: Held) -> tuple[str | int, ...]:
    """Return what was held as the values of COLUMNS."""
    words = (getattr(line, field) for field in LINE_WORDS)
    return (*words, *(getattr(held, field) for field in HELD_AMOUNTS))
