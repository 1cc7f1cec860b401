"""Who reads the metrics costs the operator one text, however many and however slow they are."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientPayloadError, ClientSession, web
from aiohttp.test_utils import TestServer

from gpuledger.controller.telemetry import metrics as scrapes
from gpuledger.controller.telemetry.metrics import MOST_READERS, Scrapes

PIECE = b"x" * 1_000_000
"""More than fits into a connection whose reader does not read."""


class Source:
    """Makes texts of so many pieces, once it may."""

    def __init__(self, pieces: int) -> None:
        self.made = 0
        self.begun = asyncio.Event()
        self.may = asyncio.Event()
        self._pieces = pieces

    async def pieces(self) -> AsyncIterator[bytes]:
        self.made += 1
        self.begun.set()
        await self.may.wait()
        for _ in range(self._pieces):
            yield PIECE


async def serve(source: Source) -> TestServer:
    application = web.Application()
    application.add_routes([web.get("/metrics", Scrapes(source.pieces, "text/plain").answer)])
    server = TestServer(application)
    await server.start_server()
    return server


async def test_all_who_ask_at_the_same_time_share_one_text_and_the_next_gets_a_new_one() -> None:
    source = Source(pieces=1)
    async with await serve(source) as server, ClientSession() as client:
        url = server.make_url("/metrics")
        asked = [asyncio.create_task(client.get(url)) for _ in range(MOST_READERS)]
        await source.begun.wait()
        source.may.set()
        answers = [await (await each).read() for each in asked]
        assert answers == [PIECE] * MOST_READERS
        assert source.made == 1
        assert await (await client.get(url)).read() == PIECE
        assert source.made == 2


async def test_only_so_many_read_at_the_same_time() -> None:
    source = Source(pieces=40)
    source.may.set()
    async with await serve(source) as server, ClientSession() as client:
        url = server.make_url("/metrics")
        slow = [await client.get(url) for _ in range(MOST_READERS)]
        refused = await client.get(url)
        assert (refused.status, await refused.text()) == (
            503,
            "8 other requests are reading the metrics: retry later\n",
        )
        for response in slow:
            assert len(await response.read()) == 40 * len(PIECE)
        async with client.get(url) as last:
            assert last.status == 200


async def test_who_reads_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes, "READER_S", 0.2)
    source = Source(pieces=40)
    source.may.set()
    async with await serve(source) as server, ClientSession() as client:
        slow = await client.get(server.make_url("/metrics"))
        await asyncio.sleep(0.5)
        with pytest.raises(ClientPayloadError):
            await slow.read()
