"""Requests to the API server: credentials and TLS from kubernetes-asyncio, JSON by orjson, its errors turned into ours.

kubernetes-asyncio's generated methods cost four times the CPU of the request itself, and every pod that is scheduled
pays for them; so its session is used, and its models are not.

Lists come page by page, none of which is longer than is good for the process that reads it. The API server counts
objects and not bytes, and some of them are a thousand times as long as others. So a page that turns out too long is
broken off and asked for again with fewer objects. So are the lines of a watch bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from kubernetes_asyncio.client import ApiClient, Configuration

from gpuledger import __version__
from gpuledger.kube_api.answers import asked_wait_s, kind_of, message_of, read_json_in_turns
from gpuledger.kube_api.kubeconfig import load
from gpuledger.model.clock import ServerTime
from gpuledger.model.errors import AnswerTooLong, ApiError, Unreachable
from gpuledger.model.json_object import Json

logger = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""A watch event is one line. etcd stores objects of up to 1.5 MiB, and Go's JSON writes some characters six times as
long: `<` becomes `\\u003c`."""

SHOWN_BYTES = 300
"""Of a line that is skipped: name and namespace are among the first fields of an object."""


async def whole_lines(
    chunks: AsyncIterable[bytes], what: str, longest_bytes: int = LONGEST_LINE_BYTES
) -> AsyncIterator[bytes]:
    """Yield the lines of a stream without their ends. One that is longer is skipped and logged: its object is missed.

    What comes after the last end of a line is no line. `what` names the stream in the log.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            size += len(end)
            if size <= longest_bytes:
                yield b"".join((*parts, end))
            else:
                begin = b"".join((*parts, end))[:SHOWN_BYTES].decode(errors="replace")
                logger.error("%s: an event of %d bytes is skipped, which begins with %s", what, size, begin)
            parts, size = [], 0
        size += len(rest)
        parts.append(rest)
        if size > longest_bytes:
            parts = [b"".join(parts)[:SHOWN_BYTES]]


PAGE_SIZE = 200
"""Objects of a page at most: one page is in memory at a time, and a large node has some 20 kB."""

PAGE_BYTES = 6 * 1024 * 1024
"""Of a page with several objects; as Python objects it can take ten times as much."""

LONG_BYTES = 256 * 1024
"""Answers of more bytes are long ones: few are in memory at a time."""

Request = Callable[..., Coroutine[Any, Any, Json]]


class Page(list[Json]):
    """The objects of one page. All pages of a list are of one moment of the cluster, its `version`.

    It is empty when the next one is asked for: one is in memory at a time.
    """

    def __init__(self, answer: Json) -> None:
        super().__init__(answer.get("items") or ())
        self.version = str((answer.get("metadata") or {}).get("resourceVersion") or "")


def fewer(size: int) -> int:
    """Return with how many objects a page is asked for again that was too long with so many."""
    return max(1, size // 4)


def longest_page_bytes(size: int) -> int:
    """Return how long a page of so many objects may be."""
    return PAGE_BYTES if size > 1 else LONGEST_LINE_BYTES


async def nothing() -> None:
    """Wait for nothing."""


async def read_at_most(
    response: aiohttp.ClientResponse,
    longest_bytes: int | None,
    before_long: Callable[[], Coroutine[Any, Any, None]] = nothing,
) -> bytes:
    """Return the body of an answer. Raises AnswerTooLong when it has more bytes; None: it may have any number.

    `before_long` is awaited, once, when it turns out to be long.
    """
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        if size <= LONG_BYTES < size + len(chunk):
            await before_long()
        size += len(chunk)
        if longest_bytes is not None and size > longest_bytes:
            response.close()  # else the rest is read when the connection is given back
            raise AnswerTooLong(f"{response.method} {response.url.path}: longer than {longest_bytes:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def pages_of(request: Request, path: str, parameters: Mapping[str, str] | None = None) -> AsyncIterator[Json]:
    """Yield the pages of a list as the API server answers them, all from one moment of the cluster. Raises ApiError.

    Each is emptied when the next one is asked for: take what you need of it.
    """
    query, size = dict(parameters or {}), PAGE_SIZE
    while True:
        asked, longest_bytes = {"limit": str(size), **query}, longest_page_bytes(size)
        try:
            page = await request("GET", path, parameters=asked, longest_bytes=longest_bytes)
        except AnswerTooLong:
            if size == 1:
                raise
            size = fewer(size)
            continue
        token = (page.get("metadata") or {}).get("continue")
        yield page
        page.clear()  # before the next one is read: one is in memory at a time
        if not token:
            return
        query["continue"] = token
        size = min(PAGE_SIZE, 2 * size)


REQUEST_TIMEOUT_S = 10.0

CONNECTIONS = 48
"""To the API server at once: a dozen watches, and as many requests as make it faster. A burst of pods would open more,
and each costs both sides a TLS handshake: twice the CPU of a small request."""

LONG_ANSWERS = 2
"""Read at a time: as Python objects an answer can be ten times as long, and users choose how long their objects are."""

LONGEST_WAIT_S = 30.0
"""However long a server asks to be left alone."""


class KubeClient:
    """One connection pool to one API server, with one account."""

    def __init__(self, configuration: Configuration, own_connector: aiohttp.BaseConnector | None = None) -> None:
        """Use the library's connections, or others, which are then ours to close."""
        self.configuration = configuration
        configuration.connection_pool_maxsize = CONNECTIONS
        self._own_connector = own_connector
        self._long_answers = asyncio.Semaphore(LONG_ANSWERS)
        self.server_clock = ServerTime(asyncio.get_running_loop().time)
        self._time_said = ""
        self._api_client = ApiClient(configuration)
        rest = self._api_client.rest_client
        # Its connections, but not its session: that one looks for ~/.netrc and proxies before every single request.
        self._session = aiohttp.ClientSession(
            connector=own_connector or rest.pool_manager.connector,
            connector_owner=False,
            # A proxy on this machine asks for packed answers itself, and unpacks them on a core of its own.
            skip_auto_headers=("Accept-Encoding",) if own_connector else None,
            headers={"User-Agent": f"gpuledger/{__version__}"},  # the name in metadata.managedFields, too
        )

    @classmethod
    async def connect(cls, kubeconfig: Path | str | None, context: str | None = None) -> KubeClient:
        """Return a client with the credentials of a kubeconfig file, or of several, parted by colons.

        Without one, with those of the pod's service account. Raises BadInput if there are none.
        """
        configuration = Configuration()
        await load(configuration, str(kubeconfig) if kubeconfig else None, context)
        return cls(configuration)

    @classmethod
    def by_proxy(cls, path: str) -> KubeClient:
        """Return a client for the socket of a `kubectl proxy`, which has the credentials. Needs a running loop."""
        configuration = Configuration()
        configuration.host = "http://localhost"  # kubectl refuses other names
        return cls(configuration, aiohttp.UnixConnector(path))

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
        if self._own_connector is not None:
            await self._own_connector.close()
        await self._api_client.close()

    async def authorization(self) -> str | None:
        """Return the value of the Authorization header; a token that is about to end is read again."""
        value: str | None = await self.configuration.get_api_key_with_prefix("BearerToken")
        return value

    async def _headers(self) -> dict[str, str]:
        authorization = await self.authorization()
        return {"Accept": "application/json"} | ({"Authorization": authorization} if authorization else {})

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        longest_bytes: int | None = None,
        follow: bool = True,
    ) -> Json:
        """Send one request, return the object in its answer.

        Raises a subclass of ApiError; after Unreachable the request may have been carried out. An answer of more bytes
        than is allowed is not read to its end: AnswerTooLong. Without `follow`, an answer that leads elsewhere is an
        error: what a pod answers through the API server could lead anywhere.
        """
        headers = {"Content-Type": content_type, **await self._headers()}
        asked_s = asyncio.get_running_loop().time()
        try:
            async with self._session.request(
                method,
                f"{self.configuration.host}{path}",
                data=None if body is None else orjson.dumps(body),
                params=parameters,
                headers=headers,
                proxy=self.configuration.proxy,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=follow,
            ) as response:
                self._observe_time(response.headers.get("Date"), asked_s)
                async with contextlib.AsyncExitStack() as turn:
                    answer = await read_at_most(
                        response, longest_bytes, lambda: turn.enter_async_context(self._long_answers)
                    )
                    if response.status < 300:
                        found: Json = await read_json_in_turns(answer) if answer else {}
                        return found
                raise _error(f"{method} {path}", response.status, answer, response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error

    def _observe_time(self, said: str | None, asked_s: float) -> None:
        """Observe the API server's clock. All answers of one second say the same, and the first of them tells most."""
        if said and said != self._time_said:
            self._time_said = said
            with contextlib.suppress(ValueError):
                self.server_clock.observe(parsedate_to_datetime(said), asked_s)

    async def server_time(self) -> datetime | None:
        """Return the API server's clock, to the second, as its answers say it; None if they do not.

        Raises Unreachable.
        """
        try:
            async with self._session.get(
                f"{self.configuration.host}/version",
                headers=await self._headers(),
                proxy=self.configuration.proxy,
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            ) as response:
                said = response.headers.get("Date")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"GET /version: {type(error).__name__}: {error}") from error
        try:
            return parsedate_to_datetime(said) if said else None
        except ValueError:
            return None

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch: an iterator over its events, one JSON text each, that ends when the server closes it.

        When nothing comes for `silence_s`, the connection counts as dead. An event beyond all measure is skipped.
        """
        async with self._session.get(
            f"{self.configuration.host}{path}",
            params=parameters,
            headers=await self._headers(),
            proxy=self.configuration.proxy,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=silence_s),
        ) as response:
            if response.status != 200:
                raise _error(f"WATCH {path}", response.status, await response.read(), None)
            yield whole_lines(response.content.iter_any(), f"WATCH {path}")

    async def pages(self, path: str, parameters: Mapping[str, str] | None = None) -> AsyncIterator[Page]:
        """Yield the items of a list, page by page, all from one moment of the cluster: see Page."""
        async for answer in pages_of(self.request, path, parameters):
            page = Page(answer)
            yield page
            page.clear()


def _error(request: str, status: int, answer: bytes, retry_after: str | None) -> ApiError:
    found = None
    try:
        found = orjson.loads(answer)
        message = message_of(found)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = answer[:300].decode(errors="replace").strip()
    wait_s = asked_wait_s(retry_after, LONGEST_WAIT_S)
    return kind_of(status, found)(f"{request}: {status}: {message}", status, wait_s)


class DirectRequests:
    """Sends requests, from any thread, over one client, in an event loop of its own that ends before the program does.

    A thread that is still at work while the interpreter goes down can end in a segmentation fault.
    """

    def __init__(self, connect: Callable[[], Awaitable[KubeClient]], timeout_s: float) -> None:
        """Take how to connect, and how long a request may take. The first request connects."""
        self._connect = connect
        self._timeout_s = timeout_s
        self._client: asyncio.Task[KubeClient] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()

    def send(self, method: str, path: str, **more: Any) -> Json:
        """Return the API server's answer; `more` as of `KubeClient.request`. Raises BadInput and ApiError."""
        return asyncio.run_coroutine_threadsafe(self._send(method, path, more), self._loop).result()

    async def _send(self, method: str, path: str, more: Json) -> Json:
        if self._client is None:
            self._client = asyncio.ensure_future(self._connect())
        client = await asyncio.shield(self._client)
        return await client.request(method, path, timeout_s=self._timeout_s, **more)

    def end(self) -> None:
        """Cancel what is under way, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client and not self._client.cancelled() and not self._client.exception():
            await self._client.result().close()
