"""Who may see the page's data, and what every answer says to browsers.

On a loopback address every client of the port may read: `kubectl port-forward` has asked the API server before. A
browser on that machine reaches it, too, for any website that it shows; so requests that such a site causes are refused.
On any other address, a request needs a token whose owner may list GPUAllocations.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import orjson
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from gpuledger.formats.custom_resource.stored_card import GROUP, PLURAL
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, Denied

ALLOWED_S = 30.0
"""How long a token counts as good: who loses the permission sees the page no longer than that."""

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

    async def user_of(self, token: str) -> dict[str, Any] | None:
        """Return the owner of a token, None if there is none."""
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
    """What the API server says of tokens; of each it is asked once for a while. None: the token is unknown."""

    def __init__(self, judge: Callable[[str], Awaitable[Verdict | None]]) -> None:
        """Take who asks the API server about a token; what it returns is true where the token is good for something."""
        self._judge = judge
        self._known: BoundedMap[bytes, tuple[float, Verdict | None]] = BoundedMap(TOKENS_KNOWN)
        """Hash of a token -> until when (loop time, s) the verdict counts, and it."""
        self._turns = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._asking: dict[bytes, asyncio.Task[Verdict | None]] = {}
        """Hash of a token -> the question about it that is under way."""

    async def of(self, token: str) -> Verdict | None:
        """Return what is said of a token. Raises ApiError, or a web.HTTPException where too many are asked about."""
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
    """Return what the API server says of the token that a request brings, `where` it does. Raises as clients get it."""
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
        user = await self._reviews.user_of(token)
        return None if user is None else await self._reviews.may_list(user, GROUP, PLURAL)


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
