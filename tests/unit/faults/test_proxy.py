"""The proxy that the cluster's tests put between client and server, against a server of this test."""

import asyncio
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from faults.kinds import Answer, ApplyLate, Delay, Drop, EndWatch, Fault, Hold, HoldEvents, LoseAnswer, Weather
from faults.proxy import Armed, Proxy, listening_socket
from faults.requests import binding, watching

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

HOST = "127.0.0.1"
BINDING = "/api/v1/namespaces/default/pods/a/binding"
WATCH = "/api/v1/pods?watch=1&resourceVersion=7"


@dataclass
class Server:
    """Answers what it was asked, and shows the events that a test puts in."""

    port: int
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and body, or for a watch its path only."""
    authorizations: list[str | None] = field(default_factory=list)
    events: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    _runner: web.AppRunner | None = None

    async def start(self, listening: socket.socket | None = None) -> None:
        application = web.Application(client_max_size=10_000_000)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        at_port = web.SockSite(self._runner, listening) if listening else web.TCPSite(self._runner, HOST, self.port)
        await at_port.start()

    async def stop(self) -> None:
        assert self._runner
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = (await request.read()).decode()
        self.seen.append((request.method, request.raw_path, body))
        self.authorizations.append(request.headers.get("Authorization"))
        if "watch" not in request.query:
            return web.json_response({"said": body}, status=201 if request.method == "POST" else 200)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while event := await self.events.get():
            await response.write(event.encode() + b"\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    listening = listening_socket()
    found = Server(listening.getsockname()[1])
    await found.start(listening)
    yield found
    await found.stop()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(f"http://{HOST}:{server.port}") as running:
        yield running


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(proxy.url, timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


async def bind(client: aiohttp.ClientSession, body: str = "{}") -> int:
    async with client.post(BINDING, data=body) as answer:
        await answer.read()
        return answer.status


async def hit(armed: Armed) -> None:
    await asyncio.to_thread(armed.wait)


async def is_cut(request: Awaitable[object]) -> bool:
    try:
        await request
    except aiohttp.ClientConnectionError:
        return True
    return False


async def test_requests_pass_with_body_query_and_credentials_and_answers_with_status_and_headers(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    path = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D&limit=500"
    async with client.get(URL(proxy.url + path, encoded=True), headers={"Authorization": "Bearer token"}) as answer:
        assert answer.status == 200
    async with client.post("/filter", data=io.BytesIO(b"x" * 2_000_000)) as answer:
        assert (answer.status, answer.content_type) == (201, "application/json")
        assert len((await answer.json())["said"]) == 2_000_000
    assert server.seen[0] == ("GET", path, "")
    assert server.authorizations[0] == "Bearer token"


async def test_a_dropped_request_never_reaches_the_server_and_the_next_one_does(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    dropped = proxy.arm(binding("a"), Drop())
    assert await is_cut(bind(client))
    assert dropped.hit.is_set()
    assert server.seen == []
    assert await bind(client) == 201
    assert dropped.statuses == [0]


async def test_a_lost_answer_is_of_a_request_that_was_carried_out(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    lost = proxy.arm(binding("a"), LoseAnswer())
    assert await is_cut(bind(client))
    assert len(server.seen) == 1
    await asyncio.to_thread(lost.wait_done)
    assert lost.statuses == [201]


async def test_a_late_request_is_given_up_at_once_and_carried_out_when_released(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    late = proxy.arm(binding("a"), ApplyLate())
    assert await is_cut(bind(client, "first"))
    assert await bind(client, "second") == 201
    assert not late.done.is_set()
    late.release()
    await asyncio.to_thread(late.wait_done)
    assert [body for _, _, body in server.seen] == ["second", "first"]
    assert late.statuses == [201]


@pytest.mark.parametrize("fault", [Answer(409), Answer(422), Answer(429, retry_after_s=3), Answer(500), Answer(503)])
async def test_a_made_up_answer_looks_like_the_api_servers(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession, fault: Answer
) -> None:
    proxy.arm(binding("a"), fault)
    async with client.post(BINDING, data="{}") as answer:
        found = await answer.json()
    assert (answer.status, found["kind"], found["code"]) == (fault.status, "Status", fault.status)
    assert answer.headers.get("Retry-After") == (str(fault.retry_after_s) if fault.retry_after_s else None)
    assert server.seen == []


async def test_a_delayed_request_arrives_later(server: Server, proxy: Proxy, client: aiohttp.ClientSession) -> None:
    proxy.arm(binding("a"), Delay(0.2))
    begin_s = time.monotonic()
    assert await bind(client, "delayed") == 201
    assert time.monotonic() - begin_s >= 0.2
    assert [body for _, _, body in server.seen] == ["delayed"]


async def test_others_do_not_wait_for_a_delayed_request(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    delayed = proxy.arm(binding("a"), Delay(3_600))
    waiting = asyncio.create_task(bind(client, "delayed"))
    await hit(delayed)
    assert await bind(client, "quick") == 201
    assert [body for _, _, body in server.seen] == ["quick"]
    waiting.cancel()


async def test_a_held_request_passes_when_it_is_released(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    held = proxy.arm(binding("a"), Hold())
    waiting = asyncio.create_task(bind(client))
    await hit(held)
    assert server.seen == []
    held.release()
    assert await waiting == 201


async def test_a_held_request_whose_client_is_gone_is_dropped(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    held = proxy.arm(binding("a"), Hold())
    waiting = asyncio.create_task(bind(client))
    await hit(held)
    await client.close()
    assert await is_cut(waiting)
    held.release()
    await asyncio.to_thread(held.wait_done)
    assert held.statuses == [0]
    assert server.seen == []


async def test_a_held_answer_is_of_a_request_that_was_carried_out(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    held = proxy.arm(binding("a"), Hold("answer"))
    waiting = asyncio.create_task(bind(client))
    await hit(held)
    assert len(server.seen) == 1
    assert not waiting.done()
    held.release()
    assert await waiting == 201


@pytest.mark.parametrize(("what", "arrived"), [("request", 0), ("answer", 1)])
async def test_what_is_held_can_be_cut_off(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession, what: Literal["request", "answer"], arrived: int
) -> None:
    held = proxy.arm(binding("a"), Hold(what), times=None)
    waiting = asyncio.create_task(bind(client))
    await hit(held)
    proxy.disarm(cut=True)
    assert await is_cut(waiting)
    assert len(server.seen) == arrived
    assert await bind(client) == 201


async def test_a_fault_takes_as_many_matching_requests_as_it_is_for_after_those_it_skips(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    proxy.arm(binding("a"), Answer(500), times=2, skip=1)
    proxy.arm(binding("a"), Answer(503), times=None, skip=4)
    proxy.arm(binding("b"), Drop(), times=None)
    assert [await bind(client) for _ in range(7)] == [201, 500, 500, 201, 503, 503, 503]
    proxy.disarm()
    assert await bind(client) == 201


async def next_event(answer: aiohttp.ClientResponse) -> object:
    async with asyncio.timeout(60):
        line = await answer.content.readline()
    return json.loads(line) if line else None


async def test_a_watch_is_shown_event_by_event_and_ends_with_the_servers(
    server: Server, client: aiohttp.ClientSession
) -> None:
    async with client.get(WATCH) as answer:
        for number in range(3):
            server.events.put_nowait(json.dumps({"number": number, "padding": "x" * 300_000}))
            event = await next_event(answer)
            assert isinstance(event, dict)
            assert event["number"] == number
        server.events.put_nowait(None)
        assert await next_event(answer) is None


@pytest.mark.parametrize("code", [410, None])
async def test_a_watch_that_runs_is_ended_with_an_error_event_or_without_a_word(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession, code: int | None
) -> None:
    async with client.get(WATCH) as answer:
        server.events.put_nowait('{"number": 1}')
        assert await next_event(answer) == {"number": 1}
        ended = proxy.arm(watching("pods"), EndWatch(code))
        if code:
            event = await next_event(answer)
            assert isinstance(event, dict)
            assert (event["type"], event["object"]["code"]) == ("ERROR", code)
        assert await next_event(answer) is None
        assert ended.hit.is_set()


async def test_a_watch_is_ended_as_soon_as_it_begins_when_none_runs(
    proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    proxy.arm(watching("pods"), EndWatch(None))
    async with client.get(WATCH) as answer:
        assert await next_event(answer) is None


async def test_held_events_come_in_order_once_they_are_released(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    async with client.get(WATCH) as answer:
        server.events.put_nowait('{"number": 1}')
        assert await next_event(answer) == {"number": 1}
        held = proxy.arm(watching("pods"), HoldEvents())
        await hit(held)
        for number in (2, 3):
            server.events.put_nowait(json.dumps({"number": number}))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await answer.content.readline()
        held.release()
        assert [await next_event(answer), await next_event(answer)] == [{"number": 2}, {"number": 3}]


async def test_a_server_that_is_away_is_a_cut_connection_until_it_is_back(
    server: Server, client: aiohttp.ClientSession
) -> None:
    assert await bind(client) == 201
    await server.stop()
    assert await is_cut(bind(client))
    await server.start()
    assert await bind(client) == 201


async def test_a_watch_whose_server_dies_is_cut_and_does_not_look_ended(
    server: Server, client: aiohttp.ClientSession
) -> None:
    async with client.get(WATCH) as answer:
        server.events.put_nowait('{"number": 1}')
        assert await next_event(answer) == {"number": 1}
        await server.stop()
        with pytest.raises(aiohttp.ClientError):
            await next_event(answer)
    await server.start()


async def test_the_report_names_what_was_injected_and_nothing_else(proxy: Proxy, client: aiohttp.ClientSession) -> None:
    await bind(client)
    proxy.arm(binding("a"), Answer(503))
    await bind(client)
    (line,) = proxy.report().splitlines()
    assert "binding a: Answer(status=503" in line
    assert "the server said nothing" in line


RATES: dict[str, dict[Fault, float]] = {
    "binding": {LoseAnswer(): 0.2, Answer(500): 0.2, Delay(0.1): 0.1},
    "ledger write": {Drop(): 0.5},
}


def struck(seed: int, kinds: list[str]) -> list[tuple[str, Fault | None]]:
    weather = Weather(seed, RATES)
    return [(kind, weather.strike(kind)) for kind in kinds]


def test_weather_repeats_itself_from_its_seed_for_each_kind_alone() -> None:
    bindings = struck(1, ["binding"] * 200)
    mixed = struck(1, ["binding", "ledger write", "read pods"] * 200)
    assert [found for found in mixed if found[0] == "binding"] == bindings
    assert bindings != struck(2, ["binding"] * 200)
    assert {fault for kind, fault in mixed if kind == "read pods"} == {None}


def test_weather_strikes_about_as_often_as_its_rates_say_and_counts_it() -> None:
    weather = Weather(3, RATES)
    for _ in range(2000):
        weather.strike("binding")
    assert set(weather.counts) == {f"binding: {fault}" for fault in RATES["binding"]}
    assert 300 < weather.counts[f"binding: {LoseAnswer()}"] < 500
    assert 130 < weather.counts[f"binding: {Delay(0.1)}"] < 270


@pytest.mark.parametrize(
    "rates",
    [
        {"binding": {Hold(): 0.1}},
        {"binding": {ApplyLate(): 0.1}},
        {"event pods": {Drop(): 0.1}},
        {"binding": {Drop(): 0.6, LoseAnswer(): 0.6}},
    ],
)
def test_weather_refuses_what_would_wait_for_a_test_and_what_can_not_happen(
    rates: dict[str, dict[Fault, float]],
) -> None:
    with pytest.raises(ValueError, match=r"can't happen|add up"):
        Weather(0, rates)


async def test_weather_strikes_requests_and_events_and_can_be_switched_off(
    server: Server, proxy: Proxy, client: aiohttp.ClientSession
) -> None:
    proxy.weather = weather = Weather(0, {"binding": {Answer(503): 1.0}, "event pods": {EndWatch(410): 1.0}})
    assert await bind(client) == 503
    async with client.get(WATCH) as answer:
        server.events.put_nowait("{}")
        event = await next_event(answer)
        assert isinstance(event, dict)
        assert event["type"] == "ERROR"
    proxy.weather = None
    assert await bind(client) == 201
    assert weather.counts == {f"binding: {Answer(503)}": 1, f"event pods: {EndWatch(410)}": 1}


async def test_a_thousand_requests_at_once_get_their_own_answers(
    server: Server, client: aiohttp.ClientSession, proxy: Proxy
) -> None:
    async def ask(number: int) -> bool:
        async with client.post("/bind", data=f'{{"PodName": "{number}"}}') as answer:
            return bool(json.loads((await answer.json())["said"]) == {"PodName": str(number)})

    assert all(await asyncio.gather(*(ask(number) for number in range(1000))))
    assert len(server.seen) == 1000
    assert {exchange.status for exchange in proxy.exchanges} == {201}
