"""HTTP/1.1 as kube-scheduler's client speaks it with its extender: POST, a body of a known length, one at a time.

aiohttp's server takes four times the CPU. That is paid for each question, and for each connection: Go's client keeps
two idle ones, so four of five Binds of a burst open their own. Everything else that this process serves is aiohttp's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import cast

logger = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""A Filter names every node: 5,000 long names and a large pod take 2 MiB."""

HEAD_LIMIT_BYTES = 16 * 1024
"""Of the request's first line and headers; what comes after a request that is not answered yet may be as long."""

LONGEST_STOP_S = 60.0
"""How long the end of the server waits for questions that are being answered. The process has less."""

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question is answered with."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = JSON


Handler = Callable[[bytes, Callable[[], bool]], Awaitable[Answer]]
"""Answers a body; the function tells whether the client still waits."""


class _BadRequest(Exception):  # noqa: N818 - reads as what it is
    """A request that is answered with a status, after which the connection is of no use."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Head:
    """What matters of a request's first line and headers."""

    path: str
    is_post: bool
    length: int
    """Bytes of the body."""
    is_last: bool
    """Whether the client wants the connection closed afterwards."""


def _head(text: bytes) -> _Head:
    """Read the first line and the headers, without the empty line after them. Raises _BadRequest."""
    first, *lines = text.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1")
    length, is_last = "", words[2] == "HTTP/1.0"
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip()
        if not colon or name != name.strip() or (name == "content-length" and length not in ("", value)):
            raise _BadRequest(HTTPStatus.BAD_REQUEST, "a header can't be read")
        if name == "transfer-encoding":
            raise _BadRequest(HTTPStatus.LENGTH_REQUIRED, "say the length of the body")
        if name == "content-length":
            length = value
        elif name == "connection" and value.lower() == "close":
            is_last = True
    if length and not (length.isascii() and length.isdigit()):
        raise _BadRequest(HTTPStatus.BAD_REQUEST, "the body's length is no number")
    if len(length) > len(str(BODY_LIMIT_BYTES)) or int(length or 0) > BODY_LIMIT_BYTES:
        raise _BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {BODY_LIMIT_BYTES:,} bytes")
    return _Head(words[1].partition("?")[0], words[0] == "POST", int(length or 0), is_last)


class SchedulerConnection(asyncio.Protocol):
    """One connection. What comes while a question is being answered waits."""

    def __init__(self, handlers: Mapping[str, Handler], connections: set[SchedulerConnection]) -> None:
        self._handlers = handlers
        self._connections = connections
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._head: _Head | None = None  # of the request whose body is expected
        self.task: asyncio.Task[None] | None = None
        """What answers a question, if one does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. What is being answered goes on: it looks itself whether anybody waits for it."""
        if self.task is None:
            self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        if self.task is None:
            self._next()
        elif len(self._received) > HEAD_LIMIT_BYTES:
            self._transport.abort()

    def is_heard(self) -> bool:
        """Tell whether the client still waits."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection when what was answered has been sent; what is not answered by now will not be."""
        if self.task is not None:
            self.task.cancel()
        self._transport.close()

    def _next(self) -> None:
        """Begin to answer the next request, if all of it is there."""
        try:
            if self._head is None:
                self._head = self._take_head()
            if self._head is None or len(self._received) < self._head.length:
                return
            head, self._head = self._head, None
            body = bytes(memoryview(self._received)[: head.length])
            del self._received[: head.length]
            handler = self._handlers.get(head.path)
            if handler is None:
                raise _BadRequest(HTTPStatus.NOT_FOUND, "nothing is asked here")
            if not head.is_post:
                raise _BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "questions are posted")
        except _BadRequest as error:
            self._refuse(error.status, str(error))
        else:
            self.task = asyncio.get_running_loop().create_task(self._answer(handler, body, head))

    def _take_head(self) -> _Head | None:
        end = self._received.find(END_OF_HEAD)
        if end > HEAD_LIMIT_BYTES or (end < 0 and len(self._received) > HEAD_LIMIT_BYTES):
            raise _BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEAD_LIMIT_BYTES:,} bytes")
        if end < 0:
            return None
        head = _head(bytes(self._received[:end]))
        del self._received[: end + len(END_OF_HEAD)]
        return head

    async def _answer(self, handler: Handler, body: bytes, head: _Head) -> None:
        try:
            answer = await handler(body, self.is_heard)
        except Exception:
            logger.exception("%s failed, which is a bug in gpuledger", head.path)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in gpuledger; its log says more")
        else:
            self._send(answer, head.is_last)
        finally:
            self.task = None
            if not self.is_heard():
                self._connections.discard(self)
        if self._received and self.is_heard():
            self._next()

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(Answer(f"{text}\n".encode(), status, TEXT), is_last=True)

    def _send(self, answer: Answer, is_last: bool) -> None:
        if not self.is_heard():
            return
        closing = "Connection: close\r\n" if is_last else ""
        status = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        head = f"{status}Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n{closing}\r\n"
        self._transport.write(head.encode() + answer.body)
        if is_last:
            self._transport.close()


@asynccontextmanager
async def served(handlers: Mapping[str, Handler], host: str, port: int) -> AsyncIterator[asyncio.Server]:
    """Answer questions, by their path, as long as this lasts; then those that have come. Raises OSError."""
    connections = set[SchedulerConnection]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(SchedulerConnection, handlers, connections), host, port, backlog=128)
    try:
        yield server
    finally:
        server.close()
        heard = [connection.task for connection in connections if connection.task and connection.is_heard()]
        if heard:
            await asyncio.wait(heard, timeout=LONGEST_STOP_S)
        for connection in list(connections):
            connection.close()
