"""HTTP: the scheduler's questions, health, metrics. JSON in, JSON out; decisions are elsewhere.

The liveness probe of kube-scheduler's container asks here as well. A kube-scheduler that holds the Lease and asks an
operator that is dead places nothing, and keeps the other replica from it. A container has one liveness probe. So the
operator answers that of its neighbour: a process that is dead or stands still does not answer at all, and one that
lives says whether the neighbour does, and has the right configuration.

The operator shares a secret with the kube-scheduler beside it, in a file of their pod. It is made by whichever comes
first, and lasts as long as the pod, on a volume in memory: so an operator whose container starts again still knows the
kube-scheduler that has gone on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web
from attrs import define

from gpuledger.controller.scheduler_connection import TEXT, Answer, Handler
from gpuledger.controller.telemetry.metrics import Metrics, Scrapes
from gpuledger.formats import scheduler
from gpuledger.model.errors import BadInput, GpuledgerError, NotReady
from gpuledger.workflows.placing.place_pod import PodPlacer
from gpuledger.workflows.preemption.for_scheduler import SchedulersPreemption
from gpuledger.workflows.reporting import Counts

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


logger = logging.getLogger(__name__)


@define(eq=False, slots=False)
class ExtenderServer:
    """Serves kube-scheduler once the ledger is synced; before, every question fails and is asked again."""

    _placer: PodPlacer
    _preemption: SchedulersPreemption
    _metrics: Metrics
    _counts: Counts
    _is_ready: Callable[[], bool]
    scheduler: SchedulerHealth
    _is_settled: Callable[[], bool] = lambda: True
    """Whether the replicas before this one may end: a rollout waits for that, kube-scheduler does not."""

    def __attrs_post_init__(self) -> None:
        self._scrapes = Scrapes(self._metrics.chunks, self._metrics.content_type)

    def questions(self) -> Mapping[str, Handler]:
        """Return the handlers of kube-scheduler's questions, by path. A client that reaches them can bind pods."""
        return {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/preempt": self._preempt,
            "/bind": self._bind,
        }

    def health(self) -> web.Application:
        """Return the routes for the kubelet and Prometheus."""
        application = web.Application()
        application.cleanup_ctx.append(self._metrics.while_served)
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/healthz/scheduler", self.scheduler.answer),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._scrapes.answer),
            ]
        )
        return application

    async def _filter(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        with self._metrics.filter_seconds.time():
            try:
                self._check_ready()
                arguments = scheduler.filter_arguments(body)
                result = await self._placer.answer(arguments)
            except GpuledgerError as error:
                return _answer(scheduler.filter_error(self._record_failure(error)))
            return _answer(scheduler.filter_answer(result.node_names, result.refused, result.short_of_room))

    async def _prioritize(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        try:
            self._check_ready()
            return _answer(scheduler.priorities(self._placer.prioritize(scheduler.filter_arguments(body))))
        except GpuledgerError as error:
            return _error(self._record_failure(error))

    async def _preempt(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        try:
            self._check_ready()
            arguments = scheduler.preempt_arguments(body)
            return _answer(scheduler.preempt_answer(await self._preemption.preempt(arguments), arguments.violations))
        except GpuledgerError as error:
            return _error(self._record_failure(error))

    async def _bind(self, body: bytes, is_connected: Callable[[], bool]) -> Answer:
        with self._metrics.bind_seconds.time():
            try:
                self._check_ready()
                await self._placer.bind(scheduler.bind_arguments(body), is_connected)
            except GpuledgerError as error:
                return _answer(scheduler.bind_answer(self._record_failure(error)))
            return _answer(scheduler.bind_answer())

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if not self._is_ready():
            return web.Response(status=503, text="the ledger is not read yet\n")
        if not self._is_settled():
            return web.Response(status=503, text="the history of the other replicas is not read yet\n")
        return web.Response(text="ok\n")

    def _check_ready(self) -> None:
        if not self._is_ready():
            raise NotReady("gpuledger has just started and is still reading the ledger")
        if self.scheduler.has_old_configuration():  # the names in it may mean something else by now
            raise NotReady(f"nothing is decided for this kube-scheduler: {OLD_CONFIGURATION}")

    def _record_failure(self, error: GpuledgerError) -> str:
        """Count a request that can't be understood; return the text for kube-scheduler."""
        if isinstance(error, BadInput):
            self._counts.bad_input.labels("request").inc()
        return f"gpuledger: {error}"


def _answer(content: object) -> Answer:
    return Answer(orjson.dumps(content))


def _error(text: str) -> Answer:
    return Answer(text.encode(), TEXT)


SECRET_BYTES = 32
SECRET = re.compile(r"[A-Za-z0-9_-]{32,128}")
"""Characters that need no quoting in a URL."""


def extender_secret(path: Path | None) -> str:
    """Return the secret in a file, which is made unless it is there; none without a path.

    Raises BadInput for what is no secret of ours, OSError.
    """
    if path is None:
        return ""
    if not path.exists():
        _make(path)
    found = path.read_text(errors="replace").strip()
    if not SECRET.fullmatch(found):
        raise BadInput(
            f"--extender-secret: {path} has something other than 32 to 128 letters, digits, - and _; "
            "delete it, and a new secret is made"
        )
    return found


def _make(path: Path) -> None:
    """Write a secret that only this account reads; one that another process has written meanwhile stays."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(SECRET_BYTES))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
