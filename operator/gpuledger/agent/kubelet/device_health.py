"""The health of our devices, as the kubelet shows it in the status of pods that have them by a ResourceClaim."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from gpuledger.agent._generated import dra_health_pb2 as messages
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.model.card import Card

SAY_AGAIN_S = 60.0
"""How often the same is said again, over the socket."""

COUNTS_FOR_S = 180
"""After which a health that was not said again counts as unknown."""


class DeviceHealth:
    """Tells every kubelet that listens."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._cards: tuple[Card, ...] = ()
        self._changed = asyncio.Event()

    def show(self, cards: Iterable[Card]) -> None:
        """Observe the cards as they are now."""
        self._cards = tuple(cards)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def NodeWatchResources(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[messages.NodeWatchResourcesResponse]:
        """Say how all cards are: now, at each change, and again from time to time."""
        while True:
            changed = self._changed
            yield messages.NodeWatchResourcesResponse(devices=map(self._health, self._cards))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAY_AGAIN_S):
                    await changed.wait()

    def _health(self, card: Card) -> messages.DeviceHealth:
        return messages.DeviceHealth(
            device=messages.DeviceIdentifier(pool_name=self._pool, device_name=device_name(card.uuid)),
            health=messages.HEALTHY if card.healthy else messages.UNHEALTHY,
            last_updated_time=int(time.time()),
            health_check_timeout_seconds=COUNTS_FOR_S,
            message=card.fault,
        )
