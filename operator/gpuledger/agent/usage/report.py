"""What is used on this node, for /usage and the metrics: grants, regions and the driver's processes together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime

from prometheus_client.core import Metric

from gpuledger.agent.devices.source import CardUse, DeviceUses, DriverGone
from gpuledger.agent.usage.metrics import (
    Comparison,
    compatible_metrics,
    monitor_metrics,
    process_metrics,
    usage_metrics,
)
from gpuledger.agent.usage.monitor import Monitor
from gpuledger.agent.usage.regions import MIB, ContainerUse, container_uses
from gpuledger.formats.runtime.cdi import Grant
from gpuledger.model.card import Card
from gpuledger.model.json_object import Json

REUSED_S = 5.0
"""A look at the driver that is not older answers another question, too."""

ANSWER_S = 3.0
"""For so long an answer waits for a new look; then it has the last one."""


class UsageReport:
    """The last look at the driver, and all that follows from it."""

    def __init__(
        self,
        node_name: str,
        grants: Callable[[], Iterable[Grant]],
        look: Callable[[], Awaitable[DeviceUses]],
        comparison: Comparison,
        monitor: Monitor,
    ) -> None:
        """Make one; `look` asks the driver, and raises DriverGone."""
        self._node_name, self._grants, self._look = node_name, grants, look
        self._comparison, self._monitor = comparison, monitor
        self._used: dict[str, CardUse] = {}  # UUID -> what is used of it, as of the last look
        self._known = False
        self._looked_s = -REUSED_S  # by the event loop's clock
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Ask the driver now, and compare. What was known is forgotten if it does not answer."""
        try:
            uses = await self._look()
        except DriverGone:
            self._used, self._known = {}, False
            return
        finally:
            self._looked_s = asyncio.get_running_loop().time()
        self._used, self._known = {use.uuid: use for use in uses.cards}, True
        await self._comparison.compare(uses.processes)

    async def _look_again(self) -> None:
        """Have a look that is a few seconds old at most, however many ask; do not wait long for it."""
        if self._looking is None or self._looking.done():
            if asyncio.get_running_loop().time() < self._looked_s + REUSED_S:
                return
            self._looking = asyncio.create_task(self.look())
        await asyncio.wait([self._looking], timeout=ANSWER_S)

    def metrics(self, cards: Sequence[Card], compatibility: Collection[str]) -> Iterable[Metric]:
        """Yield the last look as metrics; `compatibility` are systems under whose names they are shown, too."""
        containers = self._containers()
        yield from process_metrics(self._comparison.uses)
        yield from usage_metrics(cards, self._used, containers)
        yield from monitor_metrics(self._monitor)
        yield from compatible_metrics(compatibility, self._node_name, cards, self._used, containers)

    def _containers(self) -> list[ContainerUse]:
        processes = self._comparison.of_containers if self._known else None
        return container_uses(self._grants(), self._monitor.looks, processes, time.time())

    async def answer(self, cards: Iterable[Card]) -> Json:
        """Return the answer of /usage."""
        await self._look_again()
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "node": self._node_name,
            "at": now,
            "cards": [_card(card, self._used.get(card.uuid)) for card in cards],
            "containers": [_container(use) for use in self._containers()],
        }


def _card(card: Card, use: CardUse | None) -> Json:
    return {
        "uuid": card.uuid,
        "index": card.index,
        "memoryUsedMiB": use and use.memory_mib,
        "utilizationPercent": use and use.cores_percent,
    }


def _container(use: ContainerUse) -> Json:
    grant, part = use.grant, use.part
    return {
        "namespace": grant.namespace,
        "pod": grant.pod,
        "podUID": grant.pod_uid,
        "container": grant.container,
        "uuid": part.uuid,
        "memoryHeldMiB": part.memory_mib,
        "memoryUsedMiB": None if use.memory_used_bytes is None else -(-use.memory_used_bytes // MIB),
        "memoryLimitMiB": part.memory_limit_mib,
        "coresHeld": part.cores,
        "utilizationPercent": use.cores_percent,
        "lastKernelSecondsAgo": use.last_kernel_s_ago,
        "paused": use.paused,
        "source": use.source,
    }
