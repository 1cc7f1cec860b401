"""An annotation of this node: written when it differs, and at no other time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Protocol

from gpuledger.model.backoff import Backoff
from gpuledger.model.errors import ApiError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between two writes of the same text."""

QUIET_S = 60.0
"""A client that leaves the annotation alone for so long, beyond the pause, does not fight."""


class Nodes(Protocol):
    """Nodes at the API server."""

    async def annotate_own_node(self, name: str, annotation: str, value: str) -> None:
        """Set one annotation of a node, whatever it was."""


class NodeAnnotation:
    """Keeps an annotation equal to what the agent wants.

    The node is watched, so that a removed or edited annotation is put back; a client that keeps at it is answered later
    and later, up to LONGEST_PAUSE_S.
    """

    def __init__(self, node_name: str, nodes: Nodes, annotation: str) -> None:
        self._node_name, self._nodes, self._annotation = node_name, nodes, annotation
        self._wanted: str | None = None
        self._shown: str | None = None
        self._seen = False
        self._look = asyncio.Event()
        self._events = 0  # that the watch has shown
        self._tried: str | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._tried_s, self._pause_s = -QUIET_S - LONGEST_PAUSE_S, FIRST_PAUSE_S
        self.writes = 0

    @property
    def written(self) -> bool:
        """Whether the node shows what it should."""
        return self._seen and self._wanted is not None and self._shown == self._wanted

    def want(self, text: str) -> None:
        """Have the node show this."""
        self._wanted = text
        self._look.set()

    def observe(self, node: dict[str, Any], gone: bool) -> None:
        """Observe the node as it is."""
        annotations = node["metadata"].get("annotations") or {}
        self._seen = not gone  # a node that was deleted comes back with its kubelet
        self._shown = annotations.get(self._annotation)
        self._events += 1
        self._look.set()

    async def run(self) -> None:
        """Write when it is needed, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._due_s()):
                    await self._look.wait()
                self._look.clear()
                continue
            await self._write()

    def _due_s(self) -> float | None:
        """Return when to write, None if there is nothing to write."""
        if not self._seen or self._wanted is None or self._shown == self._wanted:
            return None
        # What is new is written at once: a card that is broken must not wait because another client fights.
        return self._tried_s + self._pause_s if self._tried == self._wanted else 0.0

    async def _write(self) -> None:
        wanted, now_s = self._wanted, asyncio.get_running_loop().time()
        if wanted is None:
            return
        if now_s > self._tried_s + self._pause_s + QUIET_S:
            self._backoff.reset()
        self._pause_s = self._backoff.next_s()
        self._tried, self._tried_s = wanted, now_s
        events = self._events
        try:
            await self._nodes.annotate_own_node(self._node_name, self._annotation, wanted)
        except ApiError as error:
            logger.warning("node %s: annotation %s can't be written: %s", self._node_name, self._annotation, error)
            return
        finally:
            self._tried_s = asyncio.get_running_loop().time()
        if events == self._events:  # else the watch knows better, or will in a moment
            self._shown = wanted
        self.writes += 1
        logger.info("node %s: annotation %s is written", self._node_name, self._annotation)
