"""HTTP/1.1 as kube-scheduler's client speaks it with its extender: questions are posted, one at a time.

Requests are read by httptools (llhttp). aiohttp's server takes several times the CPU, which is paid for each question,
and for each connection: Go's client keeps two idle ones, so four of five Binds of a burst open their own. Everything
else that this process serves is aiohttp's.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import cast

import httptools

from gpuledger.formats.scheduler import authorization
from gpuledger.serving import Connection, Limits, Port, listening, raise_descriptor_limit

logger = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""A Filter names every node: 5,000 long names and a large pod take 2 MiB."""

HEAD_LIMIT_BYTES = 16 * 1024
"""Of the request's first line and headers."""

MOST_CONNECTIONS = 4_096
"""The limit, beside half of the process's descriptors. Each waiting Bind has a connection of its own, for example one
that waits for another system's device plugin."""

LONGEST_STOP_S = 60.0
"""How long the end of the server waits for questions that are being answered. The process has less."""

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    The status is 200 in any case: kube-scheduler writes any other one into logs and pods, beside the URL that has the
    secret. So a text says that there is no answer; kube-scheduler fails to read it as JSON.
    """

    body: bytes
    content_type: str = JSON


NO_ANSWER = Answer(b"a bug in gpuledger; its log says more\n", TEXT)


Handler = Callable[[bytes, Callable[[], bool]], Awaitable[Answer]]
"""Answers a body; the function tells whether the client still waits."""


class SchedulerConnection(asyncio.Protocol):
    """One connection, with one question at a time: a client that sends on before the answer is cut off."""

    def __init__(
        self, handlers: Mapping[str, Handler], proof: bytes, connections: set[SchedulerConnection], client: Connection
    ) -> None:
        self._handlers = handlers
        self._wanted_proof = proof
        self._connections = connections
        self._client = client
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body, self._proof = bytearray(), bytearray(), b""
        self._handler: Handler | None = None
        self._in_head, self._head_bytes = True, 0
        self.task: asyncio.Task[None] | None = None
        """The task that answers a question, if there is one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. An answer in progress goes on: its handler checks whether the client is still connected."""
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
            self._send(Answer(f"more than {BODY_LIMIT_BYTES:,} bytes\n".encode(), TEXT), is_last=True)

    def on_url(self, part: bytes) -> None:
        """See httptools."""
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if name.lower() == b"authorization":
            self._proof = value

    def on_headers_complete(self) -> None:
        """See httptools. A client without the secret does not learn which paths exist, nor that there is a secret."""
        self._in_head, self._head_bytes = False, 0
        is_known = not self._wanted_proof or hmac.compare_digest(self._proof, self._wanted_proof)
        path = self._url.partition(b"?")[0].decode("latin-1")
        self._handler = self._handlers.get(path) if is_known and self._parser.get_method() == b"POST" else None
        if self._handler is None:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing is asked here")

    def on_body(self, part: bytes) -> None:
        """See httptools."""
        if self._handler is not None:
            self._body += part

    def on_message_complete(self) -> None:
        """See httptools."""
        handler, path, body = self._handler, bytes(self._url), bytes(self._body)
        self._url, self._body, self._proof, self._handler = bytearray(), bytearray(), b"", None
        self._in_head = True
        if self.task is not None:
            self._transport.abort()
        elif handler is not None:
            self._client.asked()
            answering = self._answer(handler, path, body, not self._parser.should_keep_alive())
            self.task = asyncio.get_running_loop().create_task(answering)

    def is_connected(self) -> bool:
        """Return whether the client still waits."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection when what was answered has been sent; what is not answered by now will not be."""
        if self.task is not None:
            self.task.cancel()
        self._transport.close()

    async def _answer(self, handler: Handler, path: bytes, body: bytes, is_last: bool) -> None:
        try:
            answer = await handler(body, self.is_connected)
        except Exception:
            logger.exception("%s failed, which is a bug in gpuledger", path.decode("latin-1"))
            self._send(NO_ANSWER, is_last=True)
        else:
            self._send(answer, is_last)
        finally:
            self.task = None
            self._client.answered()
            if not self.is_connected():
                self._connections.discard(self)

    def _refuse(self, code: HTTPStatus, text: str) -> None:
        self._send(Answer(f"{text}\n".encode(), TEXT), is_last=True, code=code)

    def _send(self, answer: Answer, is_last: bool, code: HTTPStatus = HTTPStatus.OK) -> None:
        if not self.is_connected():
            return
        closing = "Connection: close\r\n" if is_last else ""
        status = f"HTTP/1.1 {code.value} {code.phrase}\r\n"
        head = f"{status}Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n{closing}\r\n"
        self._transport.write(head.encode() + answer.body)
        if is_last:
            self._transport.close()


@asynccontextmanager
async def served(handlers: Mapping[str, Handler], host: str, port: int, secret: str = "") -> AsyncIterator[Port]:
    """Answer questions, by their path, as long as this lasts; then those that have come. Raises OSError."""
    connections = set[SchedulerConnection]()
    limits = Limits(min(MOST_CONNECTIONS, raise_descriptor_limit() // 2))
    try:
        speaker = partial(SchedulerConnection, handlers, authorization(secret).encode(), connections)
        async with listening(host, port, speaker, limits) as opened:
            yield opened
    finally:
        heard = [connection.task for connection in connections if connection.task and connection.is_connected()]
        if heard:
            await asyncio.wait(heard, timeout=LONGEST_STOP_S)
        for connection in list(connections):
            connection.close()
