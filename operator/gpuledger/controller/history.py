"""The history over restarts, upgrades and changes of the active replica (docs/decisions/14-history.md).

The active replica records. Each replica has a file for its own next process, and follows each other replica over HTTP:
first all that it has, then each record as it happens. Between records nothing is sent but an empty line now and then.
No decision depends on a record, and none of this delays one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import aiohttp
import orjson
from aiohttp import hdrs, web
from pydantic import BaseModel

from gpuledger import __version__
from gpuledger.configuration.settings import Settings
from gpuledger.controller.trail_files import HistoryFile, skipped_records, trail_written
from gpuledger.controller.web.feed import CHUNK_BYTES
from gpuledger.controller.web.pace import Pace
from gpuledger.controller.web.view_server import TokenVerdicts, judged, may_list_cards, refusal
from gpuledger.formats.kubernetes.node import agent_pod, host_of
from gpuledger.formats.kubernetes.other import HISTORY_AUDIENCE, PORT_NAME, TOKEN_HEADER
from gpuledger.kube_api.client import whole_lines
from gpuledger.kube_api.reads import KubeReviews
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.model.clock import Backoff, Clock
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.reports.record_reader import LONGEST_LINE_BYTES, record_of
from gpuledger.reports.records import Record
from gpuledger.workflows.context import Context
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.tasks import started_again
from gpuledger.workflows.trail import Trail

PATH = "/v1/records"

READERS = 8
"""Replicas that follow this one at a time."""

UNSENT = 10_000
"""Lines that a reader may be behind; then it has to come again, and gets everything."""

QUIET_S = 15.0
"""After so long without a record, an empty line says that there was none."""

SILENCE_S = 45.0
"""A replica that sends nothing for so long is not followed any longer, but asked again."""

CONNECT_S = 5.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 30.0

SETTLE_S = 5.0
"""How long an operator that starts counts as not ready because the history is not read: a rollout waits for that."""

LONGEST_VALUE = 60
"""Characters of a setting in a record."""

logger = logging.getLogger(__name__)


class RecordStreams:
    """Sends the records of this replica to others."""

    def __init__(self, trail: Trail, reviews: KubeReviews) -> None:
        self._trail = trail
        self._reviews = reviews
        self._verdicts = TokenVerdicts(self._may_read)
        self._readers: dict[asyncio.Queue[bytes], web.Request] = {}
        self._closed = asyncio.Event()

    def add_to(self, application: web.Application) -> None:
        """Serve them by an application."""
        application.add_routes([web.get(PATH, self._answer, allow_head=False)])
        application.on_shutdown.append(self._close)

    def put(self, line: bytes) -> None:
        """Send a line to all who read."""
        for queue, request in list(self._readers.items()):
            try:
                queue.put_nowait(line)
            except asyncio.QueueFull:
                del self._readers[queue]
                if request.transport is not None:
                    request.transport.abort()

    async def _close(self, _: web.Application) -> None:
        self._closed.set()
        for queue in self._readers:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(b"")  # wakes it up

    async def _may_read(self, token: str) -> bool | None:
        return await may_list_cards(self._reviews, token, HISTORY_AUDIENCE)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if not await judged(self._verdicts, request.headers.get(TOKEN_HEADER, "").strip(), f"{TOKEN_HEADER}: TOKEN"):
            raise refusal(web.HTTPForbidden, "this token is of no account that may read the history")
        if len(self._readers) >= READERS:
            raise refusal(web.HTTPTooManyRequests, f"{READERS} replicas read already", {hdrs.RETRY_AFTER: "5"})
        queue = asyncio.Queue[bytes](UNSENT)
        self._readers[queue] = request
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/x-ndjson"})
        try:
            await response.prepare(request)
            await self._send_known(response)
            while not (self._closed.is_set() and queue.empty()):
                line = b""
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        line = await queue.get()
                async with asyncio.timeout(SILENCE_S):
                    await response.write(line + b"\n")
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._readers.pop(queue, None)
        return response

    async def _send_known(self, response: web.StreamResponse) -> None:
        """Send all that is known; an empty line ends it."""
        pace, lines, size = Pace(), list[bytes](), 0
        for record in [*self._trail]:
            lines.append(line_of(record))
            size += len(lines[-1])
            if size >= CHUNK_BYTES:
                async with asyncio.timeout(SILENCE_S):
                    await response.write(b"\n".join(lines) + b"\n")
                lines, size = [], 0
            await pace.keep()
        async with asyncio.timeout(SILENCE_S):
            await response.write(b"".join(line + b"\n" for line in lines) + b"\n")


def line_of(record: Record) -> bytes:
    """Return a record as it is sent and written, without the line's end."""
    return orjson.dumps(record.json())


class Replicas:
    """Follows what the other replicas record. Their pods are watched; what they send is read strictly."""

    def __init__(self, host_name: str, token_file: Path, clock: Clock, counts: Counts, most: int) -> None:
        """Of what a replica sends at first, the last `most` records are kept."""
        self._host_name, self._token_file, self._clock = host_name, token_file, clock
        self._counts, self._most = counts, most
        self.take: Callable[[Sequence[Record]], None] = lambda records: None
        """Called with the records of another replica."""
        self._known: dict[str, str] = {}  # pod UID -> URL
        self._caught_up: dict[str, asyncio.Event] = {}  # URL -> set when all that the replica had has come
        self._changed = asyncio.Event()
        self.listed = asyncio.Event()
        """Set when the first list of them has been read, or can't be."""

    def observe(self, pod: Json, gone: bool) -> None:
        """Observe a pod of the operator."""
        uid, found = pod["metadata"]["uid"], agent_pod(pod, PORT_NAME)
        if found.name == self._host_name:
            return
        if gone or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._forget(uid)
        elif (host := host_of(found.address)) and found.port and "deletionTimestamp" not in pod["metadata"]:
            self.follow(uid, f"http://{host}:{found.port}{PATH}")

    def listing(self) -> Listed:
        """Return a function that forgets the present pods that are missing in a later list."""
        return forgetting(self._known, self._forget)

    def follow(self, uid: str, url: str) -> None:
        """Follow the replica at an address."""
        self._known[uid] = url
        self._caught_up.setdefault(url, asyncio.Event())
        self._changed.set()

    def _forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._changed.set()

    async def caught_up(self) -> None:
        """Return when all that the replicas had that are known by now has come."""
        for event in [self._caught_up[url] for url in self._known.values()]:
            await event.wait()

    async def run(self) -> None:
        """Follow all of them, until cancelled."""
        following: dict[str, asyncio.Task[None]] = {}  # by URL
        try:
            while True:
                wanted = set(self._known.values())
                for url in following.keys() - wanted:
                    following.pop(url).cancel()
                    self._caught_up.pop(url).set()
                for url in wanted - following.keys():
                    part = partial(self._follow, url)
                    following[url] = asyncio.create_task(started_again(f"follow {url}", part, self._clock))
                await self._changed.wait()
                self._changed.clear()
        finally:
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)

    async def _follow(self, url: str) -> None:
        backoff = Backoff(FIRST_RETRY_S, LONGEST_RETRY_S)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=SILENCE_S)
        async with aiohttp.ClientSession(
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,  # a packed answer could be of any size
        ) as session:
            while True:
                try:
                    headers = {TOKEN_HEADER: self._token_file.read_text().strip()}
                    async with session.get(url, headers=headers, allow_redirects=False) as response:
                        logger.info("the history of the replica at %s: %d", url, response.status)
                        begin_s = self._clock.now_s()
                        if response.status == 200:
                            await self._read(url, response)
                        elif response.status == 404:  # an older release has none to give
                            self._caught_up[url].set()
                        if self._clock.now_s() > begin_s + LONGEST_RETRY_S:
                            backoff.reset()
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    logger.info("the replica at %s can't be followed: %s", url, error or type(error).__name__)
                await asyncio.sleep(backoff.next_s())

    async def _read(self, url: str, response: aiohttp.ClientResponse) -> None:
        first: deque[Record] | None = deque(maxlen=self._most)  # what it has: older records come in one piece
        pace, skipped = Pace(), 0
        try:
            async for line in whole_lines(response.content.iter_any(), f"history at {url}", LONGEST_LINE_BYTES):
                try:
                    record = record_of(line, self._clock.wall().timestamp()) if line else None
                except BadInput:
                    skipped += 1
                    continue
                if first is not None and record is None:
                    self.take(first)
                    first = None
                    self._caught_up[url].set()
                elif first is not None and record is not None:
                    first.append(record)
                elif record is not None:
                    self.take((record,))
                await pace.keep()
        finally:
            self.take(first or ())
            skipped_records(self._counts, skipped, url)


class History:
    """Keeps a trail over restarts, in a file and in other replicas' memory."""

    def __init__(self, context: Context, replicas: Replicas | None) -> None:
        """Without `replicas`, there are no others."""
        self._trail, self._leadership = context.trail, context.leadership
        self._settings, self._clock, self._counts = context.settings, context.clock, context.counts
        self._sinks: list[Callable[[bytes], None]] = []  # of each record's line
        self._file: HistoryFile | None = None
        self._replicas = replicas
        self.is_settled = False
        """Whether all has been read that is there, or it was waited for long enough."""

    @contextlib.contextmanager
    def written(self, directory: Path | None, streams: RecordStreams | None) -> Iterator[None]:
        """Write and send records as long as this lasts. Raises OSError if the file of the settings can't be opened."""
        with contextlib.ExitStack() as stack:
            if self._settings.trail_file:
                self._sinks.append(stack.enter_context(trail_written(self._settings.trail_file, self._counts)))
            if directory is not None:
                self._file = HistoryFile(directory, self._trail, self._counts, self._clock)
                stack.enter_context(self._file.written())
                self._sinks.append(self._file.put)
            if streams is not None:
                self._sinks.append(streams.put)
            if self._sinks:
                self._trail.on_record.append(self._send)
                stack.callback(self._trail.on_record.remove, self._send)
            yield

    async def run(self, replica: str) -> None:
        """Follow the other replicas, and record whenever this one becomes active; until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._replicas is not None:
                self._replicas.take = self._take
                group.create_task(self._replicas.run())
            group.create_task(self._record_being_active(replica))

    async def _record_being_active(self, replica: str) -> None:
        settling = asyncio.create_task(self._settle())
        try:
            while True:
                await self._leadership.wait_active()
                since = self._clock.wall().timestamp()
                await settling
                self._trail.active(replica, settings_of(self._settings), since)
                await self._leadership.wait_passive()
        finally:
            settling.cancel()

    async def _settle(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                if self._file is not None:
                    await self._file.read.wait()
                if self._replicas is not None:
                    await self._replicas.listed.wait()
                    await self._replicas.caught_up()
        self.is_settled = True

    def _send(self, record: Record) -> None:
        line = line_of(record)
        for sink in self._sinks:
            sink(line)

    def _take(self, records: Sequence[Record]) -> None:
        """Take the records of another replica; they are written for the next process, but not sent any further."""
        for record in self._trail.merge(records):
            if self._file is not None:
                self._file.put(line_of(record))


def _fields_of(row: BaseModel) -> dict[str, object]:
    return row.model_dump(exclude_defaults=True)


def settings_of(settings: Settings) -> Mapping[str, str]:
    """Return what distinguishes an operator from others, as texts: its version, and what is not the default."""
    found = {"version": __version__}
    for option in fields(settings):
        value = getattr(settings, option.name)
        if value != option.default:
            text = orjson.dumps(value, default=_fields_of).decode()
            found[option.name] = text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
    return found
