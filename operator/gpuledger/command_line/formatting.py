"""Amounts and times as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from gpuledger.model.card import Amounts
from gpuledger.model.json_object import Json

AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
"""Seconds -> the unit of that many."""


def share_text(amounts: Amounts, exclusive: bool) -> str:
    """Spell a share: "8000 MiB, 20 % cores", and whether it is alone on its card."""
    slots = f", {amounts.number} slots" if amounts.number != 1 else ""
    return f"{amounts.memory_mib} MiB, {amounts.cores} % cores{slots}" + (", alone on the card" if exclusive else "")


def amounts_of(found: Json) -> Amounts:
    """Return the amounts of an object that spells them as a GPUAllocation does."""
    return Amounts(found.get("memoryMiB", 0), found.get("cores", 0), found.get("number", 0))


def age(then: str | None, now: datetime) -> str:
    """Return how long ago a time was, in its largest unit: "3 min"; "never" for None."""
    if then is None:
        return "never"
    seconds = max(0, int((now - datetime.fromisoformat(then)).total_seconds()))
    size, unit = next((each for each in AGES if seconds >= each[0]), AGES[-1])
    return f"{seconds // size} {unit}"


def clock(then: str, now: datetime) -> str:
    """Return a time in this machine's zone: of today without the date."""
    at, here = datetime.fromisoformat(then).astimezone(now.tzinfo), now
    return f"{at:%H:%M:%S}" if at.date() == here.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def plural(count: int, noun: str) -> str:
    """Return "1 card" or "2 cards"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def in_reading_order(name: str) -> list[tuple[int, str]]:
    """Sort key: node-2 comes before node-10, and card node-2/9 before node-2/10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
