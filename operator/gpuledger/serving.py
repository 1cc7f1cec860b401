"""A port that clients share: no client, and not all of them together, takes what the process needs for the others.

A connection takes a descriptor and memory, whether or not its client ever says anything; an asyncio server takes all
there are. So a port has a number of connections. When it has them all, the client that has kept it waiting longest
makes room for the next one; while it answers all of them, the next one waits in the kernel.

Most ports serve an aiohttp application: a request that has not come in time is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

logger = logging.getLogger(__name__)

HEAD_S = 5.0
"""How long a client has for TLS and the head of its first request, and for the head of each further one it begins."""

IDLE_S = 120.0
"""How long a connection is kept without a request. Go's clients close theirs after 90 s: were it closed here first, it
could be at the moment when kube-scheduler asks, or the API server the webhook, and they do not ask again."""

LOOK_INTERVAL_S = 1.0
"""How late these times are noticed, at most."""

GRACE_S = 0.05
"""What came while this process stood still is read before its time counts as over."""

RETRY_S = 1.0
"""Before the next client is accepted when one could not be, mostly for want of descriptors."""

BACKLOG = 128
"""How many clients the kernel keeps waiting."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients get of a port together. Those that anybody may reach have rates, which bound what they cost."""

    connections: int = 64
    connections_per_s: float = math.inf
    requests_per_s: float = math.inf


def raise_descriptor_limit() -> int:
    """Let this process open as many descriptors as it may let itself; return how many.

    Container runtimes and service managers often hand down 1,024, which is for programs that still use select(2).
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Pace:
    """Turns, so many a second, and a second's worth at once after a rest. Others wait, in their order."""

    def __init__(self, per_s: float) -> None:
        self._interval_s = 1 / per_s
        self._next_s = 0.0

    async def turn(self) -> None:
        """Wait for one."""
        if self._interval_s:
            now_s = asyncio.get_running_loop().time()
            self._next_s = max(self._next_s, now_s - 1.0) + self._interval_s
            await asyncio.sleep(max(0.0, self._next_s - now_s))


class Connection(asyncio.Protocol):
    """One client. The protocol that speaks with it says when a request has come, and when it is answered."""

    def __init__(self, port: Port, make: Callable[[Connection], asyncio.Protocol]) -> None:
        self._port = port
        self._speaker = make(self)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # one for all: each costs more than a question's path to us
        self._due_s = math.inf  # loop time until which the client has to do its part
        self._rests = False  # answered, and nothing has come since
        self.opening: asyncio.Task[None] | None = None

    @property
    def is_made(self) -> bool:
        """Return whether there has been a connection, with its TLS."""
        return self._transport is not None

    def asked(self) -> None:
        """Record that a request has come: the client has done its part."""
        self._rests, self._due_s = False, math.inf
        self._port.waiting.pop(self, None)

    def answered(self) -> None:
        """Record that the client's turn has come again."""
        if self in self._port.connections:
            self._rests, self._due_s = True, self._loop.time() + IDLE_S
            self._port.waiting[self] = None
            self._port.changed.set()

    def abort(self) -> None:
        """Close it, whatever it waits for."""
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._due_s = self._loop.time() + HEAD_S
        self._look()
        self._speaker.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._rests:
            self._rests, self._due_s = False, self._loop.time() + HEAD_S
        self._speaker.data_received(data)

    def eof_received(self) -> bool | None:
        """See asyncio."""
        return self._speaker.eof_received()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._speaker.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._speaker.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if self._timer is not None:
            self._timer.cancel()
        self._port.lost(self)
        self._speaker.connection_lost(exc)

    def _look(self, is_second_look: bool = False) -> None:
        left_s = self._due_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(min(left_s, LOOK_INTERVAL_S), self._look)
        elif is_second_look:
            self.abort()
        else:
            self._timer = self._loop.call_later(GRACE_S, self._look, True)


class Port:
    """What listens, and who is connected."""

    def __init__(
        self, make: Callable[[Connection], asyncio.Protocol], limits: Limits, context: ssl.SSLContext | None
    ) -> None:
        self._make, self._limits = make, limits
        self.context = context
        """For clients that come from now on."""
        self._pace = Pace(limits.connections_per_s)
        self.changed = asyncio.Event()
        """A client has gone, or may be sent away."""
        self.listeners: list[socket.socket] = []
        self.connections = set[Connection]()
        self.waiting: dict[Connection, None] = {}
        """Whose turn it is to say something, in the order since when it is."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        host, port = self.listeners[0].getsockname()[:2]
        return host, port

    def opening(self) -> list[asyncio.Task[None]]:
        """Return what waits for clients' TLS."""
        return [each.opening for each in self.connections if each.opening is not None]

    async def listen(self, host: str, port: int) -> None:
        """Bind the addresses of a host. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
            listener.setblocking(False)
            self.listeners.append(listener)

    async def accept(self, listener: socket.socket) -> None:
        """Take in clients, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("no client can be accepted at port %d: %s", self.address[1], error)
                await asyncio.sleep(RETRY_S)
                continue
            with contextlib.ExitStack() as unless_opened:
                unless_opened.callback(taken.close)
                while len(self.connections) >= self._limits.connections:
                    await self._one_leaves()
                unless_opened.pop_all()
            connection = Connection(self, self._make)
            self.connections.add(connection)
            self.waiting[connection] = None
            connection.opening = asyncio.create_task(self._open(connection, taken))
            connection.opening.add_done_callback(partial(self._opened, connection, taken))
            await self._pace.turn()
            await asyncio.sleep(0)  # a client that is there already does not let others have their turn

    async def _one_leaves(self) -> None:
        self.changed.clear()
        if self.waiting:
            next(iter(self.waiting)).abort()
        await self.changed.wait()

    async def _open(self, connection: Connection, taken: socket.socket) -> None:
        handshake_s = HEAD_S if self.context else None
        with contextlib.suppress(OSError):  # gone meanwhile, silent, or no TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, taken, ssl=self.context, ssl_handshake_timeout=handshake_s
            )

    def _opened(self, connection: Connection, taken: socket.socket, _: asyncio.Task[None]) -> None:
        connection.opening = None
        if not connection.is_made:
            taken.close()
            self.lost(connection)

    def lost(self, connection: Connection) -> None:
        """Record that a client has gone."""
        self.connections.discard(connection)
        self.waiting.pop(connection, None)
        self.changed.set()


@contextlib.asynccontextmanager
async def listening(
    host: str,
    port: int,
    make: Callable[[Connection], asyncio.Protocol],
    limits: Limits,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Port]:
    """Accept clients as long as this lasts; each is spoken with by what `make` returns, which also closes it.

    Raises OSError.
    """
    raise_descriptor_limit()
    opened, accepting = Port(make, limits, context), list[asyncio.Task[None]]()
    try:
        await opened.listen(host, port)
        accepting = [asyncio.create_task(opened.accept(each)) for each in opened.listeners]
        yield opened
    finally:
        for task in [*accepting, *opened.opening()]:
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        for listener in opened.listeners:
            listener.close()


def _is_about_us(record: logging.LogRecord) -> bool:
    """Leave out the traceback that aiohttp has for each request that is no HTTP: its client is told."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


logger.addFilter(_is_about_us)


@asynccontextmanager
async def application_served(
    application: web.Application,
    host: str,
    port: int,
    limits: Limits = Limits(),
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Port]:
    """Serve an application as long as this lasts; then what has been asked is answered. Raises OSError."""
    runner = web.AppRunner(application, access_log=None, logger=logger)
    await runner.setup()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        server = cast(web.Server, runner.server)
        _tell_connections(server, Pace(limits.requests_per_s))
        yield await stack.enter_async_context(listening(host, port, lambda _: server(), limits, context))


def _tell_connections(server: web.Server, pace: Pace) -> None:
    """Have each connection know when a request has come, and when it is answered: aiohttp itself waits for ever."""
    make_request, handle = server.request_factory, server.request_handler

    def made(message: Any, payload: Any, protocol: web.RequestHandler, *rest: Any) -> web.BaseRequest:
        if protocol.transport is not None:
            cast(Connection, protocol.transport.get_protocol()).asked()
        return make_request(message, payload, protocol, *rest)

    async def handled(request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        try:
            await pace.turn()
            if request.can_read_body:
                await _read(request)
            return await handle(request)
        finally:
            if transport is not None:
                cast(Connection, transport.get_protocol()).answered()

    server.request_factory, server.request_handler = made, handled


async def _read(request: web.BaseRequest) -> None:
    try:
        async with asyncio.timeout(HEAD_S):
            await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the request's body does not come\n") from None
