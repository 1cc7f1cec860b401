"""Events about this node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gpuledger.formats.objects.event import node_event, node_event_once
from gpuledger.model.errors import ApiError, Conflict
from gpuledger.model.event_reasons import EventReason

logger = logging.getLogger(__name__)


class EventStore(Protocol):
    """Where Events are created."""

    async def create_event(self, event: dict[str, Any]) -> None:
        """Create one. Raises ApiError."""


class NodeEvents:
    """Posts Events, and waits for none: one that can't be created is in the log."""

    def __init__(self, node_name: str, store: EventStore) -> None:
        self._node_name, self._store = node_name, store
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, reason: EventReason, sentence: str, key: str = "") -> None:
        """Post a warning; one with a key only once, also by an agent that has started again."""
        logger.warning("%s", sentence)
        about = self._node_name, reason, sentence, datetime.now(UTC)
        task = asyncio.create_task(self._create(node_event_once(*about, key) if key else node_event(*about)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, event: Mapping[str, Any]) -> None:
        try:
            await self._store.create_event(dict(event))
        except Conflict:
            logger.info("node %s: the Event exists already", self._node_name)
        except ApiError as error:
            logger.warning("node %s: the Event could not be created: %s", self._node_name, error)
