"""kube-scheduler's connection: what is no request is refused, and whoever hangs up is not waited for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from gpuledger.controller import scheduler_connection
from gpuledger.controller.scheduler_connection import (
    HEAD_LIMIT_BYTES,
    Answer,
    Handler,
    served,
)
from gpuledger.formats.scheduler import authorization

SECRET = "an-extenders-secret"
QUESTION = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\nabc"


class Handlers:
    """Answers with the question; some questions wait until a test lets them go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.is_connected: Callable[[], bool] = lambda: True

    async def echo(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        return Answer(body)

    async def wait(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        self.is_connected = is_connected
        self.asked.set()
        await self.goes_on.wait()
        return Answer(body)

    async def fail(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        raise ZeroDivisionError

    def by_path(self) -> dict[str, Handler]:
        return {"/echo": self.echo, "/wait": self.wait, "/fail": self.fail}


@pytest.fixture
def handlers() -> Handlers:
    """Return handlers that nobody has asked yet."""
    return Handlers()


@asynccontextmanager
async def connected(
    handlers: Handlers, secret: str = ""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with served(handlers.by_path(), "127.0.0.1", 0, secret) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        yield reader, writer
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_questions_come_one_after_the_other_on_one_connection(handlers: Handlers) -> None:
    async with connected(handlers) as (reader, writer):
        for _ in range(3):
            writer.write(QUESTION)
            assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_a_question_may_come_in_pieces_of_any_size(handlers: Handlers) -> None:
    async with connected(handlers) as (reader, writer):
        for byte in QUESTION:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_a_client_that_says_so_finds_the_connection_closed(handlers: Handlers) -> None:
    for question in (QUESTION.replace(b"Host: x", b"Connection: close"), QUESTION.replace(b"HTTP/1.1", b"HTTP/1.0")):
        async with connected(handlers) as (reader, writer):
            writer.write(question)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"Connection: close\r\n\r\nabc")


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),  # TLS
        (b"POST /echo HTTP/2\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000), 400),
        (b"POST /echo HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT_BYTES, 431),
        (b"x" * (HEAD_LIMIT_BYTES + 1), 400),
        (QUESTION.replace(b"echo", b"other"), 404),
        (b"GET /echo HTTP/1.1\r\n\r\n", 404),
        (QUESTION.replace(b"echo", b"fail"), 200),  # a text: kube-scheduler shows other statuses beside its secret
    ],
)
async def test_what_can_not_be_answered_is_refused_and_the_connection_closed(
    handlers: Handlers, question: bytes, status: int
) -> None:
    async with connected(handlers) as (reader, writer):
        writer.write(question)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nConnection: close\r\n" in answer


KNOWN = f"Authorization: {authorization(SECRET)}".encode()


@pytest.mark.parametrize("path", [b"/echo", b"/wait", b"/fail", b"/other", b"/"])
@pytest.mark.parametrize(
    "proof",
    [
        b"Host: x",
        b"Authorization: Basic",
        f"Authorization: {authorization(SECRET[:-1])}".encode(),
        f"Authorization: {authorization(SECRET + 'x')}".encode(),
        f"Authorization: Bearer {SECRET}".encode(),
        f"Authorization: {SECRET}".encode(),
        f"X-Authorization: {authorization(SECRET)}".encode(),
    ],
)
async def test_who_does_not_know_the_secret_finds_nothing_and_learns_nothing(
    handlers: Handlers, proof: bytes, path: bytes
) -> None:
    """Nor does its body have to come before it is told."""
    async with connected(handlers, SECRET) as (reader, writer):
        writer.write(QUESTION.replace(b"/echo", path).replace(b"Host: x", proof).removesuffix(b"abc"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert body == b"nothing is asked here\n"
    assert not handlers.asked.is_set()


async def test_each_question_needs_the_secret(handlers: Handlers) -> None:
    async with connected(handlers, SECRET) as (reader, writer):
        writer.write(QUESTION.replace(b"Host: x", KNOWN))
        assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.write(QUESTION)
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")


async def test_a_client_with_a_secret_that_nobody_asked_for_is_answered(handlers: Handlers) -> None:
    """Such as a kube-scheduler that was given one before the operator was started without."""
    async with connected(handlers) as (reader, writer):
        writer.write(QUESTION.replace(b"Host: x", KNOWN))
        assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_questions_may_be_long_one_after_the_other(handlers: Handlers) -> None:
    body = b"x" * (3 * HEAD_LIMIT_BYTES)
    question = b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with connected(handlers) as (reader, writer):
        for _ in range(3):
            writer.write(question)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(len(body)) == body


async def test_a_body_may_come_in_chunks(handlers: Handlers) -> None:
    async with connected(handlers) as (reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
        assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_a_body_that_is_too_long_is_not_waited_for(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_connection, "BODY_LIMIT_BYTES", 10)
    async with connected(handlers) as (reader, writer):
        writer.write(QUESTION.replace(b"Length: 3", b"Length: 99") + b"x" * 10)
        assert (await reader.read()).endswith(b"\r\n\r\nmore than 10 bytes\n")


async def test_two_questions_at_once_are_none(handlers: Handlers) -> None:
    """No client of ours sends them; what they would hold is bounded."""
    async with connected(handlers) as (reader, writer):
        writer.write(QUESTION.replace(b"echo", b"wait") + QUESTION)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_who_sends_without_end_while_a_question_is_answered_is_cut_off(handlers: Handlers) -> None:
    async with connected(handlers) as (reader, writer):
        writer.write(QUESTION.replace(b"echo", b"wait"))
        await handlers.asked.wait()
        writer.write(b"x" * (HEAD_LIMIT_BYTES + 1))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert not handlers.is_connected()


async def test_the_end_waits_until_who_is_still_heard_has_an_answer(handlers: Handlers) -> None:
    async with served(handlers.by_path(), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(QUESTION.replace(b"echo", b"wait"))
        await handlers.asked.wait()
        asyncio.get_running_loop().call_later(0.05, handlers.goes_on.set)
    assert await reader.read() == ANSWER
    writer.close()
    await writer.wait_closed()


async def test_the_end_does_not_wait_for_who_has_hung_up(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_connection, "LONGEST_STOP_S", 3_600.0)
    async with connected(handlers) as (_, writer):
        writer.write(QUESTION.replace(b"echo", b"wait"))
        await handlers.asked.wait()
        writer.close()
        while handlers.is_connected():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
