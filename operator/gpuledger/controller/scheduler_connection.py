"""HTTP/1.1 as kube-scheduler's client speaks it with its extender: questions are posted, one at a time.

Requests are read by httptools (llhttp). aiohttp's server takes several times the CPU, which is paid for each question,
and for each connection: Go's client keeps two idle ones, so four of five Binds of a burst open their own. Everything
else that this process serves is aiohttp's.
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

import httptools

logger = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""A Filter names every node: 5,000 long names and a large pod take 2 MiB."""

HEAD_LIMIT_BYTES = 16 * 1024
"""Of the request's first line and headers."""

LONGEST_STOP_S = 60.0
"""How long the end of the server waits for questions that are being answered. The process has less."""

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question is answered with."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = JSON


Handler = Callable[[bytes, Callable[[], bool]], Awaitable[Answer]]
"""Answers a body; the function tells whether the client still waits."""


class SchedulerConnection(asyncio.Protocol):
    """One connection, with one question at a time: who sends on before it is answered is cut off."""

    def __init__(self, handlers: Mapping[str, Handler], connections: set[SchedulerConnection]) -> None:
        self._handlers = handlers
        self._connections = connections
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = bytearray(), bytearray()
        self._in_head, self._head_bytes = True, 0
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
        if self.task is not None:
            self._transport.abort()
            return
        self._head_bytes += len(data) if self._in_head else 0
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"this is no question: {error}")
        if self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEAD_LIMIT_BYTES:,} bytes")
        elif len(self._body) > BODY_LIMIT_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {BODY_LIMIT_BYTES:,} bytes")

    def on_url(self, part: bytes) -> None:
        """See httptools."""
        self._url += part

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._in_head, self._head_bytes = False, 0

    def on_body(self, part: bytes) -> None:
        """See httptools."""
        self._body += part

    def on_message_complete(self) -> None:
        """See httptools."""
        path, body = self._url.partition(b"?")[0].decode("latin-1"), bytes(self._body)
        self._url, self._body, self._in_head = bytearray(), bytearray(), True
        handler = self._handlers.get(path)
        if self.task is not None:
            self._transport.abort()
        elif handler is None:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing is asked here")
        elif self._parser.get_method() != b"POST":
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "questions are posted")
        else:
            answering = self._answer(handler, path, body, not self._parser.should_keep_alive())
            self.task = asyncio.get_running_loop().create_task(answering)

    def is_heard(self) -> bool:
        """Tell whether the client still waits."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection when what was answered has been sent; what is not answered by now will not be."""
        if self.task is not None:
            self.task.cancel()
        self._transport.close()

    async def _answer(self, handler: Handler, path: str, body: bytes, is_last: bool) -> None:
        try:
            answer = await handler(body, self.is_heard)
        except Exception:
            logger.exception("%s failed, which is a bug in gpuledger", path)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in gpuledger; its log says more")
        else:
            self._send(answer, is_last)
        finally:
            self.task = None
            if not self.is_heard():
                self._connections.discard(self)

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
