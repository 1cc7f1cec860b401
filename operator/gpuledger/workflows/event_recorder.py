"""Events for people: each is posted once, in the background, as the log has it in any case."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from gpuledger.formats.kubernetes.other import named_once, node_event, pod_event
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, Conflict
from gpuledger.model.refusal import EventReason
from gpuledger.model.share import Pod

logger = logging.getLogger(__name__)

POSTS_AT_ONCE = 16
"""A node that loses all its cards has hundreds of pods to tell."""


class EventRecorder:
    """Posts Events of nodes and pods in the background; none of these calls fails."""

    def __init__(self, store: KubeWrites, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(POSTS_AT_ONCE)

    def post_node_event(self, node_name: str, sentence: str) -> None:
        """Show what is wrong with a node's inventory."""
        self._post(node_event(node_name, EventReason.BAD_INVENTORY, sentence, self._clock.wall()))

    def post_pod_event(self, pod: Pod, warning: bool, reason: EventReason, sentence: str) -> None:
        """Show what has become of a pod's card."""
        self._post(pod_event(pod, warning, reason, sentence, self._clock.wall()))

    def post_pod_event_once(self, pod: Pod, reason: EventReason, sentence: str, key: str) -> None:
        """Warn about a pod, unless it was warned under this key before."""
        self._post(named_once(pod_event(pod, True, reason, sentence, self._clock.wall()), pod, key))

    def _post(self, event: dict[str, Any]) -> None:
        task = asyncio.create_task(self._create(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, event: dict[str, Any]) -> None:
        try:
            async with self._places:
                await self._store.create_event(event)
        except Conflict:  # the Event exists already
            pass
        except ApiError as error:
            about = event["involvedObject"]
            logger.warning("%s %s: the Event could not be created: %s", about["kind"].lower(), about["name"], error)
