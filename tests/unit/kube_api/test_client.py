"""What the API server answers becomes one of our errors."""

import asyncio
import gc
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client import Configuration

from gpuledger.kube_api.client import (
    CONNECTIONS,
    LONG_BYTES,
    LONGEST_LINE_BYTES,
    LONGEST_WAIT_S,
    PAGE_BYTES,
    KubeClient,
    pages_of,
)
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.errors import AnswerTooLong, ApiError, Conflict, Denied, Invalid, NotFound, Unreachable


async def refusal(status: int, text: str = "", headers: dict[str, str] | None = None) -> ApiError:
    """Return the error of a request that a server answers so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    application = web.Application()
    application.router.add_get("/api", answer)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            with pytest.raises(ApiError) as caught:
                await client.request("GET", "/api")
        finally:
            await client.close()
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ApiError),
        (401, Denied),
        (403, Denied),
        (404, NotFound),
        (408, Unreachable),
        (409, Conflict),
        (410, Conflict),
        (422, Invalid),
        (429, Unreachable),
        (500, Unreachable),
        (503, Unreachable),
    ],
)
async def test_a_status_says_what_can_be_done_about_it(status: int, kind: type[ApiError]) -> None:
    error = await refusal(status, '{"message": "the reason"}')
    assert (type(error), error.status) == (kind, status)
    assert str(error) == f"GET /api: {status}: the reason"


async def test_an_answer_that_is_no_status_object_is_quoted() -> None:
    assert str(await refusal(503, " no backend \n")) == "GET /api: 503: no backend"


@pytest.mark.parametrize(
    ("header", "wait_s"), [("7", 7.0), ("3600", LONGEST_WAIT_S), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)]
)
async def test_who_asks_to_be_left_alone_is_for_a_while(header: str, wait_s: float) -> None:
    assert (await refusal(429, headers={"Retry-After": header})).retry_after_s == wait_s


async def test_a_burst_of_requests_shares_few_connections_and_each_is_answered() -> None:
    connections: set[object] = set()

    async def answer(request: web.Request) -> web.Response:
        connections.add(request.transport)
        return web.json_response({"number": request.query["number"]})

    application = web.Application()
    application.router.add_get("/api", answer)
    numbers = [str(number) for number in range(4 * CONNECTIONS)]
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            asked = (client.request("GET", "/api", parameters={"number": number}) for number in numbers)
            assert [found["number"] for found in await asyncio.gather(*asked)] == numbers
        finally:
            await client.close()
    assert len(connections) <= CONNECTIONS


async def test_a_list_of_long_objects_is_read_in_smaller_pages_and_none_is_missing() -> None:
    sizes = [100] * 150 + [1_000_000] * 20 + [100] * 100
    asked: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        asked.append(limit)
        items = [{"n": n, "text": "x" * sizes[n]} for n in range(begin, min(begin + limit, len(sizes)))]
        token = str(begin + limit) if begin + limit < len(sizes) else ""
        return web.json_response({"metadata": {"continue": token, "resourceVersion": "7"}, "items": items})

    application = web.Application()
    application.router.add_get("/api/v1/pods", answer)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            pages = [[*page] async for page in client.pages("/api/v1/pods")]
        finally:
            await client.close()
    assert [item["n"] for page in pages for item in page] == list(range(len(sizes)))
    assert max(sum(len(item["text"]) for item in page) for page in pages) <= PAGE_BYTES
    assert len(asked) < 25, "pages grow again where objects are short"


class Traced(dict[str, Any]):
    """An object of which a test can tell that it is gone."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity


async def test_one_page_of_a_list_is_in_memory_at_a_time() -> None:
    """Whatever those keep who go through it: a page, or what they have made of its objects."""
    alive: weakref.WeakSet[Traced] = weakref.WeakSet()
    most = 0

    async def request(
        method: str, path: str, *, parameters: Mapping[str, str], longest_bytes: int | None
    ) -> dict[str, Any]:
        nonlocal most
        begin = int(parameters.get("continue", "0"))
        gc.collect()
        most = max(most, len(alive))
        items = [Traced(number=number) for number in range(begin, begin + 10)]
        for each in items:
            alive.add(each)
        token = str(begin + 10) if begin < 90 else ""
        return {"metadata": {"resourceVersion": "7", "continue": token}, "items": items}

    client = KubeClient(Configuration(host="http://localhost"))
    client.request = request  # type: ignore[assignment, method-assign]
    try:
        picked = await KubeReads(client).pods_of_node("node-a", lambda pod: int(pod["number"]))
    finally:
        await client.close()
    assert picked == list(range(100))
    assert most <= 1, "the last one that was picked from"


async def test_long_answers_are_read_two_at_a_time_and_keep_no_short_one_waiting() -> None:
    """Dozens of pods are read at once, and each can be as long as etcd takes."""
    begun, goes_on = asyncio.Semaphore(0), asyncio.Event()

    async def long(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"text": "' + b"x" * LONG_BYTES)
        begun.release()
        await goes_on.wait()
        await response.write(b'xx"}')
        return response

    async def short(request: web.Request) -> web.Response:
        return web.json_response({})

    application = web.Application()
    application.router.add_get("/long", long)
    application.router.add_get("/short", short)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            reading = [asyncio.create_task(client.request("GET", "/long")) for _ in range(8)]
            for _ in reading:
                await begun.acquire()
            assert await client.request("GET", "/short") == {}
            assert client._long_answers.locked()
            goes_on.set()
            assert len(await asyncio.gather(*reading)) == len(reading)
        finally:
            await client.close()
    assert not client._long_answers.locked()


async def test_a_list_that_expires_between_two_pages_ends_with_that_error_and_does_not_go_on_from_another_moment() -> (
    None
):
    """The answer to an expired token has a token of its own, with which the rest would be of another moment."""
    asked: list[str] = []

    async def request(
        method: str, path: str, *, parameters: Mapping[str, str], longest_bytes: int | None
    ) -> dict[str, Any]:
        asked.append(parameters.get("continue", ""))
        if parameters.get("continue"):
            raise Conflict("GET /api/v1/pods: 410: the provided continue parameter is too old", 410)
        return {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"metadata": {"name": "a"}}]}

    pages = pages_of(request, "/api/v1/pods")
    assert [item["metadata"]["name"] for item in (await anext(pages))["items"]] == ["a"]
    with pytest.raises(Conflict, match="too old") as error:
        await anext(pages)
    assert error.value.status == 410
    assert asked == ["", "next"]


async def test_an_object_that_is_too_long_even_alone_is_an_error() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": ["x" * (LONGEST_LINE_BYTES + 1)]})

    application = web.Application()
    application.router.add_get("/api/v1/pods", answer)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            with pytest.raises(AnswerTooLong):
                [page async for page in client.pages("/api/v1/pods")]
        finally:
            await client.close()


async def test_an_event_as_long_as_an_object_can_be_is_read_and_a_longer_one_is_skipped() -> None:
    """Etcd stores 1.5 MiB, and Go's JSON writes `<` in six bytes."""
    longest = b"x" * 6 * 1536 * 1024

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in (longest, 2 * longest, b"next"):
            await response.write(line + b"\n")
        return response

    application = web.Application()
    application.router.add_get("/api", answer)
    async with TestServer(application) as server:
        client = KubeClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            async with client.stream("/api", {"watch": "1"}, silence_s=60.0) as lines:
                assert [len(line) async for line in lines] == [len(longest), len(b"next")]
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("date", "time"),
    [("Sat, 21 Nov 2026 07:28:00 GMT", datetime(2026, 11, 21, 7, 28, tzinfo=UTC)), ("yesterday", None)],
)
async def test_the_servers_clock_is_read_over_a_socket_of_ones_own(
    tmp_path: Path, date: str, time: datetime | None
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"major": "1"}, headers={"Date": date})

    application = web.Application()
    application.router.add_get("/version", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    socket = str(tmp_path / "socket")
    await web.UnixSite(runner, socket).start()
    connector = aiohttp.UnixConnector(socket)
    client = KubeClient(Configuration(host="http://localhost"), connector)
    try:
        assert await client.request("GET", "/version") == {"major": "1"}
        assert await client.server_time() == time
    finally:
        await client.close()
        await runner.cleanup()
    assert connector.closed
