"""HTTP for people: a page that shows the cluster, and the data behind it. It only reads. docs/page.md describes it.

A second server answers `explain` and `report` to people who may work in one namespace: about its pods and gangs,
without the names of others, and what it held. It listens on the pod network, and trusts nobody there: docs/security.md
says what proves who asks.

On a loopback address every client of the port may read: `kubectl port-forward` has asked the API server before. A
browser on that machine reaches it, too, for any website that it shows; so requests that such a site causes are refused.
On any other address, a request needs a token whose owner may list GPUAllocations.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import orjson
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from gpuledger import __version__
from gpuledger.controller.web.feed import CHUNK_BYTES, Feed, LedgerSource
from gpuledger.controller.web.pace import Pace
from gpuledger.controller.web.reports import Busy
from gpuledger.formats.custom_resource.stored_card import GROUP, PLURAL
from gpuledger.formats.kubernetes.other import AUDIENCE, TOKEN_HEADER, namespace_of_account
from gpuledger.kube_api.reads import KubeReviews
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, BadInput, Denied, GpuledgerError, NotFound
from gpuledger.model.json_object import Json
from gpuledger.reports.account import WAYS, Question, days_asked
from gpuledger.reports.cards import IDLE_AFTER_S
from gpuledger.reports.explanation import Kind, redacted_for
from gpuledger.workflows.trail import RecordFilter

ALLOWED_S = 30.0
"""How long a token counts as good: a user who loses the permission sees the page no longer than that."""

REFUSED_S = 5.0
"""How long one counts as bad, so that a page which tries again costs the API server little."""

TOKENS_KNOWN = 1_000
"""Verdicts in memory, some 200 bytes each."""

REVIEWS_AT_ONCE = 8
"""Strangers can make up tokens; the API server is asked about so many of them at a time, and others wait."""

REVIEWS_WAITING = 100
"""How many others; the rest has to retry later."""

TOKEN_LIMIT_BYTES = 16 * 1024

Verdict = TypeVar("Verdict")

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Reviews(Protocol):
    """The API server's word on tokens: kube_api/reads.py."""

    async def user_of(self, token: str, audience: str = "") -> dict[str, Any] | None:
        """Return the owner of a token that is for an audience, empty: the API server; None if there is none."""
        ...

    async def may_list(self, user: dict[str, Any], group: str, resource: str) -> bool:
        """Return whether a user may list a resource."""
        ...


class Access(Protocol):
    """Decides about requests for data."""

    asks_for_token: bool

    async def check(self, request: web.Request) -> None:
        """Raise a web.HTTPException if the request may not be answered (any longer)."""
        ...


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reached from its own machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def access_for(host: str, reviews: Reviews) -> Access:
    """Return how requests are checked on an address to listen on."""
    return LocalAccess() if is_loopback(host) else TokenAccess(reviews)


class LocalAccess:
    """Everybody on this machine, but no website in a browser on it."""

    asks_for_token = False

    async def check(self, request: web.Request) -> None:
        """Refuse names that are not this machine's own: a website can have its name point here."""
        name = _parts(f"//{request.headers.get(hdrs.HOST, '')}")[0]
        if not is_loopback(name):
            raise refusal(web.HTTPForbidden, "this address only accepts requests to localhost")


class TokenVerdicts(Generic[Verdict]):
    """The API server's verdicts on tokens; it is asked once for each token and period. None: the token is unknown."""

    def __init__(self, judge: Callable[[str], Awaitable[Verdict | None]]) -> None:
        """Take who asks the API server about a token; what it returns is true where the token is good for something."""
        self._judge = judge
        self._known: BoundedMap[bytes, tuple[float, Verdict | None]] = BoundedMap(TOKENS_KNOWN)
        """Hash of a token -> until when (loop time, s) the verdict counts, and it."""
        self._turns = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._asking: dict[bytes, asyncio.Task[Verdict | None]] = {}
        """Hash of a token -> the question about it that is under way."""

    async def of(self, token: str) -> Verdict | None:
        """Return the verdict on a token. Raises ApiError, or a web.HTTPException where too many are asked about."""
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        known = self._recall(key)
        if known is not None:
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            if len(self._asking) >= REVIEWS_AT_ONCE + REVIEWS_WAITING:
                raise refusal(web.HTTPTooManyRequests, "too many tokens are being checked", {hdrs.RETRY_AFTER: "5"})
            asking = self._asking[key] = asyncio.create_task(self._ask(key, token))
            asking.add_done_callback(lambda _: self._asking.pop(key))
        return await asyncio.shield(asking)  # others wait for the same answer when this request is given up

    async def _ask(self, key: bytes, token: str) -> Verdict | None:
        async with self._turns:
            verdict = await self._judge(token)
        self._known.note(key, (_now_s() + (ALLOWED_S if verdict else REFUSED_S), verdict))
        return verdict

    def _recall(self, key: bytes) -> tuple[float, Verdict | None] | None:
        known = self._known.get(key)
        if known is not None and known[0] <= _now_s():
            self._known.drop(key)
            return None
        return known


async def judged(verdicts: TokenVerdicts[Verdict], token: str, where: str) -> Verdict:
    """Return the API server's verdict on a request's token, which it brings as `where` says. Raises HTTP errors."""
    if not token or len(token) > TOKEN_LIMIT_BYTES:
        raise refusal(web.HTTPUnauthorized, f"a token is needed: {where}")
    try:
        verdict = await verdicts.of(token)
    except Denied as error:
        raise refusal(
            web.HTTPServiceUnavailable, f"the operator is not allowed to verify your token: {error}"
        ) from error
    except ApiError as error:
        raise refusal(web.HTTPServiceUnavailable, "the API server could not verify your token") from error
    if verdict is None:
        raise refusal(web.HTTPUnauthorized, "this token is unknown or has expired")
    return verdict


class TokenAccess:
    """Admits accounts that may list GPUAllocations, as the API server decides."""

    asks_for_token = True

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews
        self._verdicts = TokenVerdicts(self._may_list)

    async def check(self, request: web.Request) -> None:
        """Ask the API server about the request's token, unless it has answered a moment ago."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        if not await judged(self._verdicts, bearer, "Authorization: Bearer TOKEN"):
            raise refusal(web.HTTPForbidden, f"this account may not list {PLURAL}.{GROUP}")

    async def _may_list(self, token: str) -> bool | None:
        return await may_list_cards(self._reviews, token)


async def may_list_cards(reviews: Reviews, token: str, audience: str = "") -> bool | None:
    """Return whether a token's owner may list GPUAllocations; None: the token is unknown, or for another audience."""
    user = await reviews.user_of(token, audience)
    return None if user is None else await reviews.may_list(user, GROUP, PLURAL)


def guard(access: Access, is_public: Callable[[str], bool]) -> Middleware:
    """Return the middleware before all routes. Public are paths without data: the page itself.

    With a token that page has to come first: it asks for the token. Without, nothing is public.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _from_here(request):
            raise refusal(web.HTTPForbidden, "requests from another website are refused")
        if not (access.asks_for_token and is_public(request.path)):
            await access.check(request)
        return await handler(request)

    return check


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add what every answer says to browsers, errors included."""
    response.headers.update(HEADERS)
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")


def refusal(kind: type[web.HTTPException], text: str, headers: Mapping[str, str] | None = None) -> web.HTTPException:
    """Return an error to raise, with the text in JSON."""
    more = {"WWW-Authenticate": "Bearer"} if kind is web.HTTPUnauthorized else {}
    return kind(
        text=orjson.dumps({"error": text}).decode(), content_type="application/json", headers=more | dict(headers or {})
    )


def _from_here(request: web.Request) -> bool:
    """Return whether a request comes from the page itself, from no website at all, or opens the page by a link."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and _parts(origin)[1] != request.headers.get(hdrs.HOST):
        return False
    site = request.headers.get("Sec-Fetch-Site", "none")
    is_link = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"
    return site in ("same-origin", "none") or (is_link and request.headers.get("Sec-Fetch-Dest") == "document")


def _parts(url: str) -> tuple[str, str]:
    """Return the name in a URL, and the name with its port; empty ones if it can't be read."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc
    except ValueError:
        return "", ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


CLIENTS_LIMIT = 50
"""How many pages can follow the changes at the same time."""

DOWNLOADS_AT_ONCE = 4
"""How many get the whole cluster at the same time; the others wait."""

HEARTBEAT_S = 15.0
"""How often a page hears that nothing has changed, and its token is looked at again."""

MESSAGE_TIMEOUT_S = 60.0
"""A page that does not take a message for so long is cut off."""

FAST = 1
"""Level of gzip: a fifth of the bytes of JSON for a third of the time of the usual level."""

HISTORY_DEFAULT, HISTORY_LIMIT = 100, 10_000

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Kubernetes' names of pods and namespaces."""

GANG_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Kubernetes' values of labels, and names of objects."""

WORD_LENGTH = 253

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class ViewServer:
    """Serves the page and its data from a source."""

    def __init__(self, source: LedgerSource, access: Access, feed: Feed | None = None) -> None:
        self._source = source
        self._access = access
        self.feed = feed or Feed(source)
        self._files = {file.path: file for file in page_files()}
        self._downloads = asyncio.Semaphore(DOWNLOADS_AT_ONCE)

    def application(self) -> web.Application:
        """Return the routes. There are none that change anything."""
        application = web.Application(middlewares=[guard(self._access, self._files.__contains__)])
        application.add_routes([web.get(path, self._file) for path in self._files])
        application.add_routes(
            [
                web.get("/v1/cluster", self._cluster),
                web.get("/v1/changes", self._changes, allow_head=False),
                web.get("/v1/explain", self._explain),
                web.get("/v1/waiting", self._waiting),
                web.get("/v1/history", self._history),
                web.get("/v1/usage", self._usage, allow_head=False),
                web.get("/v1/report", self._report, allow_head=False),
                web.get("/v1/version", self._version),
            ]
        )
        application.on_response_prepare.append(add_headers)
        application.on_shutdown.append(self._shutdown)
        return application

    async def _shutdown(self, _: web.Application) -> None:
        self.feed.close()

    async def _file(self, request: web.Request) -> web.Response:
        file = self._files[request.path]
        headers = {hdrs.ETAG: file.tag, hdrs.CACHE_CONTROL: "no-cache", hdrs.CONTENT_TYPE: file.content_type}
        if request.headers.get(hdrs.IF_NONE_MATCH) == file.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.content, headers=headers)

    async def _cluster(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/json", hdrs.VARY: hdrs.ACCEPT_ENCODING})
        zipped = "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        if zipped:
            response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        async with self._downloads, asyncio.timeout(MESSAGE_TIMEOUT_S):
            await self.feed.refresh()
            chunks = self.feed.chunks(self.feed.since(None))
            await response.prepare(request)
            async for chunk in _zipped(chunks) if zipped else _paced(chunks):
                await response.write(chunk)
            await response.write_eof()
        return response

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        edition = _number(request, "since", default=None)
        if self.feed.watchers >= CLIENTS_LIMIT:
            text = f"{CLIENTS_LIMIT} pages are open already"
            raise refusal(web.HTTPServiceUnavailable, text, {hdrs.RETRY_AFTER: "10"})
        headers = {hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        async with self.feed.watch():
            await self.feed.refresh()
            await response.prepare(request)
            try:
                await self._follow(request, response, edition)
            except (ConnectionError, TimeoutError, web.HTTPException):
                if request.transport is not None:  # gone, too slow, or no longer allowed
                    request.transport.abort()
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse, edition: int | None) -> None:
        clock = asyncio.get_running_loop().time
        checked_s = clock()
        while not self.feed.closed.is_set():
            change = self.feed.since(edition)
            edition = change.edition
            async with asyncio.timeout(MESSAGE_TIMEOUT_S):
                await response.write(b"event: change\ndata: ")
                async for chunk in _paced(self.feed.chunks(change)):
                    await response.write(chunk)
                await response.write(b"\n\n")
            while not (newer := await self.feed.next(edition, HEARTBEAT_S)) and not self.feed.closed.is_set():
                await response.write(b": nothing new\n\n")
                await self._access.check(request)
                checked_s = clock()
            if newer and clock() - checked_s >= HEARTBEAT_S:
                await self._access.check(request)
                checked_s = clock()

    async def _explain(self, request: web.Request) -> web.Response:
        asked = asked_about(request)
        check_active(self._source)
        return await sliced_response(await explained(self._source, asked), "nodes")

    async def _waiting(self, request: web.Request) -> web.Response:
        namespace = request.query.get("namespace", "")
        if namespace and not NAME.fullmatch(namespace):
            raise refusal(web.HTTPBadRequest, "namespace is the name of one; without it, pods of all are listed")
        check_active(self._source)
        pods = (pod for pod in self._source.waiting() if namespace in ("", pod["namespace"]))
        async with self._downloads:
            return await sliced_response({"pods": pods}, "pods")

    async def _usage(self, request: web.Request) -> web.Response:
        idle_after_s = _number(request, "idleAfterS", default=IDLE_AFTER_S) or IDLE_AFTER_S
        try:
            nodes = await self._source.usage(idle_after_s)
        except NotFound as error:
            raise refusal(web.HTTPNotFound, str(error)) from error
        async with self._downloads:  # thousands of nodes are megabytes
            return await sliced_response({"idleAfterS": idle_after_s, "nodes": nodes}, "nodes")

    async def _report(self, request: web.Request) -> web.Response:
        asked = report_asked(request, self._source)
        async with self._downloads:  # thousands of rows are megabytes
            return await sliced_response(await reported(self._source, asked), "rows")

    async def _version(self, _: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps({"version": __version__}), content_type="application/json")

    async def _history(self, request: web.Request) -> web.Response:
        names = (field.name for field in fields(RecordFilter) if field.name != "since")
        words = {name: request.query.get(name, "") for name in names}
        if any(len(word) > WORD_LENGTH for word in words.values()):
            raise refusal(web.HTTPBadRequest, f"a name has {WORD_LENGTH} characters at most")
        limit = _number(request, "limit", default=HISTORY_DEFAULT) or 0
        wanted = RecordFilter(**words, since=float(_number(request, "since", default=0) or 0))
        check_active(self._source)
        async with self._downloads:  # thousands of records are megabytes
            return await sliced_response(self._source.history(wanted, min(limit, HISTORY_LIMIT)), "records")


NAMES = {Kind.GANG: GANG_NAME, Kind.WORKLOAD: NAME, Kind.POD: NAME}
"""What can be explained, and the form of its names."""


class Asked(NamedTuple):
    """The subject of a request."""

    kind: Kind
    namespace: str
    name: str


def asked_about(request: web.Request) -> Asked:
    """Return the pod, the gang, or the workload that a request is about."""
    kind = next((kind for kind in NAMES if kind in request.query), Kind.POD)
    namespace, _, name = request.query.get(kind, "").partition("/")
    if not NAME.fullmatch(namespace) or not NAMES[kind].fullmatch(name):
        text = "name a pod: ?pod=NAMESPACE/NAME, a gang: ?gang=NAMESPACE/NAME, or a workload: ?workload=NAMESPACE/NAME"
        raise refusal(web.HTTPBadRequest, text)
    return Asked(kind, namespace, name)


def check_active(source: LedgerSource, kind: type[web.HTTPException] = web.HTTPServiceUnavailable) -> None:
    """Refuse to answer for the active replica: this one knows neither the waiting pods nor what happened."""
    active = source.active_elsewhere()
    if active is not None:
        where = f"the active one is {active}" if active else "none is active at the moment"
        text = f"this replica is on standby, and {where}: only that one knows waiting pods and history"
        raise refusal(kind, text, {hdrs.RETRY_AFTER: "5"})


async def explained(source: LedgerSource, asked: Asked) -> Json:
    """Return why it waits. Raises what the client is to get in place of an answer."""
    try:
        return await source.explain(*asked)
    except NotFound as error:
        raise refusal(web.HTTPNotFound, str(error)) from error
    except BadInput as error:
        raise refusal(web.HTTPBadRequest, str(error)) from error
    except GpuledgerError as error:
        raise refusal(web.HTTPServiceUnavailable, str(error)) from error


NAMESPACES_OF_REPORT = 64


def report_asked(request: web.Request, source: LedgerSource) -> Question:
    """Return which report a request asks for."""
    words = request.query
    by, namespaces = words.get("by", "namespace"), tuple(filter(None, words.get("namespace", "").split(",")))
    if by not in WAYS:
        raise refusal(web.HTTPBadRequest, f"by is one of {', '.join(WAYS)}")
    if len(namespaces) > NAMESPACES_OF_REPORT or not all(map(_is_name_or_begin, namespaces)):
        text = f"namespace has the names of {NAMESPACES_OF_REPORT} at most, such as team-a,team-b, or team-* for all so"
        raise refusal(web.HTTPBadRequest, text)
    try:
        days = days_asked(words.get("since"), words.get("until"), source.now().date())
    except BadInput as error:
        raise refusal(web.HTTPBadRequest, str(error)) from error
    return Question(by, days, namespaces)


def _is_name_or_begin(text: str) -> bool:
    return NAME.fullmatch(f"{text[:-1]}0" if text.endswith("*") else text) is not None


async def reported(source: LedgerSource, asked: Question) -> Json:
    """Return a report. Raises what the client is to get in place of it."""
    try:
        return await source.report(asked)
    except Busy as error:
        raise refusal(web.HTTPTooManyRequests, str(error), {hdrs.RETRY_AFTER: "1"}) from error
    except BadInput as error:
        raise refusal(web.HTTPNotFound, str(error)) from error
    except GpuledgerError as error:
        raise refusal(web.HTTPServiceUnavailable, str(error)) from error


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, with the path under which it is served."""

    path: str
    content: bytes
    content_type: str
    tag: str


def page_files() -> Iterator[PageFile]:
    """Yield the files in page/, as they are in the package; index.html is /."""
    for file in resources.files("gpuledger.controller.web").joinpath("page").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/{file.name}"
            yield PageFile(path, content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def _number(request: web.Request, name: str, default: int | None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise refusal(web.HTTPBadRequest, f"{name} is a number")
    return int(text)


async def sliced_response(content: Json, key: str) -> web.Response:
    """Return an answer whose `key` can have thousands of parts: encoded in slices, and zipped in a thread."""
    parts, pace = [], Pace()
    for part in content.get(key, ()):
        parts.append(orjson.dumps(part))
        await pace.keep()
    rest = orjson.dumps({name: value for name, value in content.items() if name != key})
    body = b'{"%s":[' % key.encode() + b",".join(parts) + (b"]," if rest != b"{}" else b"]") + rest[1:]
    response = web.Response(body=body, content_type="application/json", zlib_executor_size=CHUNK_BYTES)
    response.enable_compression()
    return response


async def _paced(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks; between two of them, others have the event loop even if the client takes all at once."""
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)


async def _zipped(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same as gzip, made in a thread: zlib does not keep the event loop from running meanwhile."""
    zipper = zlib.compressobj(FAST, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    for chunk in chunks:
        if zipped := await asyncio.to_thread(zipper.compress, chunk):
            yield zipped
    yield await asyncio.to_thread(zipper.flush)


AT_ONCE = 2
"""Answers that are made at a time: an explanation is a search over all nodes, a report a list of records."""

WAITING = 20
"""Questions under way, most of which wait for their turn; the rest has to retry later."""


class DeveloperServer:
    """Serves two paths, from the same source as the page."""

    def __init__(self, source: LedgerSource, reviews: KubeReviews) -> None:
        self._source = source
        self._reviews = reviews
        self._verdicts = TokenVerdicts(self._namespace_of)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._asking: set[str] = set()  # namespaces whose question is under way, one each

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application()
        application.add_routes([web.get("/v1/explain", self._explain), web.get("/v1/report", self._report)])
        application.on_response_prepare.append(add_headers)
        return application

    async def _namespace_of(self, token: str) -> str | None:
        """Return the namespace for which a token speaks, empty if it is none of an account there; None: unknown."""
        user = await self._reviews.user_of(token, AUDIENCE)
        return None if user is None else namespace_of_account(str(user.get("username") or ""))

    async def _explain(self, request: web.Request) -> web.Response:
        own = await self._own_namespace(request)
        asked = asked_about(request)
        _check_own(own, asked.namespace)
        check_active(self._source, web.HTTPMisdirectedRequest)
        async with self._turn_of(own):
            return await sliced_response(redacted_for(await explained(self._source, asked), own), "nodes")

    async def _report(self, request: web.Request) -> web.Response:
        """Answer from any replica: records are read, and all replicas know all cards."""
        own = await self._own_namespace(request)
        _check_own(own, request.query.get("namespace", ""))
        asked = report_asked(request, self._source)
        async with self._turn_of(own):
            return await sliced_response(await reported(self._source, asked), "rows")

    async def _own_namespace(self, request: web.Request) -> str:
        token = request.headers.get(TOKEN_HEADER, "").strip()
        return await judged(self._verdicts, token, f"{TOKEN_HEADER}: TOKEN")

    @contextlib.asynccontextmanager
    async def _turn_of(self, own: str) -> AsyncIterator[None]:
        if own in self._asking or len(self._asking) >= WAITING:
            raise refusal(web.HTTPTooManyRequests, "others are being answered: retry in a moment", {"Retry-After": "1"})
        self._asking.add(own)
        try:
            async with self._turns:
                yield
        finally:
            self._asking.discard(own)


def _check_own(own: str, namespace: str) -> None:
    """Refuse to answer about another namespace than the token's, by its whole name."""
    if not NAME.fullmatch(own) or own != namespace:
        raise refusal(web.HTTPForbidden, f"this token does not speak for namespace {namespace[:WORD_LENGTH]}")
