"""Clients that say nothing, too little, or are too many: others are served meanwhile. On both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from gpuledger import serving
from gpuledger.controller.scheduler_connection import Answer, served
from gpuledger.serving import Limits, Port, application_served

pytestmark = pytest.mark.thorough  # processes and timeouts: seconds in which one waits

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
PATIENCE_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Test = Callable[[], Awaitable[None]]
Loop = Callable[[Test], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def in_loop(request: pytest.FixtureRequest) -> Loop:
    """Return what runs a coroutine in an event loop: that of the tests, or the operator's."""

    def run(test: Test) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(limited())

    return run


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Return a certificate that vouches for itself, and its key."""
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=x",
        "-days",
        "1",
    ]
    subprocess.run([*request, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


class Site:
    """An application whose answers wait until they may go on, if they are asked to."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.goes_on = asyncio.Event()

    def application(self) -> web.Application:
        found = web.Application()
        found.router.add_get("/", self._answer)
        found.router.add_get("/wait", self._wait)
        found.router.add_post("/", self._echo)
        return found

    async def _answer(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _wait(self, _: web.Request) -> web.Response:
        self.asked.release()
        await self.goes_on.wait()
        return web.Response(text="ok")

    async def _echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())


@contextlib.asynccontextmanager
async def clients(at: Port, number: int) -> AsyncIterator[list[Streams]]:
    """Connect clients that say nothing."""
    opened = [await asyncio.open_connection(*at.address) for _ in range(number)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def ask(streams: Streams, request: bytes = GET) -> bytes:
    """Return the first line of the answer, empty if the connection ends."""
    reader, writer = streams
    with contextlib.suppress(ConnectionError):
        writer.write(request)
        return await reader.readline()
    return b""


async def is_closed(streams: Streams) -> bool:
    """Wait until the server has closed a connection."""
    with contextlib.suppress(ConnectionError):
        return await streams[0].read() == b""
    return True


def test_clients_that_say_nothing_have_no_more_connections_than_there_are_and_others_are_answered(
    in_loop: Loop,
) -> None:
    async def test() -> None:
        async with (
            application_served(Site().application(), "127.0.0.1", 0, Limits(connections=3)) as at,
            clients(at, 20) as silent,
            clients(at, 1) as (other,),
        ):
            assert await ask(other) == b"HTTP/1.1 200 OK\r\n"
            assert len(at.connections) <= 3
            for each in silent[:17]:
                assert await is_closed(each)

    in_loop(test)


def test_while_all_are_being_answered_the_next_one_waits_and_nobody_is_cut_off(in_loop: Loop) -> None:
    async def test() -> None:
        site = Site()
        async with (
            application_served(site.application(), "127.0.0.1", 0, Limits(connections=2)) as at,
            clients(at, 2) as two,
        ):
            asking = [asyncio.create_task(ask(each, GET.replace(b"/ ", b"/wait "))) for each in two]
            for _ in asking:
                await site.asked.acquire()
            async with clients(at, 1) as (third,):
                last = asyncio.create_task(ask(third))
                await asyncio.sleep(0.05)
                assert len(at.connections) == 2
                site.goes_on.set()
                assert {await each for each in (*asking, last)} == {b"HTTP/1.1 200 OK\r\n"}

    in_loop(test)


@pytest.mark.parametrize("begun", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nHost: "])
def test_a_head_that_does_not_come_ends_the_connection(
    in_loop: Loop, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.1)

    async def test() -> None:
        async with (
            application_served(Site().application(), "127.0.0.1", 0) as at,
            served({}, "127.0.0.1", 0) as extender,
            clients(at, 1) as (one,),
            clients(extender, 1) as (other,),
        ):
            for streams in (one, other):
                streams[1].write(begun)
                assert await is_closed(streams)

    in_loop(test)


def test_a_head_that_comes_byte_by_byte_has_no_more_time(in_loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.2)

    async def test() -> None:
        async with application_served(Site().application(), "127.0.0.1", 0) as at, clients(at, 1) as (one,):
            assert await ask(one) == b"HTTP/1.1 200 OK\r\n"  # nor has that of a later request
            await one[0].readuntil(b"ok")
            begin_s = asyncio.get_running_loop().time()
            closed = asyncio.create_task(is_closed(one))
            for byte in GET.removesuffix(b"\r\n") + b"X: " + 500 * b"x":
                if closed.done():
                    break
                one[1].write(bytes([byte]))
                await asyncio.sleep(0.02)
            assert await closed
            assert asyncio.get_running_loop().time() - begin_s < 5.0

    in_loop(test)


def test_what_is_no_http_is_told_to_its_client_and_fills_no_log(
    in_loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with application_served(Site().application(), "127.0.0.1", 0) as at, clients(at, 1) as (one,):
            assert await ask(one, b"\x16\x03\x01\r\n\r\n") == b"HTTP/1.0 400 Bad Request\r\n"

    in_loop(test)
    assert caplog.records == []


def test_a_defect_of_ours_is_in_the_log(in_loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise ZeroDivisionError

    async def test() -> None:
        broken = web.Application()
        broken.router.add_get("/", fail)
        async with application_served(broken, "127.0.0.1", 0) as at, clients(at, 1) as (one,):
            assert await ask(one) == b"HTTP/1.1 500 Internal Server Error\r\n"

    in_loop(test)
    assert "ZeroDivisionError" in caplog.text


def test_a_body_that_does_not_come_ends_the_connection(in_loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.1)

    async def answer(body: bytes, is_connected: Callable[[], bool]) -> Answer:
        return Answer(body)

    async def test() -> None:
        async with (
            application_served(Site().application(), "127.0.0.1", 0) as at,
            served({"/filter": answer}, "127.0.0.1", 0) as extender,
            clients(at, 1) as (one,),
            clients(extender, 1) as (other,),
        ):
            half = POST.replace(b"Length: 2", b"Length: 3")
            assert await ask(one, half.replace(b"/filter", b"/")) == b"HTTP/1.1 408 Request Timeout\r\n"
            assert await ask(other, half) == b""

    in_loop(test)


def test_a_connection_may_rest_between_requests_but_not_for_ever(
    in_loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.05)
    monkeypatch.setattr(serving, "IDLE_S", 0.4)

    async def answer(body: bytes, is_connected: Callable[[], bool]) -> Answer:
        return Answer(body)

    async def test() -> None:
        async with (
            application_served(Site().application(), "127.0.0.1", 0) as at,
            served({"/filter": answer}, "127.0.0.1", 0) as extender,
        ):
            for opened, request, end in ((at, GET, b"ok"), (extender, POST, b"{}")):
                async with clients(opened, 1) as (one,):
                    for _ in range(2):
                        assert await ask(one, request) == b"HTTP/1.1 200 OK\r\n"
                        await one[0].readuntil(end)
                        await asyncio.sleep(0.2)  # four times what a head may take
                    assert await is_closed(one)

    in_loop(test)


def test_what_came_while_the_process_stood_still_counts_as_in_time(
    in_loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.1)

    async def test() -> None:
        async with application_served(Site().application(), "127.0.0.1", 0) as at, clients(at, 1) as (one,):
            while not at.connections:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0)
            await asyncio.sleep(0.02)
            one[1].write(GET)
            subprocess.run(["sleep", "0.2"], check=True)  # noqa: ASYNC221 - this loop is to stand still
            assert await one[0].readline() == b"HTTP/1.1 200 OK\r\n"

    in_loop(test)


def test_clients_that_begin_no_tls_take_no_more_connections_either(
    in_loop: Loop, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 1.0)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    trust.check_hostname = False

    async def test() -> None:
        async with (
            application_served(Site().application(), "127.0.0.1", 0, Limits(connections=3), context) as at,
            clients(at, 20) as silent,
        ):
            other = await asyncio.open_connection(*at.address, ssl=trust)
            assert await ask(other) == b"HTTP/1.1 200 OK\r\n"
            assert len(at.connections) <= 3
            other[1].close()
            for each in silent:  # those with a connection, too, after their time
                assert await is_closed(each)

    in_loop(test)


def test_requests_and_connections_come_at_a_rate_whoever_sends_them(in_loop: Loop) -> None:
    limits = Limits(connections_per_s=20, requests_per_s=20)

    async def test() -> None:
        clock = asyncio.get_running_loop().time
        async with application_served(Site().application(), "127.0.0.1", 0, limits) as at:
            begin_s = clock()
            async with clients(at, 1) as (one,):
                for _ in range(30):  # a second's worth at once, the others one after the other
                    await ask(one)
                    await one[0].readuntil(b"ok")
            assert clock() - begin_s > 0.4
            begin_s = clock()
            async with clients(at, 30) as many:
                assert await ask(many[-1]) == b"HTTP/1.1 200 OK\r\n"
            assert clock() - begin_s > 0.4

    in_loop(test)


def test_a_port_that_is_taken_is_said(in_loop: Loop) -> None:
    async def test() -> None:
        async with application_served(Site().application(), "127.0.0.1", 0) as at:
            with pytest.raises(OSError, match="in use"):
                async with application_served(Site().application(), *at.address):
                    pass

    in_loop(test)


def test_descriptors_that_run_out_do_not_end_the_server() -> None:
    """Whoever is waiting is answered as soon as there are some again."""
    program = Path(__file__).with_name("without_descriptors.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "HTTP/1.1 200 OK\n", done.stderr


def test_a_server_takes_as_many_descriptors_as_the_process_may_have() -> None:
    code = (
        "import resource\n"
        "from gpuledger.serving import raise_descriptor_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "print(raise_descriptor_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
