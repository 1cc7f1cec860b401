"""What was held over days, for the page and for developers: read from the records when somebody asks, and then shared.

A cluster has tens of thousands of records. They are read page by page, in slices of a few milliseconds, one report at
a time; what is added up is bounded, and an answer is kept for a while: who reloads a page costs the API server nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from gpuledger.controller.web.pace import Pace
from gpuledger.formats.custom_resource.usage import side_by_side
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.clock import BoundedMap, time_of
from gpuledger.model.errors import ApiError, BadInput, Denied, GpuledgerError, NotFound, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.model.usage import EndedShare, Wasted
from gpuledger.reports.account import NO_RECORDS, Question, Tally
from gpuledger.workflows.tasks import gather_all

TIMEOUT_S = 30.0
"""For one report, once its turn has come."""

LISTS = 2
"""Of one report, at a time, each page by page: while one is read, the API server encodes another."""

KEPT_S = 30.0
KEPT_TIMES = 10.0
"""An answer is kept at least so many times as long as it took: reading takes a tenth of the time at most."""
ANSWERS_KEPT = 4
"""Each has up to 10,000 rows, which are 2 MB of JSON."""

ASKED_AT_ONCE = 8
"""Different questions, all but one of which wait for their turn; the rest has to retry later."""


class Busy(GpuledgerError):  # noqa: N818
    """Others' reports are being made."""


@dataclass(slots=True)
class _Held:
    """What cards list, with their places that are kept: references only, taken before the records are read."""

    ended: list[tuple[EndedShare, Card]]
    holders: list[tuple[list[Holder], Card, Wasted | None]]
    created: list[datetime]


class Reports:
    """Makes reports. All who ask the same at the same time share one."""

    def __init__(self, ledger: Ledger, store: KubeStore, wall: Callable[[], datetime]) -> None:
        """`wall` is asked for the time as long as the API server has not said its own."""
        self._ledger, self._store, self._wall = ledger, store, wall
        self._turn = asyncio.Lock()
        self._asking: dict[Question, asyncio.Task[Json]] = {}
        self._known: BoundedMap[Question, Json] = BoundedMap(ANSWERS_KEPT)

    def now(self) -> datetime:
        """Return the time of day in UTC, by the API server's clock."""
        return self._store.server_now() or self._wall().astimezone(UTC)

    async def of(self, asked: Question) -> Json:
        """Return a report, as `kubectl gpuledger report -o json` has it. Raises Busy, BadInput and ApiError."""
        known = self._known.get(asked)
        if known is not None:
            return known
        asking = self._asking.get(asked)
        if asking is None:
            if len(self._asking) >= ASKED_AT_ONCE:
                raise Busy("other reports are being made: retry in a moment")
            asking = self._asking[asked] = asyncio.create_task(self._made(asked))
            asking.add_done_callback(partial(self._asked, asked))
        return await asyncio.shield(asking)  # others wait for the same answer when this request is given up

    def _asked(self, asked: Question, task: asyncio.Task[Json]) -> None:
        del self._asking[asked]
        if not task.cancelled():
            task.exception()  # nobody may be left to be told of it

    async def _made(self, asked: Question) -> Json:
        loop = asyncio.get_running_loop()
        async with self._turn:
            began_s = loop.time()
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    found = await self._make(asked)
            except TimeoutError:
                raise Unreachable(f"the records could not be read within {TIMEOUT_S:g} s: ask for fewer days") from None
            except NotFound as error:
                raise BadInput(NO_RECORDS) from error
            except Denied as error:
                raise ApiError(f"the operator may not list gpuusages.gpuledger.dev: {error}") from error
            took_s = loop.time() - began_s
        self._known.note(asked, found)
        loop.call_later(max(KEPT_S, KEPT_TIMES * took_s), self._forget, asked, found)
        return found

    def _forget(self, asked: Question, found: Json) -> None:
        if self._known.get(asked) is found:
            self._known.drop(asked)

    async def _make(self, asked: Question) -> Json:
        pace, now = Pace(), self.now()
        held = await self._held(pace)
        tally = Tally(asked, now, bounded=True)

        async def read(dates: Sequence[str]) -> None:
            async for page in self._store.usages(dates, asked.only):
                for each in page:
                    tally.add_record(each)
                    await pace.keep()

        await gather_all([read(dates) for dates in side_by_side(asked.days.of_records(now.date()), LISTS)])
        for ended, card in held.ended:
            tally.add_share(ended, card)
            await pace.keep()
        for holders, card, wasted in held.holders:
            tally.add_holders(holders, card, wasted)
            await pace.keep()
        return await asyncio.to_thread(tally.report, held.created)  # it sorts thousands of rows; the loop has its turns

    async def _held(self, pace: Pace) -> _Held:
        """Return what the ledger has. Cards can change between two slices; records, read later, have what is over."""
        found = _Held([], [], [])
        for name in list(self._ledger.node_names()):
            for entry in self._ledger.entries_of_node(name):
                found.ended += ((ended, entry.card) for ended in entry.ended or ())
                if entry.listed:
                    found.holders.append((list(entry.listed.values()), entry.card, entry.wasted))
                created = time_of(entry.created)
                if created is not None:
                    found.created.append(created)
            await pace.keep()
        return found
