"""What is used of cards, and by each container, as the agent's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import Metric

from gpuledger.agent.devices.source import CardUse
from gpuledger.agent.health_server import counter, gauge
from gpuledger.agent.usage.comparison import PodUsage
from gpuledger.agent.usage.containers import MIB, ContainerUse
from gpuledger.agent.usage.monitor import Monitor
from gpuledger.agent.usage.region_files import REASONS
from gpuledger.model.card import Card

Value = float | None
"""None: there is no sample."""

Of = Callable[[ContainerUse], Value]

_PROCESSES = ("uuid", "pod_uid", "has_share")

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


def process_metrics(uses: Iterable[PodUsage]) -> Iterable[Metric]:
    """Yield what the driver says of processes, by pod."""
    samples, labels = [([use.uuid, use.pod_uid, str(use.allowed).lower()], use) for use in uses], _PROCESSES
    memory = [(values, use.memory_mib * 2.0**20) for values, use in samples]
    yield gauge("process_memory_bytes", "Memory that a pod's processes use of a card.", memory, labels)
    number = [(values, float(use.processes)) for values, use in samples]
    yield gauge("processes", "Processes of a pod on a card; without a pod, the node's own.", number, labels)


def monitor_metrics(monitor: Monitor) -> Iterable[Metric]:
    """Yield what the monitor looks at, and what it had to skip."""
    yield gauge("regions", "Shared regions of HAMi-core that are looked at.", [([], float(len(monitor.looks)))])
    skipped = [([reason], float(monitor.regions.skipped[reason])) for reason in REASONS]
    yield counter("regions_skipped", "Looks at shared regions that were of no use, by reason.", skipped, ["reason"])
    written = float(monitor.regions.effort.written)
    yield counter("region_writes", "Writes to shared regions: who pauses, and whose limits hold.", [([], written)])
