"""Records of what namespaces held, as the operator writes them, over many days."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from gpuledger.formats.custom_resource.usage import RecordName, new_record, record, record_patch
from gpuledger.model.usage import Held, Line

Json = dict[str, Any]

HOUR_MS = 3_600_000
MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")


def held_hours(hours: float, shares: int = 1, waited_s: int = 30) -> Held:
    """Return half of the memory and all cores of a card for so many hours; of these, an eighth is wasted."""
    amounts = round(hours * HOUR_MS), round(hours * 3600 * 20_480), round(hours * 3600 * 100)
    return Held(*amounts, shares, waited_s, wasted_card_ms=round(hours * HOUR_MS / 8))


def a_record(namespace: str, day: date, lines: Mapping[Line, Held], entered: Mapping[str, str] | None = None) -> Json:
    """Return the GPUUsage of a namespace and a day."""
    created = new_record(RecordName(namespace, day.isoformat()))
    metadata = {**created["metadata"], "uid": f"uid-{namespace}-{day}", "resourceVersion": "7"}
    found = {**created, "metadata": metadata}
    return {**found, "status": record_patch(record(found), lines, entered or {})["status"]}


def many_records(namespaces: Iterable[str], days: Sequence[date], lines: int = 15, seed: int = 1) -> Iterator[Json]:
    """Yield records of namespaces, each with so many lines: models, queues, nodes and owners differ."""
    chance = random.Random(seed)  # noqa: S311 - the same records every time
    for place, namespace in enumerate(namespaces):
        for day in days:
            share = {
                Line(
                    day.isoformat(),
                    MODELS[number % 2],
                    f"gpu-node-{chance.randrange(125)}",
                    ("batch", "interactive", "")[number % 3],
                    f"{('Job', 'Deployment')[number % 2]}/{('train', 'chat', 'embed')[number % 3]}-{number}",
                ): held_hours(chance.uniform(0.1, 24) / (1 + place), 1 + number)
                for number in range(lines)
            }
            yield a_record(namespace, day, share)


def days_until(last: date, count: int) -> list[date]:
    """Return so many days, of which this is the last."""
    return [last - timedelta(days=count - 1 - number) for number in range(count)]
