"""What the agent answers over HTTP: whether it lives, for its probes; its metrics; and what is used on its node.

It lives while its event loop, the thread that talks to the driver, and its streams to the kubelet do. The first answers
by answering at all.

There are also metrics under the names of HAMi's and Volcano's monitors. With these, dashboards and alerts made for
those go on working. Sources: HAMi v2.10, cmd/vGPUmonitor/metrics.go in github.com/Project-HAMi/HAMi: names that begin
with hami_, and those from before v2.9 (`--legacy-metrics`), which Volcano's monitor has, too, with fewer labels:
cmd/vgpu-monitor/metrics.go in github.com/Project-HAMi/volcano-vgpu-device-plugin. All have zone="vGPU".

Their units are kept, whatever the names say: memory is in bytes, utilization in percent. Of MIG devices there is
nothing among them, and of a memory's parts only what a container's HAMi-core has counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter

import prometheus_client
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuledger.agent.devices.source import CardUse
from gpuledger.agent.usage.regions import MIB, REGION, ContainerUse
from gpuledger.model.card import MIG, Card
from gpuledger.model.json_object import Json

Problems = Callable[[], list[str]]
Usage = Callable[[], Awaitable[Json]]


class HealthServer(Collector):
    """/healthz for what a restart would fix, /readyz for all that the node's pods need, /metrics, /usage."""

    def __init__(
        self, dead: Problems, not_ready: Problems, metrics: Callable[[], Iterable[Metric]], usage: Usage
    ) -> None:
        """Make one; `metrics` and `usage` are read at each question."""
        self._dead, self._not_ready, self._read, self._usage_now = dead, not_ready, metrics, usage
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)

    def application(self) -> web.Application:
        """Return the application."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/usage", self._usage)
        return application

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self._read()

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


Value = float | None
"""None: there is no sample."""

Of = Callable[[ContainerUse], Value]

LABELS = ("namespace", "pod", "container", "uuid")


def mib_bytes(amount: int | None) -> Value:
    """Return MiB as bytes."""
    return None if amount is None else float(amount * MIB)


def _ratio(percent: int | None) -> Value:
    return None if percent is None else percent / 100


OWN: Sequence[tuple[str, str, Of]] = (
    ("memory_held_bytes", "Memory that a container holds of a card.", lambda use: mib_bytes(use.part.memory_mib)),
    ("memory_used_bytes", "Memory that a container uses of a card.", lambda use: use.memory_used_bytes),
    (
        "memory_limit_bytes",
        "Memory of a card that a container is held to; absent where nothing does.",
        lambda use: mib_bytes(use.part.memory_limit_mib),
    ),
    ("cores_held_ratio", "Cores that a container holds, as a ratio of the card's.", lambda use: use.part.cores / 100),
    ("cores_used_ratio", "Cores that a container has used of a card lately.", lambda use: _ratio(use.cores_percent)),
    (
        "last_kernel_age_seconds",
        "Time since a container launched a kernel, by HAMi-core.",
        lambda use: use.last_kernel_s_ago,
    ),
    ("paused", "Whether a container waits for one of higher priority.", lambda use: float(use.paused)),
)
"""Name, help and value of our own gauges of each container and card."""


def usage_metrics(
    cards: Iterable[Card], used: Mapping[str, CardUse], containers: Sequence[ContainerUse]
) -> Iterable[Metric]:
    """Yield what is used; `used` is UUID of a card -> what is used of it."""
    known = [([card.uuid, str(card.index)], used[card.uuid]) for card in cards if card.uuid in used]
    memory = [(labels, value) for labels, use in known if (value := mib_bytes(use.memory_mib)) is not None]
    yield gauge("card_memory_used_bytes", "Memory of a card that is used, by whomever.", memory, ["uuid", "index"])
    cores = [(labels, value) for labels, use in known if (value := _ratio(use.cores_percent)) is not None]
    yield gauge("card_cores_used_ratio", "Part of the time in which a card computed.", cores, ["uuid", "index"])
    for name, text, of in OWN:
        samples = [
            ([use.grant.namespace, use.grant.pod, use.grant.container, use.part.uuid], float(value))
            for use in containers
            if (value := of(use)) is not None
        ]
        yield gauge(f"container_{name}", text, samples, LABELS)


ZONE = "vGPU"

OfCard = Callable[[CardUse], Value]


_MEMORY: OfCard = lambda use: mib_bytes(use.memory_mib)  # noqa: E731 - columns of tables
_CORES: OfCard = attrgetter("cores_percent")
_CONTROLLER: OfCard = attrgetter("memory_controller_percent")

_USED: Of = attrgetter("memory_used_bytes")
_HELD_TO: Of = lambda use: mib_bytes(use.part.memory_limit_mib)  # noqa: E731
_UTILIZATION: Of = attrgetter("cores_percent")
_KERNEL: Of = attrgetter("last_kernel_s_ago")


def _counted(amount: str) -> Of:
    """Return the gauge of a part of a container's memory, which only its region counts."""
    return lambda use: getattr(use, amount) or 0 if use.source == REGION else None


_CARD, _CARD_BEFORE = ("device_index", "device_uuid", "device_type"), ("deviceidx", "deviceuuid", "devicetype")

CARDS: Mapping[str, Sequence[tuple[str, str, tuple[str, ...], OfCard]]] = {
    "hami": (
        ("hami_host_gpu_memory_used_bytes", "GPU device memory usage in bytes", ("node", *_CARD), _MEMORY),
        ("hami_host_gpu_utilization_ratio", "GPU core utilization ratio (0-100)", ("node", *_CARD), _CORES),
        (
            "hami_host_gpu_memory_controller_utilization_ratio",
            "GPU memory controller utilization ratio (0-100)",
            _CARD,
            _CONTROLLER,
        ),
    ),
    "hami-legacy": (
        ("HostGPUMemoryUsage", "GPU device memory usage", ("nodeid", *_CARD_BEFORE), _MEMORY),
        ("HostCoreUtilization", "GPU core utilization", ("nodeid", *_CARD_BEFORE), _CORES),
    ),
    "volcano": (
        ("HostGPUMemoryUsage", "GPU device memory usage", _CARD_BEFORE[:2], _MEMORY),
        ("HostCoreUtilization", "GPU core utilization", _CARD_BEFORE[:2], _CORES),
    ),
}
"""Value of the setting `metrics_compatibility` -> name, help, labels and value of each gauge of a card."""

_BEFORE = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_PARTS = ("context", "module", "data", "offset")

_LEGACY: Sequence[tuple[str, str, tuple[str, ...], Of]] = (
    ("vGPU_device_memory_usage_in_bytes", "vGPU device usage", _BEFORE, _USED),
    ("vGPU_device_memory_limit_in_bytes", "vGPU device limit", _BEFORE, _HELD_TO),
    ("Device_utilization_desc_of_container", "Container device utilization description", _BEFORE, _UTILIZATION),
    ("Device_last_kernel_of_container", "Container device last kernel description", _BEFORE, _KERNEL),
    (
        "Device_memory_desc_of_container",
        "Container device memory description",
        (*_BEFORE, *_PARTS),
        _counted("memory_used_bytes"),
    ),
)

_HAMI: Sequence[tuple[str, str, Of]] = (
    ("hami_vgpu_memory_used_bytes", "vGPU device memory usage in bytes", _USED),
    ("hami_vgpu_memory_limit_bytes", "vGPU device memory limit in bytes", _HELD_TO),
    ("hami_container_device_memory_bytes", "Container device memory usage in bytes", _USED),
    ("hami_container_device_utilization_ratio", "Container device SM utilization ratio", _UTILIZATION),
    ("hami_container_last_kernel_elapsed_seconds", "Seconds since last kernel execution in container", _KERNEL),
    ("hami_vgpu_memory_context_bytes", "Container device memory context size in bytes", _counted("context_bytes")),
    ("hami_vgpu_memory_module_bytes", "Container device memory module size in bytes", _counted("module_bytes")),
    ("hami_vgpu_memory_buffer_bytes", "Container device memory buffer size in bytes", _counted("data_bytes")),
)
_HAMI_LABELS = ("namespace", "pod", "container", "vdevice_index", "device_uuid")

CONTAINERS: Mapping[str, Sequence[tuple[str, str, tuple[str, ...], Of]]] = {
    "hami": [(name, text, _HAMI_LABELS, of) for name, text, of in _HAMI],
    "hami-legacy": _LEGACY,
    "volcano": _LEGACY,
}
"""The same for each gauge of a container and card."""


def compatible_metrics(
    names: Collection[str],
    node_name: str,
    cards: Iterable[Card],
    used: Mapping[str, CardUse],
    containers: Sequence[ContainerUse],
) -> Iterable[Metric]:
    """Yield the gauges that these values of `metrics_compatibility` ask for, each once.

    `used` is UUID of a card -> its use. A metric of one name in HAMi and Volcano has HAMi's labels if both are asked
    for.
    """
    known = [(card, used[card.uuid]) for card in cards if card.uuid in used and card.mode != MIG]
    yielded: set[str] = set()
    for system in (each for each in CARDS if each in names):
        for name, text, labels, of_card in CARDS[system]:
            if name not in yielded:
                rows = ((_of_card(labels, node_name, card), of_card(use)) for card, use in known)
                yield _gauge(name, text, labels, rows)
        for name, text, labels, of in CONTAINERS[system]:
            if name not in yielded:
                yield _gauge(name, text, labels, ((_of_container(labels, use), of(use)) for use in containers))
        yielded |= {row[0] for row in (*CARDS[system], *CONTAINERS[system])}


def _gauge(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Value]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["zone", *labels])
    for values, value in rows:
        if value is not None:
            family.add_metric([ZONE, *values], float(value))
    return family


def _of_card(labels: tuple[str, ...], node_name: str, card: Card) -> tuple[str, ...]:
    node = (node_name,) if labels[0] in ("node", "nodeid") else ()
    model = (card.model,) if labels[-1] in ("device_type", "devicetype") else ()
    return *node, str(card.index), card.uuid, *model


def _of_container(labels: tuple[str, ...], use: ContainerUse) -> tuple[str, ...]:
    grant, part = use.grant, use.part
    values = grant.namespace, grant.pod, grant.container, str(part.position), part.uuid
    if labels[-1] != _PARTS[-1]:
        return values
    parts = use.context_bytes, use.module_bytes, use.data_bytes
    rest = (use.memory_used_bytes or 0) - sum(parts)
    return (*values, *map(str, (*parts, rest)))
