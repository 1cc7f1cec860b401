"""HTTP: the scheduler's questions, health, metrics. JSON in, JSON out; decisions are elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson
from aiohttp import web

from gpuledger.controller.scheduler_health import OLD_CONFIGURATION, SchedulerHealth
from gpuledger.controller.telemetry.metrics import Metrics
from gpuledger.controller.telemetry.scrapes import Scrapes
from gpuledger.formats.scheduler import extender
from gpuledger.model.errors import BadInput, GpuledgerError, NotReady
from gpuledger.workflows.binding.place_pod import PodPlacer
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.preemption.preempt import Preemption

logger = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""A Filter names every node: 5,000 long names and a large pod take 2 MiB; aiohttp would refuse from 1 MiB on."""


class ExtenderServer:
    """Serves kube-scheduler once the ledger is synced; before, every question fails and is asked again."""

    def __init__(
        self,
        placer: PodPlacer,
        preemption: Preemption,
        metrics: Metrics,
        counts: Counts,
        is_ready: Callable[[], bool],
        scheduler: SchedulerHealth,
    ) -> None:
        self._placer = placer
        self._preemption = preemption
        self._metrics = metrics
        self._scrapes = Scrapes(metrics.chunks, metrics.content_type)
        self._counts = counts
        self._is_ready = is_ready
        self.scheduler = scheduler

    def extender(self) -> web.Application:
        """Return the routes for kube-scheduler, in the same pod: a client that reaches them can bind pods."""
        application = web.Application(client_max_size=BODY_LIMIT_BYTES)
        application.add_routes(
            [
                web.post("/filter", self._filter),
                web.post("/prioritize", self._prioritize),
                web.post("/preempt", self._preempt),
                web.post("/bind", self._bind),
            ]
        )
        return application

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

    async def _filter(self, request: web.Request) -> web.Response:
        body = await request.read()
        with self._metrics.filter_seconds.time():
            try:
                self._check_ready()
                arguments = extender.filter_arguments(body)
                result = await self._placer.answer(arguments)
            except GpuledgerError as error:
                return _answer(extender.filter_error(self._record_failure(error)))
            return _answer(extender.filter_answer(result.node_names, result.refused, result.short_of_room))

    async def _prioritize(self, request: web.Request) -> web.Response:
        try:
            self._check_ready()
            arguments = extender.filter_arguments(await request.read())
            return _answer(extender.priorities(self._placer.prioritize(arguments)))
        except GpuledgerError as error:
            return web.Response(status=400, text=self._record_failure(error))

    async def _preempt(self, request: web.Request) -> web.Response:
        try:
            self._check_ready()
            arguments = extender.preempt_arguments(await request.read())
            return _answer(extender.preempt_answer(await self._preemption.preempt(arguments), arguments.violations))
        except GpuledgerError as error:
            return web.Response(status=400, text=self._record_failure(error))

    async def _bind(self, request: web.Request) -> web.Response:
        with self._metrics.bind_seconds.time():
            try:
                self._check_ready()
                arguments = extender.bind_arguments(await request.read())
                await self._placer.bind(arguments, lambda: not _has_gone(request))
            except GpuledgerError as error:
                return _answer(extender.bind_answer(self._record_failure(error)))
            return _answer(extender.bind_answer())

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the ledger is not read yet\n")

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


def _has_gone(request: web.Request) -> bool:
    """Tell whether the client has hung up."""
    return request.transport is None or request.transport.is_closing()


def _answer(content: object) -> web.Response:
    return web.Response(body=orjson.dumps(content), content_type="application/json")
