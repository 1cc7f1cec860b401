"""A reverse proxy that stands between a client and its server, and lets things go wrong.

    proxy = Proxy.before_api_server(installation.kubeconfig)
    with proxy:
        installation.start_operator(proxy.kubeconfig_from(installation.kubeconfig))
        lost = proxy.arm(binding("my-pod"), LoseAnswer())
        ...
        lost.wait()

It runs on its own event loop, in its own thread. It listens without TLS on 127.0.0.1, and passes on the client's
credentials. It keeps no state about server or client, so either can be killed and come back. What comes in one watch
stays in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson
import yaml
from aiohttp import web
from yarl import URL

from control_plane import free_port
from faults.kinds import Answer, ApplyLate, Delay, Drop, EndWatch, Fault, Hold, HoldEvents, LoseAnswer, Weather
from faults.requests import Match, Request, of_kind

WAIT_S = 30.0
"""How long a test waits for a fault to happen on a slow machine. Never how long it should take."""

LOOK_AGAIN_S = 0.5
"""How often a silent watch is looked at, whether its client is still there."""

BUFFER_BYTES = 4 * 1024 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024
KEEP_ALIVE_S = 3600.0
BACKLOG = 128
LOG_LINES = 20_000
OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade"})


class _Cut(Exception):  # noqa: N818
    """The client gets no answer."""


class Armed:
    """A fault that waits for its requests. `hit` is set when the first of them has come to where the fault is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, match: Match, fault: Fault, times: int | None, skip: int):
        self.match, self.fault = match, fault
        self.hit, self.done = threading.Event(), threading.Event()
        self.statuses: list[int] = []
        """What the server has answered to the requests, in order; 0 where it did not."""
        self.seen = 0
        """Requests that matched, those that were let through too."""
        self.requests: list[Request] = []
        """Those that the fault has taken."""
        self._loop, self._times, self._skip = loop, times, skip
        self._finished = 0
        self._released = asyncio.Event()
        self._is_cut = False

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the fault has happened for the first time; fail with a sentence when it never does."""
        assert self.hit.wait(timeout_s), f"after {timeout_s:g} s there was no {self.fault} of a {self.match}"

    def wait_done(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the fault is over, for every request that it was meant for."""
        assert self.done.wait(timeout_s), f"after {timeout_s:g} s {self.fault} of a {self.match} is not over"

    def release(self) -> None:
        """Let go what is held, now and from now on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def cut(self) -> None:
        """Cut the connections of what is held, now and from now on: who waits behind the proxy has died."""
        self._is_cut = True
        self.release()

    def takes(self, request: Request) -> bool:
        """Return whether the fault happens to a request, and count it. On the proxy's loop."""
        if not self.match.holds_for(request):
            return False
        self.seen += 1
        return self.seen > self._skip and (self._times is None or self.seen <= self._skip + self._times)

    async def released(self) -> None:
        """Wait for the test. On the proxy's loop."""
        await self._released.wait()
        if self._is_cut:
            raise _Cut

    def finish(self, status: int) -> None:
        """Record that a request is over, with the server's answer."""
        self.statuses.append(status)
        self._finished += 1
        if self._finished == self._times:
            self.done.set()


@dataclass
class Exchange:
    """A request and what came of it: the server's status, 0 where it did not answer."""

    at_s: float
    request: str
    status: int = 0
    fault: Fault | None = None

    def __str__(self) -> str:
        return (
            f"{self.at_s:8.3f} s  {self.request}: {self.fault or 'passed'}, the server said {self.status or 'nothing'}"
        )


def listening_socket() -> socket.socket:
    """Return a socket that listens at a port of its own."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", free_port()))
    found.listen(BACKLOG)
    return found


@dataclass(eq=False)
class _Watch:
    """A watch that runs: events, then what is to happen to it, in one queue, so that all stays in order."""

    request: Request
    incoming: web.Request
    queue: asyncio.Queue[bytes | Armed | None] = field(default_factory=asyncio.Queue)


class Proxy:
    """One client's way to one server: `with Proxy(...) as proxy:`."""

    def __init__(self, upstream: str, authority: Path | None = None, token: str | None = None) -> None:
        """Stand before a server, given by its URL and, for https, the file with its CA.

        The token is for clients that send theirs by TLS only, such as all that are written in Go.
        """
        self.upstream = upstream.rstrip("/")
        self._socket = listening_socket()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.weather: Weather | None = None
        self.exchanges: deque[Exchange] = deque(maxlen=LOG_LINES)
        self._credentials = [("Authorization", f"Bearer {token}")] if token else []
        self._trust = ssl.create_default_context(cafile=authority) if authority else None
        self.armed: tuple[Armed, ...] = ()
        """The faults that wait for requests, or are over but not taken back; the first that takes a request has it."""
        self._arming = threading.Lock()
        self._watches: set[_Watch] = set()
        self._late: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._started, self._stopping = threading.Event(), asyncio.Event()
        self._begin_s = time.monotonic()

    @classmethod
    def before_api_server(cls, kubeconfig: Path) -> Self:
        """Return a proxy before the API server of a kubeconfig."""
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        return cls(cluster["server"], Path(cluster["certificate-authority"]), user["token"])

    def kubeconfig_from(self, kubeconfig: Path) -> Path:
        """Return a kubeconfig with the same account whose requests go through the proxy."""
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        path = kubeconfig.with_name(f"{kubeconfig.stem}.through-{URL(self.url).port}.kubeconfig")
        path.write_text(yaml.safe_dump(config))
        return path

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(WAIT_S), "the proxy does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    # What a test asks for.

    def arm(self, match: Match, fault: Fault, times: int | None = 1, skip: int = 0) -> Armed:
        """Let a fault happen to the next requests that match: `times` of them, all for None, after `skip` others.

        Of several armed faults the first one that takes a request has it; the others count it too.
        """
        armed = Armed(self._loop, match, fault, times, skip)
        with self._arming:
            self.armed = (*self.armed, armed)
        if isinstance(fault, EndWatch | HoldEvents):
            self._loop.call_soon_threadsafe(self._disturb_watches, armed)
        return armed

    def disarm(self, *armed: Armed, cut: bool = False) -> None:
        """Take faults back, all of them without an argument, and let go what they hold, or cut its connections."""
        with self._arming:
            chosen = armed or self.armed
            self.armed = tuple(one for one in self.armed if one not in chosen)
        for one in chosen:
            one.cut() if cut else one.release()

    def report(self) -> str:
        """Return what went wrong so far, line by line: to be printed with a failing test's seed."""
        return "\n".join(str(exchange) for exchange in self.exchanges if exchange.fault)

    # The server, on its own loop.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        application = web.Application(client_max_size=BODY_LIMIT_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=0.1)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._trust or True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            read_bufsize=BUFFER_BYTES,
            timeout=aiohttp.ClientTimeout(),
            skip_auto_headers=("Accept-Encoding", "User-Agent", "Content-Type"),
        )
        async with self._session:
            await runner.setup()
            await web.SockSite(runner, self._socket).start()
            self._started.set()
            await self._stopping.wait()
            self.disarm()
            for task in self._late:
                task.cancel()
            await asyncio.gather(*self._late, return_exceptions=True)
            await runner.cleanup()
        await asyncio.sleep(0.01)  # closed connections are gone a turn of the loop later

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = Request(incoming.method, incoming.raw_path, await incoming.read())
        armed = self._fault_for(request)
        exchange = Exchange(self._now_s(), str(request), fault=armed.fault if armed else None)
        self.exchanges.append(exchange)
        try:
            if request.is_watch:
                return await self._pass_watch(incoming, request, exchange, armed)
            return await self._pass(incoming, request, exchange, armed)
        except (_Cut, aiohttp.ClientError, OSError):
            if incoming.transport:
                incoming.transport.abort()
            return web.Response()
        finally:
            if armed and not isinstance(armed.fault, ApplyLate):
                armed.finish(exchange.status)

    def _fault_for(self, request: Request) -> Armed | None:
        taken = [armed for armed in self.armed if not _is_for_running(armed.fault) and armed.takes(request)]
        if taken:
            taken[0].requests.append(request)
            return taken[0]
        return self._strike(request.kind)

    def _strike(self, kind: str) -> Armed | None:
        fault = self.weather.strike(kind) if self.weather else None
        return Armed(self._loop, of_kind(kind), fault, 1, 0) if fault else None

    def _now_s(self) -> float:
        return time.monotonic() - self._begin_s

    async def _pass(
        self, incoming: web.Request, request: Request, exchange: Exchange, armed: Armed | None
    ) -> web.Response:
        if armed:
            made_up = await self._before(incoming, request, exchange, armed)
            if made_up:
                return made_up
        answer = await self._forward(incoming, request, exchange)
        if armed:
            await _after(armed)
        return answer

    async def _before(
        self, incoming: web.Request, request: Request, exchange: Exchange, armed: Armed
    ) -> web.Response | None:
        """Let happen what comes before the server; return an answer in its place, if there is one."""
        if armed.fault not in (LoseAnswer(), Hold("answer")):
            armed.hit.set()
        match armed.fault:
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case Hold("request"):
                await armed.released()
                if _is_gone(incoming):
                    raise _Cut
            case Drop():
                raise _Cut
            case ApplyLate():
                task = self._loop.create_task(self._apply_late(incoming, request, exchange, armed))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
                raise _Cut
            case Answer():
                return _made_up(armed.fault)
        return None

    async def _apply_late(self, incoming: web.Request, request: Request, exchange: Exchange, armed: Armed) -> None:
        match armed.fault:
            case ApplyLate(None):
                await armed.released()
            case ApplyLate(seconds):
                await asyncio.sleep(seconds or 0)
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._forward(incoming, request, exchange)
        armed.finish(exchange.status)

    async def _forward(self, incoming: web.Request, request: Request, exchange: Exchange) -> web.Response:
        async with self._ask(incoming, request) as answer:
            body = await answer.read()
        exchange.status = answer.status
        return web.Response(status=answer.status, body=body, headers=_headers(answer.headers))

    def _ask(self, incoming: web.Request, request: Request) -> Any:
        url = URL(self.upstream + request.path, encoded=True)
        body = io.BytesIO(request.body) if request.body else None
        headers = [*([] if "Authorization" in incoming.headers else self._credentials), *_headers(incoming.headers)]
        if request.is_watch:  # from 1.37 on, the API server would compress its events, which are to be told apart here
            headers = [(name, value) for name, value in headers if name.lower() != "accept-encoding"]
        return self._session.request(request.method, url, data=body, headers=headers, allow_redirects=False)

    # Watches.

    async def _pass_watch(
        self, incoming: web.Request, request: Request, exchange: Exchange, armed: Armed | None
    ) -> web.StreamResponse:
        if armed:
            made_up = await self._before(incoming, request, exchange, armed)
            if made_up:
                return made_up
        async with self._ask(incoming, request) as answer:
            exchange.status = answer.status
            response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
            await response.prepare(incoming)
            if armed:
                await _after(armed)
            async with self._running(_Watch(request, incoming), answer) as watch:
                async for line in self._events(watch):
                    await response.write(line)
            await response.write_eof()
            return response

    @contextlib.asynccontextmanager
    async def _running(self, watch: _Watch, answer: aiohttp.ClientResponse) -> AsyncIterator[_Watch]:
        """Keep a watch among those that run, and read its events."""
        # kube-scheduler asks for protobuf, whose events end anywhere: what has come is passed on.
        text = answer.content_type == "application/json"
        receive = answer.content.readline if text else answer.content.readany

        async def read() -> None:
            while part := await receive():
                watch.queue.put_nowait(part)

        reading = self._loop.create_task(read())
        reading.add_done_callback(lambda _: watch.queue.put_nowait(None))
        self._watches.add(watch)
        for armed in self.armed:
            if _is_for_running(armed.fault) and armed.takes(watch.request):
                watch.queue.put_nowait(armed)
        try:
            yield watch
            if reading.done():
                await reading  # raises if the server has broken off
        finally:
            self._watches.discard(watch)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _disturb_watches(self, armed: Armed) -> None:
        for watch in self._watches:
            if not _is_gone(watch.incoming) and armed.takes(watch.request):
                watch.queue.put_nowait(armed)

    async def _events(self, watch: _Watch) -> AsyncIterator[bytes]:
        """Yield the events until the watch ends or its client is gone; between them, what is to happen happens."""
        while not _is_gone(watch.incoming):
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    item = await watch.queue.get()
            except TimeoutError:
                continue
            if item is None:
                return
            armed = item if isinstance(item, Armed) else self._strike(watch.request.kind.replace("watch", "event"))
            if armed is not None:
                await self._happen(watch, armed)
                if isinstance(armed.fault, EndWatch):
                    if armed.fault.code is not None:
                        yield _error_event(armed.fault.code)
                    return
            if isinstance(item, bytes):
                yield item

    async def _happen(self, watch: _Watch, armed: Armed) -> None:
        self.exchanges.append(Exchange(self._now_s(), f"running {watch.request}", 200, armed.fault))
        armed.hit.set()
        match armed.fault:
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case HoldEvents():
                await armed.released()
        armed.finish(200)


async def _after(armed: Armed) -> None:
    """Let happen what comes after the server has answered."""
    armed.hit.set()
    match armed.fault:
        case LoseAnswer():
            raise _Cut
        case Hold("answer"):
            await armed.released()


def _is_for_running(fault: Fault) -> bool:
    return isinstance(fault, EndWatch | HoldEvents)


def _is_gone(incoming: web.Request) -> bool:
    return incoming.transport is None or incoming.transport.is_closing()


def _headers(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in OF_ONE_CONNECTION]


def _status_object(code: int) -> dict[str, object]:
    reasons = {409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests", 503: "ServiceUnavailable"}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "made up by the test",
        "reason": reasons.get(code, "InternalError"),
        "code": code,
    }


def _made_up(fault: Answer) -> web.Response:
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    body = orjson.dumps(_status_object(fault.status))
    return web.Response(status=fault.status, body=body, headers=headers, content_type="application/json")


def _error_event(code: int) -> bytes:
    return orjson.dumps({"type": "ERROR", "object": _status_object(code)}) + b"\n"
