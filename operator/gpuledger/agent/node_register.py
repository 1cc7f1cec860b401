"""The annotation that lists this node's cards: written when it differs, and at no other time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from gpuledger.formats.node import REGISTER_ANNOTATION
from gpuledger.model.errors import ApiError

logger = logging.getLogger(__name__)

QUIET_S = 60.0
LONGEST_PAUSE_S = 60.0


class Nodes(Protocol):
    """Nodes at the API server."""

    async def annotate_own_node(self, name: str, annotation: str, value: str) -> None:
        """Set one annotation of a node, whatever it was."""


class NodeRegister:
    """Keeps the annotation equal to what the agent sees.

    The node is watched, so that a removed or edited annotation is put back; somebody who keeps at it is answered later
    and later, up to LONGEST_PAUSE_S.
    """

    def __init__(self, node_name: str, nodes: Nodes) -> None:
        self._node_name, self._nodes = node_name, nodes
        self._wanted: str | None = None
        self._shown: str | None = None
        self._seen = False
        self._look = asyncio.Event()
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
        """Take in the node as it is."""
        annotations = node["metadata"].get("annotations") or {}
        self._seen = not gone  # a node that was deleted comes back with its kubelet
        self._shown = annotations.get(REGISTER_ANNOTATION)
        self._look.set()

    async def run(self) -> None:
        """Write when it is needed, until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s, last_s = 0.0, -QUIET_S
        while True:
            await self._look.wait()
            self._look.clear()
            if not self._seen or self._wanted is None or self._shown == self._wanted:
                continue
            pause_s = 0.0 if loop.time() > last_s + QUIET_S else min(max(2 * pause_s, 1.0), LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
            last_s = loop.time()
            wanted = self._wanted
            if self._seen and self._shown != wanted:
                await self._write(wanted)

    async def _write(self, wanted: str) -> None:
        try:
            await self._nodes.annotate_own_node(self._node_name, REGISTER_ANNOTATION, wanted)
        except ApiError as error:
            logger.warning("node %s does not show its cards: %s", self._node_name, error)
            self._look.set()
            return
        self._shown = wanted
        self.writes += 1
        logger.info("node %s: its cards are written down", self._node_name)
