"""Adds up the time of shares: by day, and by what reports ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Final

from gpuledger.model.card import Card
from gpuledger.model.share import Holder, part_of_card
from gpuledger.model.usage import MILLION, EndedShare, Held, Line

MOST_LINES: Final = 400
"""Of a record. Users choose names of owners and queues; what comes after that is added up without them."""

MILLISECOND: Final = timedelta(milliseconds=1)


def ended_share(holder: Holder, card: Card, until: datetime, idle_s: int = 0) -> EndedShare | None:
    """Return what a holder had of its card until now; None if its time did not count, or none has passed.

    `idle_s` is for how long it was idle; of that counts no more than the share has lasted.
    """
    since = datetime.fromisoformat(holder.since) if holder.since else None
    if since is None or until <= since:
        return None
    return EndedShare(
        key=f"{holder.attempt}.{holder.pod.uid}",
        namespace=holder.pod.namespace,
        charge=holder.pod.charge,
        since=since,
        until=until,
        part=round(MILLION * part_of_card(holder.share, card)),
        memory_mib=holder.share.amounts.memory_mib,
        cores=holder.share.amounts.cores,
        waited_s=holder.waited_s,
        idle_s=max(0, min(idle_s, int((until - since).total_seconds()))),
    )


def lines_of(ended: EndedShare, model: str, node_name: str) -> Iterator[tuple[Line, Held]]:
    """Yield what a share held, day by day. What was held in all is the sum, to the last millisecond.

    Idle time is told of the whole share, and so each day has the same part of it.
    """
    charge, begin, done, lasted = ended.charge, ended.since, 0, ended.until - ended.since
    idle = timedelta(seconds=ended.idle_s) / lasted if lasted else 0.0
    while begin < ended.until:
        midnight = datetime.combine(begin.date() + timedelta(days=1), time(), UTC)
        end = min(midnight, ended.until)
        so_far = ended.part * ((end - ended.since) // MILLISECOND) // MILLION
        seconds = (end - begin) / timedelta(seconds=1)
        is_first = begin == ended.since
        line = Line(f"{begin:%Y-%m-%d}", model, node_name, charge.queue, charge.owner, charge.priority_class)
        yield (
            line,
            Held(
                card_ms=so_far - done,
                memory_mib_s=round(ended.memory_mib * seconds),
                core_percent_s=round(ended.cores * seconds),
                shares=int(is_first),
                waited_s=ended.waited_s if is_first else 0,
                idle_card_ms=round((so_far - done) * idle),
            ),
        )
        begin, done = end, so_far


def add_up(record: MutableMapping[Line, Held], lines: Iterable[tuple[Line, Held]], most: int = MOST_LINES) -> None:
    """Add what was held to a record. Where it has many lines, names are left out: first all nodes', then new owners'.

    A record has at most `most` lines with names that users choose, and one more for each day and model.
    """
    for line, held in lines:
        if line not in record and len(record) >= most:
            _leave_out_nodes(record)
        coarser = (line, replace(line, node=""), replace(line, node="", owner=""), Line(line.day, line.model))
        place = next(each for each in coarser if each in record or len(record) < most or _is_coarse(each))
        record[place] = record.get(place, Held()) + held


def _leave_out_nodes(record: MutableMapping[Line, Held]) -> None:
    for line in [line for line in record if line.node]:
        held, place = record.pop(line), replace(line, node="")
        record[place] = record.get(place, Held()) + held


def _is_coarse(line: Line) -> bool:
    return line == Line(line.day, line.model)
