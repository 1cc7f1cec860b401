"""The text of the metrics, for every client of the port: made once for all who ask at the same time, and for a few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

from aiohttp import web

MOST_READERS = 8
"""Who reads at the same time; each keeps a text in memory, which for 1,000 nodes of 8 cards has 30 MB."""

READER_S = 30.0
"""How long one may take to read it: three times Prometheus' own default."""


class Scrapes:
    """Answers requests for metrics."""

    def __init__(self, pieces: Callable[[], AsyncIterator[bytes]], content_type: str) -> None:
        self._pieces = pieces
        self._content_type = content_type
        self._readers = 0
        self._made: asyncio.Task[list[bytes]] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Write the text in pieces: while it is made and sent, everybody else gets their turn."""
        if self._readers >= MOST_READERS:
            text = f"{MOST_READERS} other requests are reading the metrics: retry later\n"
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=text)
        self._readers += 1
        response = web.StreamResponse(headers={"Content-Type": self._content_type})
        try:
            async with asyncio.timeout(READER_S):
                pieces = await self._text()
                await response.prepare(request)
                for piece in pieces:
                    await response.write(piece)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._readers -= 1
        return response

    async def _text(self) -> list[bytes]:
        if self._made is None:
            self._made = asyncio.create_task(self._make(), name="make the text of the metrics")
        return await asyncio.shield(self._made)

    async def _make(self) -> list[bytes]:
        try:
            return [piece async for piece in self._pieces()]
        finally:
            self._made = None
