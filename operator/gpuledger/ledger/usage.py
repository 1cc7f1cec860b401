"""Adds up the time of shares: by day, and by what reports ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Final

from gpuledger.model.card import Card, total
from gpuledger.model.share import MAX_HOLDERS, Holder, part_of_card
from gpuledger.model.usage import MILLION, EndedShare, Held, Line, Wasted

MOST_LINES: Final = 400
"""Of a record. Users choose names of owners and queues; what comes after that is added up without them."""

MILLISECOND: Final = timedelta(milliseconds=1)


def wasted_part(holders: Sequence[Holder], card: Card) -> float:
    """Return which part of a card is left and of use to nobody: of its memory or of its cores, whichever is more.

    That is so when no slot, no memory or no cores are left for others. What a pod has that asks for no cores is what is
    left of them: beside it, none are of no use.
    """
    shares = [holder.share for holder in holders]
    if not shares or any(share.exclusive for share in shares):
        return 0.0
    capacity = card.capacity
    left = capacity - total(share.amounts for share in shares)
    has_cores = capacity.cores > 0 and all(share.amounts.cores for share in shares)
    is_full = left.number <= 0 or left.memory_mib <= 0 or (capacity.cores > 0 and left.cores <= 0)
    if not is_full and len(shares) < MAX_HOLDERS:
        return 0.0
    memory = left.memory_mib / max(capacity.memory_mib, 1)
    return max(0.0, memory, left.cores / capacity.cores if has_cores else 0.0)


def wasted_ms(wasted: Wasted | None, holders: Sequence[Holder], card: Card, now: datetime) -> int:
    """Return what has been wasted of a card until now that has had these holders since it was added up last."""
    if wasted is None:
        return 0
    held = sum(part_of_card(holder.share, card) for holder in holders if holder.since)
    part = wasted_part(holders, card) if held and now > wasted.until else 0.0
    return wasted.card_ms + (round(part / held * ((now - wasted.until) / MILLISECOND)) if part else 0)


def wasted_after(
    before: Wasted | None, so_far_ms: int, holders: Sequence[Holder], card: Card, now: datetime
) -> Wasted | None:
    """Return what a card's object says of it after a write with which the card has these holders."""
    if not holders:
        return None
    if wasted_part(holders, card) > 0 or (before is not None and so_far_ms > before.card_ms):
        return Wasted(now, so_far_ms)
    return before


def ended_share(holder: Holder, card: Card, until: datetime, idle_s: int = 0, so_far_ms: int = 0) -> EndedShare | None:
    """Return what a holder had of its card until now; None if its time did not count, or none has passed.

    `idle_s` is for how long it was idle; of that counts no more than the share has lasted. `so_far_ms` is what was
    wasted of the card until now.
    """
    since = datetime.fromisoformat(holder.since) if holder.since else None
    if since is None or until <= since:
        return None
    part = part_of_card(holder.share, card)
    return EndedShare(
        key=f"{holder.attempt}.{holder.pod.uid}",
        namespace=holder.pod.namespace,
        charge=holder.pod.charge,
        since=since,
        until=until,
        part=round(MILLION * part),
        memory_mib=holder.share.amounts.memory_mib,
        cores=holder.share.amounts.cores,
        waited_s=holder.waited_s,
        idle_s=max(0, min(idle_s, int((until - since).total_seconds()))),
        wasted_ms=max(0, round(part * (so_far_ms - holder.wasted_before_ms))),
    )


def lines_of(ended: EndedShare, model: str, node_name: str) -> Iterator[tuple[Line, Held]]:
    """Yield what a share held, day by day. What was held in all is the sum, to the last millisecond.

    What was idle and what was wasted is known of the whole share, and so each day has as much of it as of its time.
    """
    charge, begin, done, lasted = ended.charge, ended.since, 0, ended.until - ended.since
    words = [one_line(word) for word in (model, node_name, charge.queue, charge.owner, charge.priority_class)]
    idle = timedelta(seconds=ended.idle_s) / lasted if lasted else 0.0
    while begin < ended.until:
        midnight = datetime.combine(begin.date() + timedelta(days=1), time(), UTC)
        end = min(midnight, ended.until)
        so_far = ended.part * ((end - ended.since) // MILLISECOND) // MILLION
        seconds = (end - begin) / timedelta(seconds=1)
        is_first = begin == ended.since
        yield (
            Line(f"{begin:%Y-%m-%d}", *words),
            Held(
                card_ms=so_far - done,
                memory_mib_s=round(ended.memory_mib * seconds),
                core_percent_s=round(ended.cores * seconds),
                shares=int(is_first),
                waited_s=ended.waited_s if is_first else 0,
                idle_card_ms=round((so_far - done) * idle),
                wasted_card_ms=round(ended.wasted_ms * ((end - begin) / lasted)),
            ),
        )
        begin, done = end, so_far


def one_line(word: str) -> str:
    """Return a name without what can't be printed: a record has a line for each. Users choose some of them freely."""
    return word if word.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in word)


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
