"""Kopf goes on when a watch fails: tested with the requests that it sends, and with how it reads the answers."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from gpuledger.controller import kopf_watches
from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.controller.kopf_watches import KopfWatches
from gpuledger.kube_api import pages

Json = dict[str, Any]


def event(kind: str, **fields: Any) -> bytes:
    """Return an event of a watch, as the API server writes it."""
    return json.dumps({"type": kind, "object": fields}, separators=(",", ":")).encode() + b"\n"


def error(code: int) -> bytes:
    return event("ERROR", reason="made up by the test", code=code)


class Server:
    """An API server that answers each request with the next of its answers: a status, or chunks of a watch."""

    def __init__(self, *answers: int | list[bytes]) -> None:
        self._answers = list(answers)
        self.asked: list[Mapping[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        answer = self._answers.pop(0)
        if isinstance(answer, int):
            return web.Response(status=answer)
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in answer:
            await response.write(chunk)
            await asyncio.sleep(0)
        return response


async def read(server: Server, lists: KopfLists, query: str) -> tuple[int, list[Json]]:
    """Send one request as Kopf does; return its status, and the events in its answer."""
    application = web.Application()
    application.router.add_get("/{path:.*}", server.answer)
    async with (
        TestServer(application) as running,
        ClientSession(middlewares=[KopfWatches(lists)]) as session,
        session.get(running.make_url(f"/api/v1/pods?{query}")) as response,
    ):
        content = b"".join([chunk async for chunk in response.content.iter_chunked(1024)])
        return response.status, [json.loads(line) for line in content.splitlines()]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_watches, "PAUSE_S", 0.0)


async def test_a_watch_that_is_refused_as_too_old_begins_with_the_present_state_and_is_compared_with_it() -> None:
    server, lists = Server(410, 410, [event("ADDED", name="a")]), KopfLists()
    found = await read(server, lists, "watch=true&fieldSelector=x%3Dy&resourceVersion=7")
    assert found == (200, [{"type": "ADDED", "object": {"name": "a"}}])
    assert server.asked[0] == {"watch": "true", "fieldSelector": "x=y", "resourceVersion": "7"}
    assert server.asked[1:] == [{"watch": "true", "fieldSelector": "x=y"}] * 2
    assert lists.again.is_set()


@pytest.mark.parametrize("code", [500, 504, 429])
async def test_a_watch_that_tells_of_an_error_has_just_ended(code: int) -> None:
    lists = KopfLists()
    chunks = [event("ADDED", name="a")[:9], event("ADDED", name="a")[9:] + error(code), event("ADDED", name="b")]
    status, events = await read(Server(chunks), lists, "watch=true&resourceVersion=7")
    assert (status, [each["object"]["name"] for each in events]) == (200, ["a"])
    assert not lists.again.is_set()


async def test_an_error_after_which_kopf_lists_anew_reaches_it() -> None:
    status, events = await read(Server([event("ADDED", name="a"), error(410)]), KopfLists(), "watch=true")
    assert (status, [each["type"] for each in events]) == (200, ["ADDED", "ERROR"])


@pytest.mark.parametrize(("query", "status"), [("limit=500", 410), ("watch=true", 403), ("watch=true", 500)])
async def test_other_answers_are_kopfs_own_business(query: str, status: int) -> None:
    server = Server(status)
    assert await read(server, KopfLists(), query) == (status, [])
    assert len(server.asked) == 1


async def test_a_page_that_is_too_long_is_asked_for_with_fewer_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 1_000)
    asked: list[Mapping[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        items = ["x" * 400] * int(request.query["limit"])
        return web.json_response({"items": items, "metadata": {"continue": "next"}})

    application = web.Application()
    application.router.add_get("/api/v1/pods", answer)
    async with (
        TestServer(application) as running,
        ClientSession(middlewares=[KopfWatches(KopfLists())]) as session,
        session.get(running.make_url("/api/v1/pods?limit=32&continue=here")) as response,
    ):
        assert len((await response.json())["items"]) == 2
    assert asked == [{"limit": limit, "continue": "here"} for limit in ("32", "8", "2")]


@pytest.mark.parametrize("status", [403, 410, 500])
async def test_a_list_that_is_refused_is_kopfs_business(status: int) -> None:
    assert (await read(Server(status), KopfLists(), "limit=200"))[0] == status
