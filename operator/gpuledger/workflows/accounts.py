"""Enters the time of shares that have ended into the records of their namespaces, many at once.

The write that takes a holder off its card lists the time of its share there (`status.ended`), so nothing is lost and
nothing is there twice. Some seconds later it goes from the card's list into the record, in three steps, any of which
can be the last before a crash:

1. the record's write has the time in its sums, and the share's key among what it has `entered`;
2. the card's next write, or one of its own, takes the share off the list;
3. the record's next write forgets the key.

A record is written only in the version that was read, or written, last. And what is known of its cards is newer than
the first read: so what another operator had entered before, and taken off, is not there any more; what it had entered
and not taken off, the record names. Mostly our own write that took the holder off has told of the card since then, and
nothing is to be read.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from attrs import define

from gpuledger.formats.custom_resource.usage import Record, RecordName, new_record, record, record_name, record_patch
from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.usage import add_up, lines_of
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, Listeners
from gpuledger.model.errors import Conflict, NotFound
from gpuledger.model.usage import EndedShare
from gpuledger.workflows.context import Component
from gpuledger.workflows.tasks import KeyedWorker, gather_all

GATHER_S = 20.0
"""For so long shares gather that have ended, before a record is written."""

MANY = 128
"""Ended shares of one card with which no more are waited for: its list has room for twice as many."""

SETTLE_S = 60.0
"""After this a card whose list is in the records has a write of its own, if it had no other."""

RECORDS_KEPT = 512
"""As they were written last. Others are read before they are written."""

GIVEN_UP_S = 1.0
"""The same of a card that its node reports no more, and that goes after that."""

MOST_ENTERED = 3_000
"""Keys in a record of shares that cards may still list, of some 120 bytes: what is more waits for these to be off."""

REQUESTS_AT_ONCE = 4

DAYS_DELETED = 31
"""Before the first that is kept: so long the operator may have been away."""

ALL = "accounts"
"""The key of the one work there is."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A record, and since when nobody else has written it."""

    record: Record
    read_s: float
    """When the answer came to its last read, by the operator's clock. Of one that we have made, nobody has entered
    anything before."""


TODAY = "today"
"""The key of reading the records of the day."""


@dataclass(frozen=True, slots=True)
class Today:
    """What has been held since the day began and is in records."""

    date: str
    """Of UTC, YYYY-MM-DD."""
    now: datetime
    card_ms: Mapping[tuple[str, str, str], int]
    """Namespace, queue and model -> milliseconds of a card."""
    has: Callable[[EndedShare], bool]
    """Returns whether a share that a card lists as ended is in them."""


@define(eq=False, slots=False)
class Accounts(Component):
    """Keeps the accounts. What memory has of records and keys is what it wrote or read itself."""

    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._due: dict[str, None] = {}  # UUIDs of cards that list what is in no record yet, as far as is known
        self._records: BoundedMap[RecordName, _Known] = BoundedMap(RECORDS_KEPT)
        self._entered: dict[str, set[str]] = {}  # card UUID -> keys that it still lists, and that are in records
        self._settling: dict[str, asyncio.TimerHandle] = {}  # UUIDs of cards -> when each is to have a write of its own
        self._timer: asyncio.TimerHandle | None = None
        self._today: dict[RecordName, Record] = {}  # those of the day, without their lines of other days
        self._today_read = ""  # the day of which all of them are known
        self._kept_from = ""  # the records of earlier days have been deleted
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self.on_record = Listeners[[Record]]()
        """Called with each record as it was read or written."""
        self.worker = KeyedWorker(self._work, 1, self._may_write)
        self._journal.charge_by(self._now)

    def _now(self) -> datetime | None:
        return self._store.server_now() if self._settings.usage_kept_days else None

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    def became_active(self) -> None:
        """Enter what another operator has left on the cards' lists."""
        self._today_read = ""
        for entry in self._ledger.entries():
            self.observe_card(entry)

    def today(self) -> Today | None:
        """Return what has been held today and is in records; None as long as these have not been read."""
        now = self._now()
        if now is None or not self._may_write():
            return None
        today = f"{now:%Y-%m-%d}"
        if not self._today_read:
            self.worker.mark(TODAY)
            return None
        if self._today_read != today:  # a new day begins with none
            self._today = {name: each for name, each in self._today.items() if name.date == today}
            self._today_read = today
        card_ms: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        for each in self._today.values():
            for line, held in each.lines.items():
                card_ms[each.name.namespace, line.queue, line.model] += held.card_ms
        return Today(today, now, card_ms, self._is_in_record_of_today)

    def _is_in_record_of_today(self, ended: EndedShare) -> bool:
        known = self._today.get(record_name(ended.namespace, ended.until))
        return known is not None and ended.key in known.entered

    async def _read_today(self) -> None:
        now = self._now()
        if now is None:
            return
        async with self._turns:
            async for page in self._store.usages([f"{now:%Y-%m-%d}"]):
                for each in map(record, page):
                    self._note(each)
        self._today_read = f"{now:%Y-%m-%d}"

    def _note(self, found: Record) -> None:
        """Keep the lines of a record that are of its own day, unless a newer version is known."""
        self.on_record(found)
        known = self._today.get(found.name)
        if known is None or known.version < found.version:
            lines = {line: held for line, held in found.lines.items() if line.day == found.name.date}
            self._today[found.name] = replace(found, lines=lines)

    def observe_card(self, entry: CardEntry) -> None:
        """Note what has ended on a card, and what is off its list."""
        uuid = entry.card.uuid
        if not entry.ended and uuid not in self._entered:
            self._due.pop(uuid, None)
            return
        listed = {ended.key for ended in entry.ended or ()}
        entered = self._entered.get(uuid, set())
        entered &= listed
        if not entered:
            self._entered.pop(uuid, None)
        elif not entry.reported:
            self._settle_later(uuid)
        if listed <= entered:
            self._due.pop(uuid, None)
        else:
            self._due[uuid] = None
            waits = entry.reported and len(listed) < MANY  # one that its node has given up goes when its list is empty
            self._work_after(GATHER_S if waits else 0.0)

    def _work_after(self, wait_s: float) -> None:
        if wait_s == 0:  # no timer: uvloop gives none that knows its time
            self.worker.mark(ALL)
        elif self._timer is None or self._timer.when() > self._clock.now_s() + wait_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._tasks.after(wait_s, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        self.worker.mark(ALL)

    async def _work(self, key: str) -> None:
        """Enter what the cards list. Raises what one record has failed by, when all others are written."""
        if key == TODAY:
            await self._read_today()
            return
        uuids, self._due = list(self._due), {}
        of_record: defaultdict[RecordName, set[str]] = defaultdict(set)
        for entry in filter(None, map(self._ledger.entry, uuids)):
            for ended in entry.ended or ():
                of_record[record_name(ended.namespace, ended.until)].add(entry.card.uuid)
        await gather_all([self._bring_up_to_date(name, cards) for name, cards in of_record.items()])

    async def _bring_up_to_date(self, name: RecordName, uuids: AbstractSet[str]) -> None:
        try:
            async with self._turns:
                known = await self._record_of(name)
                # Also those that still listed what was entered last: is that off them by now?
                others = set(known.record.entered.values()) - self._entered.keys()
                found = [await self._as_of(known.read_s, uuid) for uuid in {*uuids, *others}]
                await self._enter(known, {entry.card.uuid: entry for entry in found if entry is not None})
        except BaseException:
            self._records.drop(name)
            self._due |= dict.fromkeys(uuids)
            raise

    async def _record_of(self, name: RecordName) -> _Known:
        """Return a record as it was written last, or as it is."""
        known = self._records.get(name)
        if known is not None:
            return known
        try:
            return await self._read_record(name)
        except NotFound:
            await self._delete_old(name.date)
        with suppress(Conflict):  # another operator was first
            return _Known(record(await self._store.create_usage(new_record(name))), float("-inf"))
        return await self._read_record(name)

    async def _read_record(self, name: RecordName) -> _Known:
        found = record(await self._store.usage(str(name)))
        return _Known(found, self._clock.now_s())

    async def _as_of(self, read_s: float, uuid: str) -> CardEntry | None:
        """Return a card as it was then, or later; None if nothing is known of its list, as if its object is new."""
        entry = self._ledger.entry(uuid)
        if entry is None or not entry.stored:
            return None
        if entry.as_of_s <= read_s:
            try:
                await self._journal.reader.read(entry)
            except NotFound:
                return None
            entry = self._ledger.entry(uuid)
        return entry if entry is not None and entry.ended is not None else None

    async def _enter(self, before: _Known, cards: Mapping[str, CardEntry]) -> None:
        """Write into a record what these cards, known as they were after its read, list for it."""
        known = before.record
        listed = {
            ended.key: (ended, card.card)
            for card in cards.values()
            for ended in card.ended or ()
            if record_name(ended.namespace, ended.until) == known.name
        }
        off = {key for key, uuid in known.entered.items() if uuid in cards and key not in listed}
        unknown = [key for key in listed if key not in known.entered]
        room = max(0, MOST_ENTERED - (len(known.entered) - len(off)))
        self._put_off([listed.pop(key)[1] for key in unknown[room:]])
        new = {key: listed[key] for key in unknown[:room]}
        if new:
            lines, entered = dict(known.lines), {key: uuid for key, uuid in known.entered.items() if key not in off}
            for key, (ended, card) in new.items():
                add_up(lines, lines_of(ended, card.model, card.node_name))
                entered[key] = card.uuid
            patch = record_patch(known, lines, entered)
            known = record(await self._store.patch_usage_status(str(known.name), patch))
            self._counts.usage_entered.inc(len(new))
        self._records.note(known.name, replace(before, record=known))
        self._note(known)
        of_card: defaultdict[str, set[str]] = defaultdict(set)
        for key, (_, card) in listed.items():
            of_card[card.uuid].add(key)
        for uuid, keys in of_card.items():
            self._entered.setdefault(uuid, set()).update(keys)
            self._journal.note_settled(uuid, keys)
            self._settle_later(uuid)

    def _put_off(self, cards: Iterable[Card]) -> None:
        """Enter what these cards list besides when others are off their lists."""
        for card in cards:
            self._due[card.uuid] = None
            self._work_after(SETTLE_S)

    def _settle_later(self, uuid: str) -> None:
        entry = self._ledger.entry(uuid)
        if entry is None:
            return
        timer, wait_s = self._settling.get(uuid), SETTLE_S if entry.reported else GIVEN_UP_S
        if timer is None or timer.when() > self._clock.now_s() + wait_s:  # its node has given it up meanwhile
            if timer is not None:
                timer.cancel()
            self._settling[uuid] = self._tasks.after(wait_s, self._settle, uuid)

    def _settle(self, uuid: str) -> None:
        """Have what is in the records taken off a card's list, if no other write has done that."""
        self._settling.pop(uuid, None)
        keys = self._entered.get(uuid)
        if keys and self._may_write() and self._ledger.entry(uuid) is not None:
            self._journal.note_settled(uuid, keys)
            self._tasks.start(self._journal.settle(uuid), f"take ended shares off the list of card {uuid}")
            self._settle_later(uuid)  # until it is seen to be off

    async def _delete_old(self, today: str) -> None:
        """Delete the records of the days before those that are kept, once a day."""
        first_kept = date.fromisoformat(today) - timedelta(days=self._settings.usage_kept_days)
        if self._kept_from < first_kept.isoformat():
            days = [first_kept - timedelta(days=number) for number in range(1, DAYS_DELETED + 1)]
            await self._store.delete_usages([day.isoformat() for day in days])
            self._kept_from = first_kept.isoformat()
