"""Whether the agent lives, over HTTP, for its probes; its metrics; and what is used on its node.

It lives while its event loop, the thread that talks to the driver, and its streams to the kubelet do. The first answers
by answering at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import prometheus_client
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Problems = Callable[[], list[str]]
Usage = Callable[[], Awaitable[dict[str, Any]]]


class HealthServer:
    """/healthz for what a restart would fix, /readyz for all that the node's pods need, /metrics, /usage."""

    def __init__(self, dead: Problems, not_ready: Problems, metrics: Collector, usage: Usage) -> None:
        self._dead, self._not_ready, self._usage_now = dead, not_ready, usage
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(metrics)

    def application(self) -> web.Application:
        """Return what serves."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/usage", self._usage)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._dead())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._dead() + self._not_ready())

    async def _metrics(self, _: web.Request) -> web.Response:
        text = prometheus_client.generate_latest(self._registry)
        return web.Response(body=text, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _usage(self, _: web.Request) -> web.Response:
        return web.json_response(await self._usage_now())


def _answer(problems: list[str]) -> web.Response:
    return web.Response(status=503 if problems else 200, text="\n".join(problems or ["ok"]) + "\n")


class AgentMetrics(Collector):
    """An agent's metrics, read at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self._read()


def gauge(name: str, text: str, samples: Iterable[tuple[list[str], float]], labels: Iterable[str] = ()) -> Metric:
    """Return a gauge: values of the labels -> value."""
    family = GaugeMetricFamily(f"gpuledger_agent_{name}", text, labels=list(labels))
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counter(name: str, text: str, samples: Iterable[tuple[list[str], float]], labels: Iterable[str] = ()) -> Metric:
    """Return a counter: values of the labels -> value."""
    family = CounterMetricFamily(f"gpuledger_agent_{name}", text, labels=list(labels))
    for values, value in samples:
        family.add_metric(values, value)
    return family
