"""What this agent shows on its Node: written when it differs, and at no other time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from gpuledger.formats.quantity import whole_number
from gpuledger.model.backoff import Backoff
from gpuledger.model.errors import ApiError, BadInput

logger = logging.getLogger(__name__)

Json = dict[str, Any]

Value = TypeVar("Value")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between two writes of the same value."""

QUIET_S = 60.0
"""A client that leaves it alone for so long, beyond the pause, does not fight."""


class Nodes(Protocol):
    """Nodes at the API server."""

    async def annotate_own_node(self, name: str, annotation: str, value: str) -> None:
        """Set one annotation of a node, whatever it was; remove it for an empty value."""

    async def set_own_capacity(self, name: str, amounts: Mapping[str, str]) -> None:
        """Set some amounts of a node's capacity, whatever they were."""


class NodeEntry(ABC, Generic[Value]):
    """Keeps a part of the Node equal to what the agent wants.

    The node is watched, so that what was removed or edited is put back; a client that keeps at it is answered later
    and later, up to LONGEST_PAUSE_S.
    """

    def __init__(self, node_name: str, what: str) -> None:
        self._node_name, self._what = node_name, what
        self._wanted: Value | None = None
        self._shown: Value | None = None
        self._seen = False
        self._look = asyncio.Event()
        self._events = 0  # that the watch has shown
        self._tried: Value | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._tried_s, self._pause_s = -QUIET_S - LONGEST_PAUSE_S, FIRST_PAUSE_S
        self.writes = 0

    @abstractmethod
    def _shown_by(self, node: Json) -> Value | None:
        """Return what a Node shows."""

    @abstractmethod
    async def _send(self, wanted: Value) -> None:
        """Have the API server show it. Raises ApiError."""

    @property
    def written(self) -> bool:
        """Whether the node shows what it should."""
        return self._seen and self._wanted is not None and self._shown == self._wanted

    def want(self, value: Value) -> None:
        """Have the node show this."""
        self._wanted = value
        self._look.set()

    def observe(self, node: Json, gone: bool) -> None:
        """Observe the node as it is."""
        self._seen = not gone  # a node that was deleted comes back with its kubelet
        self._shown = self._shown_by(node)
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
            await self._send(wanted)
        except ApiError as error:
            logger.warning("node %s: %s can't be written: %s", self._node_name, self._what, error)
            return
        finally:
            self._tried_s = asyncio.get_running_loop().time()
        if events == self._events:  # else the watch knows better, or will in a moment
            self._shown = wanted
        self.writes += 1
        logger.info("node %s: %s is written", self._node_name, self._what)


class NodeAnnotation(NodeEntry[str]):
    """An annotation of the Node; an empty value stands for none."""

    def __init__(self, node_name: str, nodes: Nodes, annotation: str) -> None:
        super().__init__(node_name, f"annotation {annotation}")
        self._nodes, self._annotation = nodes, annotation

    def _shown_by(self, node: Json) -> str | None:
        return str((node["metadata"].get("annotations") or {}).get(self._annotation, ""))

    async def _send(self, wanted: str) -> None:
        await self._nodes.annotate_own_node(self._node_name, self._annotation, wanted)


class NodeCapacity(NodeEntry[Mapping[str, int]]):
    """Amounts in the Node's capacity that no device plugin serves: people look for them, and the kubelet adds them up.

    A kubelet sets them to 0 where a Node is created anew (`reconcileExtendedResource`), and computes from them what is
    allocatable.
    """

    def __init__(self, node_name: str, nodes: Nodes, names: Iterable[str]) -> None:
        super().__init__(node_name, "capacity")
        self._nodes, self._names = nodes, tuple(names)

    def _shown_by(self, node: Json) -> Mapping[str, int]:
        capacity = (node.get("status") or {}).get("capacity") or {}
        return {name: _amount(capacity[name]) for name in self._names if name in capacity}

    async def _send(self, wanted: Mapping[str, int]) -> None:
        await self._nodes.set_own_capacity(self._node_name, {name: str(amount) for name, amount in wanted.items()})


def _amount(quantity: object) -> int:
    try:
        return whole_number(quantity)  # the API server writes 200k for 200000
    except BadInput:
        return -1
