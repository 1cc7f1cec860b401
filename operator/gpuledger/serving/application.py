"""An aiohttp application at a port with limits: a request that has not come in time is not waited for."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gpuledger.serving.port import HEAD_S, Connection, Limits, Pace, Port, listening


def _is_about_us(record: logging.LogRecord) -> bool:
    """Leave out the traceback that aiohttp has for each request that is no HTTP: its client is told."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


logger = logging.getLogger(__name__)
logger.addFilter(_is_about_us)


@asynccontextmanager
async def application_served(
    application: web.Application,
    host: str,
    port: int,
    limits: Limits = Limits(),  # noqa: B008 - frozen
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
