"""Has autoscalers keep the nodes whose cards are held, by annotations.

That is one write when the first holder has come, and one some time after the last has left. A node says itself what was
written on it (formats/kubernetes/kept_node.py), so nothing has to be remembered from one operator to the next. With the
setting off, what is there of ours is taken away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from attrs import define

from gpuledger.formats.kubernetes.kept_node import KEEPING, KEPT_ANNOTATION, Changes, keeping, letting_go
from gpuledger.model.errors import Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.workflows.context import Component
from gpuledger.workflows.tasks import KeyedWorker

logger = logging.getLogger(__name__)

EMPTY_S = 30.0
"""How long a node has had no holder before it is let go: one that is between two pods is not written twice."""

AT_ONCE = 2
"""Nodes that are written at a time, and so after a change of the setting, too."""

WRITE_PAUSE_S = 0.05
"""There can be thousands of nodes: what has to be done at once goes first."""

DENIED_PAUSE_S = 300.0
"""After a write that we have no permission for, and for which there may be one later."""


@define(eq=False, slots=False)
class NodeKeeper(Component):
    """Follows which nodes have holders, and what is written on nodes."""

    _may_write: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._annotations: dict[str, dict[str, str]] = {}  # name of a node -> its annotations that matter
        self._timers: dict[str, asyncio.TimerHandle] = {}  # name of a node that is to be let go
        self._was_denied = False
        self.worker = KeyedWorker(self._bring_up_to_date, AT_ONCE, self._may_write)
        self._ledger.on_stored.append(self._look)

    def observe_node(self, node: Json) -> None:
        """See Follower."""
        name = str(node["metadata"]["name"])
        self._annotations[name] = _annotations(node)
        self._look(name)

    def forget_node(self, node_name: str) -> None:
        """See Follower."""
        self._annotations.pop(node_name, None)
        self._stop_timer(node_name)

    def became_active(self) -> None:
        """See Follower: all nodes are compared with what they should say."""
        for name in self._annotations:
            self._look(name)

    async def stop(self) -> None:
        """Write no more."""
        await self.worker.stop()

    def _is_wanted(self, name: str) -> bool:
        return self._settings.keep_nodes_in_use and any(e.listed for e in self._ledger.entries_of_node(name))

    def _look(self, name: str) -> None:
        """Have a node written, now or later, if it does not say what it should."""
        annotations = self._annotations.get(name)
        if annotations is None or not self._may_write():
            return
        if self._is_wanted(name):
            self._stop_timer(name)
            if keeping(annotations):
                self.worker.mark(name)
        elif letting_go(annotations) and name not in self._timers:
            wait_s = EMPTY_S if self._settings.keep_nodes_in_use else 0.0
            self._timers[name] = self._tasks.after(wait_s, self._due, name)

    def _due(self, name: str) -> None:
        self._stop_timer(name)
        self.worker.mark(name)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _change(self, name: str, annotations: dict[str, str]) -> Changes:
        if self._is_wanted(name):
            return keeping(annotations)
        return {} if name in self._timers else letting_go(annotations)

    async def _bring_up_to_date(self, name: str) -> None:
        """Write a node as it should be by now. Raises ApiError; Conflict if it has changed meanwhile."""
        if not self._change(name, self._annotations.get(name, {})):
            return
        try:
            node = await self._store.node(name)
            change = self._change(name, _annotations(node))
            if change:
                await self._store.annotate_node(name, change, node["metadata"]["resourceVersion"])
        except NotFound:
            return
        except Denied as error:
            if not self._was_denied:
                logger.error("nodes can't be annotated for autoscalers: %s", error)
            self._was_denied = True
            await asyncio.sleep(DENIED_PAUSE_S)
            self.worker.mark(name)
            return
        await asyncio.sleep(WRITE_PAUSE_S)


def _annotations(node: Json) -> dict[str, str]:
    found = node["metadata"].get("annotations") or {}
    return {name: str(found[name]) for name in (*KEEPING, KEPT_ANNOTATION) if name in found}
