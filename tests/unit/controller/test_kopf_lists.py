"""Kopf's lists are noticed, by the requests that it really sends: what a watch has missed is in none of its events."""

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from gpuledger.controller.kopf_lists import LISTED_KINDS, KopfLists

PATHS = ("/api/v1/nodes", "/api/v1/pods", "/apis/gpuledger.dev/v1alpha1/gpuallocations")


async def ask(lists: KopfLists, *paths: str, status: int = 200) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server, ClientSession(trace_configs=[lists.trace()]) as session:
        for path in paths:
            async with session.get(server.make_url(path)):
                pass


async def test_the_first_lists_are_complete_when_each_kind_was_listed() -> None:
    lists = KopfLists()
    await ask(lists, *PATHS[:-1], "/api/v1/namespaces")
    assert not lists.first.is_set()
    await ask(lists, PATHS[-1])
    assert lists.first.is_set()
    assert not lists.again.is_set()
    assert {path.rpartition("/")[2] for path in PATHS} == set(LISTED_KINDS)


@pytest.mark.parametrize(
    ("query", "status", "noticed"), [("", 200, True), ("?watch=true", 200, False), ("", 500, False)]
)
async def test_a_later_list_is_noticed_and_a_watch_or_a_failure_is_not(query: str, status: int, noticed: bool) -> None:
    lists = KopfLists()
    await ask(lists, *PATHS)
    await ask(lists, PATHS[1] + query, status=status)
    assert lists.again.is_set() == noticed


async def test_the_lists_of_the_plain_watch_of_cards_count_too() -> None:
    lists = KopfLists()
    await ask(lists, *PATHS[:-1])
    listed = lists.listing()
    assert not lists.first.is_set()
    listed(set())
    assert lists.first.is_set()
    assert not lists.again.is_set()
    lists.listing()(set())
    assert lists.again.is_set()
