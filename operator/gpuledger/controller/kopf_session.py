"""Kopf's connection to the API server, over which no answer reaches it that would end the process.

A list that is refused with 404, 410 or 422, an error in a watch other than 410, a line or a page that is no JSON: each
ends Kopf, and with it the operator; an API server in trouble would end all operators at once. And Kopf reads pages and
lines in one piece, however long. Nor does a list reach it: the operator reads all objects itself then, and Kopf needs
the version alone, to watch from there; it would have a task for each object in the list.

Kopf takes in what it is sent as fast as it comes, and handles it later, each object in a task of its own: a burst of
events would all be in memory. So a watch goes on when the last events that it has shown were handled.

That a session can be ours is documented by Kopf, and middlewares are by aiohttp;
only that the content of an answer is replaced is not documented.
tests/unit/controller/test_kopf_session.py runs Kopf over it, and says what a next release has to keep.

Each list of a watch, Kopf's or a plain one, is noticed. A watch can break in a way that makes it list everything again.
What was deleted in between is in no list and gets no event. So each such list is followed by a comparison of memory
with full lists.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import aiohttp
import kopf
import orjson

from gpuledger.kube_api.client import LONGEST_LINE_BYTES, LONGEST_WAIT_S, KubeClient, read_at_most, whole_lines
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import AnswerTooLong

EVENTS_AT_ONCE = 32
BYTES_AT_ONCE = 1024 * 1024
"""So much of a watch is in Kopf's hands at a time; a longer event is there alone."""

LONGEST_HANDLING_S = 1.0
"""After this, Kopf counts as having left events out, as it does for a while after an error of its own."""


class InHand:
    """The events of a kind that Kopf has been shown and has not handled yet."""

    def __init__(self) -> None:
        self._events = self._bytes = 0
        self._all_handled = asyncio.Event()

    async def show(self, size: int) -> None:
        """Record one more event, of so many bytes, when there is room for it."""
        if self._events >= EVENTS_AT_ONCE or (self._events and self._bytes + size > BYTES_AT_ONCE):
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_HANDLING_S):
                    await self._all_handled.wait()
            self._events = self._bytes = 0
        self._events += 1
        self._bytes += size
        self._all_handled.clear()

    def handled(self) -> None:
        """Record that one was handled."""
        self._events = max(self._events - 1, 0)
        if not self._events:
            self._bytes = 0
            self._all_handled.set()


class ListsRead:
    """Which lists have been read, and what Kopf has in hand.

    `first` is set when Kopf was given a list of each of its kinds, `again` after any later list. A plain watch begins
    where the operator itself has read the first list.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        """Take Kopf's kinds, as their paths end."""
        self._unread = set(kinds)
        self.in_hand = defaultdict[str, InHand](InHand)
        """Kind -> the events that Kopf handles."""
        self.first = asyncio.Event()
        self.again = asyncio.Event()

    def read(self, kind: str) -> None:
        """Record that Kopf was given a list."""
        if self.first.is_set():
            self.again.set()
        self._unread.discard(kind)
        if not self._unread:
            self.first.set()

    def listing(self) -> Callable[[set[str]], None]:
        """Record that a plain watch is listing; return what notes that it has."""
        return lambda _: self.again.set()


logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Before a request that has failed is sent again."""

LONGEST_PAUSE_S = 30.0
"""Before a kind is listed again: pauses double, until a watch has lasted longer than this. Each list has the operator
compare everything."""

TOO_OLD = b'{"type":"ERROR","object":{"code":410}}\n'
"""The event after which Kopf lists a kind again."""


def session(client: KubeClient, lists: ListsRead) -> kopf.AiohttpSession:
    """Return a connection for Kopf with the client's account. Kopf closes it."""
    configuration = client.configuration
    info = kopf.ConnectionInfo(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())
    opened = aiohttp.ClientSession(connector=connector, middlewares=[SteadyAnswers(client, lists)])
    return kopf.AiohttpSession(server=info.server, aiohttp_session=opened)


class SteadyAnswers:
    """A middleware for Kopf's HTTP session: it asks until there is an answer that Kopf can read."""

    def __init__(self, client: KubeClient, lists: ListsRead) -> None:
        self._client = client
        self._lists = lists
        self._pauses = defaultdict[str, Backoff](lambda: Backoff(PAUSE_S, LONGEST_PAUSE_S))  # plural -> before a list

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request until it succeeds. Raises what aiohttp raises without an answer: Kopf asks again then."""
        while True:
            if authorization := await self._client.authorization():  # each time: tokens expire
                request.headers["Authorization"] = authorization
            response = await send(request)
            kind, is_watch = request.url.name, "watch" in request.url.query
            if is_watch and response.status in (HTTPStatus.OK, HTTPStatus.GONE):
                is_too_old, response.status = response.status == HTTPStatus.GONE, HTTPStatus.OK
                watched = _Watched(response.content, kind, self._pauses[kind], self._lists.in_hand[kind], is_too_old)
                response.content = cast(aiohttp.StreamReader, watched)
                return response
            if response.status >= HTTPStatus.BAD_REQUEST:
                await self._wait(request, response)
            elif await self._is_read(request, response):
                return response

    async def _wait(self, request: aiohttp.ClientRequest, response: aiohttp.ClientResponse) -> None:
        """Pause after a refusal."""
        asked_s = response.headers.get("Retry-After", "")
        logger.info("%s %s: %d; asking again", request.method, request.url.path_qs, response.status)
        response.release()
        await asyncio.sleep(min(LONGEST_WAIT_S, max(PAUSE_S, float(asked_s if asked_s.isdigit() else 0))))

    async def _is_read(self, request: aiohttp.ClientRequest, response: aiohttp.ClientResponse) -> bool:
        """Read an answer; if it is too long, or no JSON, say no. A list is one without objects then."""
        is_list = "limit" in request.url.query
        try:
            body = await read_at_most(response, LONGEST_LINE_BYTES)
            answer = orjson.loads(body)
            version = (answer.get("metadata") or {}).get("resourceVersion")
        except (AnswerTooLong, orjson.JSONDecodeError, AttributeError) as error:
            logger.warning("a response to Kopf can't be read: %r; retrying", error)
            await asyncio.sleep(PAUSE_S)
            return False
        if is_list:
            body = orjson.dumps({"metadata": {"resourceVersion": version}, "items": []})
            self._lists.read(request.url.name)
        response.content = cast(aiohttp.StreamReader, _Read(response.content, body))
        return True


class _Content:
    """The content of an answer, of which something is replaced."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


class _Read(_Content):
    """The content of an answer that has been read."""

    def __init__(self, content: aiohttp.StreamReader, body: bytes) -> None:
        super().__init__(content)
        self._body = body

    async def read(self) -> bytes:
        """Return all of it."""
        return self._body


class _Watched(_Content):
    """The content of a watch, up to a line that Kopf would not survive; or of one that is refused as too old."""

    def __init__(
        self,
        content: aiohttp.StreamReader,
        kind: str,
        pauses: Backoff,
        in_hand: InHand,
        is_too_old: bool,
    ) -> None:
        super().__init__(content)
        self._kind = kind
        self._pauses = pauses
        self._in_hand = in_hand
        self._is_too_old = is_too_old

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines, one at a time."""
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        if self._is_too_old:
            await asyncio.sleep(self._pauses.next_s())
            yield TOO_OLD
            return
        async for line in whole_lines(self._content.iter_chunked(size), f"watch of {self._kind}"):
            if clock() > begin_s + LONGEST_PAUSE_S:
                self._pauses.reset()
            kind, code = _kind_of(line)
            if code == HTTPStatus.GONE:  # Kopf knows this one, and lists again
                await asyncio.sleep(self._pauses.next_s())
            elif code is not None:
                logger.warning("watch of %s: %s; restarting it", self._kind, line[:300].decode(errors="replace"))
                await asyncio.sleep(PAUSE_S)
                return
            elif kind != "BOOKMARK":
                await self._in_hand.show(len(line))
            yield line + b"\n"


def _kind_of(line: bytes) -> tuple[str, object]:
    """Return the type of an event, and the code of an error: an empty text of what is no line of a watch."""
    try:
        event = orjson.loads(line)
        kind, found = str(event["type"]), dict(event["object"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return "", ""
    return kind, found.get("code", "") if kind == "ERROR" else None
