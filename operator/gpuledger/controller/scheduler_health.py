"""Whether kube-scheduler lives, and this process with it: what the liveness probe of kube-scheduler's container asks.

A kube-scheduler that holds the Lease and asks an operator that is dead places nothing, and keeps the other replica from
it. A container has one liveness probe. So the operator answers that of its neighbour: a process that is dead or stands
still does not answer at all, and one that lives says whether the neighbour does, and has the right configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import aiohttp
from aiohttp import web

OLD_CONFIGURATION = "it has the configuration of other settings, and is to start again"

TIMEOUT_S = 1.0
"""How long kube-scheduler may take: less than the kubelet waits for the answer to its probe."""


class SchedulerHealth:
    """Asks kube-scheduler's /livez when it is asked itself, whether or not this operator is active, or ready."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.has_old_configuration: Callable[[], bool] = lambda: False
        """Tells whether kube-scheduler was started with the configuration of other settings."""

    async def answer(self, _: web.Request) -> web.Response:
        """Return 200 if kube-scheduler lives, else 503 with what it says."""
        if problem := await self._problem():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"kube-scheduler: {problem}\n")
        return web.Response(text="ok\n")

    async def _problem(self) -> str:
        if self.has_old_configuration():
            return OLD_CONFIGURATION
        try:
            # It signs its certificate itself; no other program can listen on a port of this pod's loopback address.
            limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with aiohttp.request("GET", self._url, ssl=False, timeout=limit) as answer:
                return "" if answer.ok else f"/livez says {answer.status}: {await answer.text()}"
        except TimeoutError:
            return f"/livez does not answer within {TIMEOUT_S:g} s"
        except aiohttp.ClientError as error:
            return f"/livez can't be asked: {error}"
