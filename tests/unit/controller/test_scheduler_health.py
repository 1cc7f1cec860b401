"""What kube-scheduler's liveness probe is told: by nobody if the operator hangs, else by kube-scheduler itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuledger.controller import extender_server
from gpuledger.controller.extender_server import SchedulerHealth


class Neighbour:
    """kube-scheduler's /livez."""

    def __init__(self) -> None:
        self.status, self.hangs = 200, False

    async def livez(self, _: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.Event().wait()
        return web.Response(status=self.status, text="what it says")


@pytest.fixture
def neighbour() -> Neighbour:
    """Return a kube-scheduler that lives."""
    return Neighbour()


@pytest.fixture
async def served(neighbour: Neighbour) -> AsyncIterator[TestServer]:
    """Yield where the neighbour listens."""
    application = web.Application()
    application.router.add_get("/livez", neighbour.livez)
    server = TestServer(application)
    await server.start_server()
    yield server
    await server.close()


async def told(url: str, old: bool = False) -> tuple[int, str]:
    """Return status and text of the answer to one probe."""
    health, application = SchedulerHealth(url), web.Application()
    health.has_old_configuration = lambda: old
    application.router.add_get("/", health.answer)
    async with TestClient(TestServer(application)) as client, client.get("/") as answer:
        return answer.status, await answer.text()


async def test_a_neighbour_that_lives_is_well(served: TestServer) -> None:
    assert await told(str(served.make_url("/livez"))) == (200, "ok\n")


async def test_a_neighbour_that_has_the_configuration_of_other_settings_is_to_start_again(served: TestServer) -> None:
    says = "kube-scheduler: it has the configuration of other settings, and is to start again\n"
    assert await told(str(served.make_url("/livez")), old=True) == (503, says)


async def test_a_neighbour_that_says_that_it_is_ill_is_not_live(neighbour: Neighbour, served: TestServer) -> None:
    neighbour.status = 500
    assert await told(str(served.make_url("/livez"))) == (503, "kube-scheduler: /livez says 500: what it says\n")


async def test_a_neighbour_that_hangs_is_not_live(
    neighbour: Neighbour, served: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extender_server, "TIMEOUT_S", 0.01)
    neighbour.hangs = True
    status, text = await told(str(served.make_url("/livez")))
    assert (status, text) == (503, "kube-scheduler: /livez does not answer within 0.01 s\n")


async def test_a_neighbour_that_is_away_is_not_live(served: TestServer) -> None:
    url = str(served.make_url("/livez"))
    await served.close()
    status, text = await told(url)
    assert status == 503
    assert text.startswith("kube-scheduler: /livez can't be asked: ")
