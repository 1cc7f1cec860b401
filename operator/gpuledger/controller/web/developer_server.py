"""Answers `explain` to people who may work in one namespace: about its pods and gangs, without the names of others.

It listens on the pod network, and trusts nobody there: docs/security.md says what proves who asks.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from gpuledger.controller.web.access import TokenVerdicts, add_headers, judged, refusal
from gpuledger.controller.web.view_server import ViewSource, asked_about, check_active, explained, nodes_response
from gpuledger.formats.kubernetes.developer import AUDIENCE, TOKEN_HEADER, namespace_of_account
from gpuledger.kube_api.reads import KubeReviews
from gpuledger.reports.redaction import redacted_for

AT_ONCE = 2
"""Explanations that are made at a time: each is a search over all nodes."""

WAITING = 20
"""Questions under way, most of which wait for their turn; the rest has to retry later."""


class DeveloperServer:
    """Serves one path, from the same source as the page."""

    def __init__(self, source: ViewSource, reviews: KubeReviews) -> None:
        self._source = source
        self._reviews = reviews
        self._verdicts = TokenVerdicts(self._namespace_of)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._asking: set[str] = set()  # namespaces whose question is under way, one each

    def application(self) -> web.Application:
        """Return the route."""
        application = web.Application()
        application.add_routes([web.get("/v1/explain", self._explain)])
        application.on_response_prepare.append(add_headers)
        return application

    async def _namespace_of(self, token: str) -> str | None:
        """Return the namespace for which a token speaks, empty if it is none of an account there; None: unknown."""
        user = await self._reviews.user_of(token, AUDIENCE)
        return None if user is None else namespace_of_account(str(user.get("username") or ""))

    async def _explain(self, request: web.Request) -> web.Response:
        own = await judged(self._verdicts, request.headers.get(TOKEN_HEADER, "").strip(), f"{TOKEN_HEADER}: TOKEN")
        asked = asked_about(request)
        if not own or own != asked.namespace:
            raise refusal(web.HTTPForbidden, f"this token does not speak for namespace {asked.namespace}")
        check_active(self._source, web.HTTPMisdirectedRequest)
        if own in self._asking or len(self._asking) >= WAITING:
            raise refusal(web.HTTPTooManyRequests, "others are being answered: retry in a moment", {"Retry-After": "1"})
        self._asking.add(own)
        try:
            async with self._turns:
                return await nodes_response(redacted_for(await explained(self._source, asked), own))
        finally:
            self._asking.discard(own)
