"""What this agent shows on its Node, and the node's ResourceSlices: written when they differ, and at no other time.

ResourceSlices are a view of the cards for `kubectl`, autoscalers and Kueue. A kubelet deletes all slices of its node
when it starts, and those of a driver whose plugin has been away for 30 s (Kubernetes 1.36,
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). The watch shows what it deletes while this agent runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar

from gpuledger.formats.quantity import whole_number
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.formats.resource_claims.slices import API_VERSION, NodeOwner, SliceChanges, slice_changes
from gpuledger.kube_api.reads import RESOURCE_SLICES
from gpuledger.kube_api.watch import Api, follow
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.model.card import Card
from gpuledger.model.clock import Backoff
from gpuledger.model.errors import ApiError, BadInput, NotFound
from gpuledger.model.json_object import Json

Value = TypeVar("Value")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between two writes of the same value."""

QUIET_S = 60.0
"""A client that leaves it alone for so long, beyond the pause, does not fight."""


logger = logging.getLogger(__name__)


class Reconciler(ABC, Generic[Value]):
    """Keeps something at the API server equal to what the agent wants.

    It is watched, so that what was removed or edited is put back; a client that keeps at it is answered later and
    later, up to a minute. Times are those of the event loop.
    """

    def __init__(self, node_name: str, what: str) -> None:
        self._node_name, self._what = node_name, what
        self._look = asyncio.Event()
        self._events = 0  # that the watch has shown
        self._tried: Value | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._tried_s, self._pause_s = -QUIET_S - LONGEST_PAUSE_S, FIRST_PAUSE_S
        self.writes = 0

    @abstractmethod
    def observe(self, node: Json, gone: bool) -> None:
        """Observe the node as it is."""

    @abstractmethod
    def _missing(self) -> Value | None:
        """Return what is wanted, and not there; None for nothing."""

    @abstractmethod
    async def _send(self, wanted: Value) -> None:
        """Have the API server show it. Raises ApiError."""

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
        wanted = self._missing()
        if wanted is None:
            return None
        # What is new is written at once: a card that is broken must not wait because another client fights.
        return self._tried_s + self._pause_s if self._tried == wanted else 0.0

    async def _write(self) -> None:
        wanted, clock_s = self._missing(), asyncio.get_running_loop().time
        if wanted is None:
            return
        if clock_s() > self._tried_s + self._pause_s + QUIET_S:
            self._backoff.reset()
        self._pause_s = self._backoff.next_s()
        self._tried, self._tried_s = wanted, clock_s()
        try:
            await self._send(wanted)
        except ApiError as error:
            logger.warning("node %s: %s can't be written: %s", self._node_name, self._what, error)
            return
        finally:
            self._tried_s = clock_s()
        logger.info("node %s: wrote %s", self._node_name, self._what)


class NodeEntry(Reconciler[Value]):
    """A part of the Node."""

    def __init__(self, node_name: str, what: str) -> None:
        super().__init__(node_name, what)
        self._wanted: Value | None = None
        self._shown: Value | None = None
        self._seen = False

    @abstractmethod
    def _shown_by(self, node: Json) -> Value | None:
        """Return the value that a Node has."""

    @abstractmethod
    async def _patch(self, wanted: Value) -> None:
        """Write it into the Node. Raises ApiError."""

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

    def _missing(self) -> Value | None:
        return None if not self._seen or self._shown == self._wanted else self._wanted

    async def _send(self, wanted: Value) -> None:
        events = self._events
        await self._patch(wanted)
        if events == self._events:  # else the watch knows better, or will in a moment
            self._shown = wanted
        self.writes += 1


class NodeAnnotation(NodeEntry[str]):
    """An annotation of the Node; an empty value stands for none."""

    def __init__(self, node_name: str, nodes: KubeWrites, annotation: str, after: NodeAnnotation | None = None) -> None:
        """Make one; it is written once the node shows the right value of `after`.

        So a node that lists cards has said before whether its agent answers for them.
        """
        super().__init__(node_name, f"annotation {annotation}")
        self._nodes, self._annotation, self._after = nodes, annotation, after

    def _missing(self) -> str | None:
        return None if self._after is not None and not self._after.written else super()._missing()

    def _shown_by(self, node: Json) -> str | None:
        return str((node["metadata"].get("annotations") or {}).get(self._annotation, ""))

    async def _patch(self, wanted: str) -> None:
        await self._nodes.annotate_own_node(self._node_name, self._annotation, wanted)


class NodeCapacity(NodeEntry[Mapping[str, int]]):
    """Amounts in the Node's capacity that no device plugin serves: people look for them, and the kubelet adds them up.

    A kubelet sets them to 0 where a Node is created anew (`reconcileExtendedResource`), and computes from them what is
    allocatable.
    """

    def __init__(self, node_name: str, nodes: KubeWrites, names: Iterable[str]) -> None:
        super().__init__(node_name, "capacity")
        self._nodes, self._names = nodes, tuple(names)

    def _shown_by(self, node: Json) -> Mapping[str, int]:
        capacity = (node.get("status") or {}).get("capacity") or {}
        return {name: _amount(capacity[name]) for name in self._names if name in capacity}

    async def _patch(self, wanted: Mapping[str, int]) -> None:
        await self._nodes.set_own_capacity(self._node_name, {name: str(amount) for name, amount in wanted.items()})


def _amount(quantity: object) -> int:
    try:
        return whole_number(quantity)  # the API server writes 200k for 200000
    except BadInput:
        return -1


ASK_AGAIN_S = 600.0
"""Between two looks whether the API server has come to know such slices. This only reads."""


class ResourceSlices(Reconciler[tuple[NodeOwner, tuple[Card, ...]]]):
    """The slices of one node, equal to what its cards are."""

    def __init__(self, node_name: str, slices: KubeWrites, client: Api) -> None:
        super().__init__(node_name, "its ResourceSlices")
        self._slices, self._client = slices, client
        self._cards: tuple[Card, ...] | None = None
        self._owner: NodeOwner | None = None  # None while there is no such node
        self._stored: dict[str, Json] = {}  # name -> slice as the API server has it
        self._sent: dict[str, tuple[Json, Json]] = {}  # name -> spec as it was sent, and as it was stored
        self._listed = False

    def want(self, cards: tuple[Card, ...]) -> None:
        """Have the slices show these cards."""
        self._cards = cards
        self._look.set()

    def observe(self, node: Json, gone: bool) -> None:
        """Observe the node as it is. One that comes back has another UID, and its slices another owner."""
        owner = None if gone else NodeOwner(self._node_name, node["metadata"]["uid"])
        if owner != self._owner:
            self._owner = owner
            self._look.set()

    def observe_slice(self, found: Json, gone: bool) -> None:
        """Observe a slice of the node."""
        self._events += 1
        name = found["metadata"]["name"]
        known = self._stored.get(name)
        if known is not None and _version(found) < _version(known):
            return  # the answer to a write was here first
        if gone:
            self._stored.pop(name, None)
        else:
            self._stored[name] = found
        self._look.set()

    def listing(self) -> Callable[[set[str]], None]:
        """Return the callback for the list of slices: others that were known have gone unseen."""
        before = {found["metadata"]["uid"] for found in self._stored.values()}

        def listed(uids: set[str]) -> None:
            unseen = before - uids
            self._stored = {
                name: found for name, found in self._stored.items() if found["metadata"]["uid"] not in unseen
            }
            self._listed = True
            self._look.set()

        return listed

    async def run(self) -> None:
        """Write when it is needed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(super().run())

    async def _follow(self) -> None:
        selector = {"fieldSelector": f"spec.nodeName={self._node_name},spec.driver={DRIVER}"}
        told = False
        while True:
            await follow(self._client, RESOURCE_SLICES, selector, self.observe_slice, self.listing, while_served=True)
            self._listed = False
            if not told:
                logger.info("the API server has no %s (Kubernetes 1.34): cards are not shown as slices", API_VERSION)
            told = True
            await asyncio.sleep(ASK_AGAIN_S)

    def _missing(self) -> tuple[NodeOwner, tuple[Card, ...]] | None:
        if not self._listed or self._owner is None or self._cards is None or not self._changes():
            return None
        return self._owner, self._cards

    def _changes(self) -> SliceChanges:
        if self._owner is None or self._cards is None:
            return SliceChanges()
        return slice_changes(self._owner, self._cards, {name: self._as_sent(name) for name in self._stored})

    def _as_sent(self, name: str) -> Json:
        """Return a slice as this agent has sent it: an API server leaves out fields whose feature is off."""
        stored = self._stored[name]
        sent, answer = self._sent.get(name, (None, None))
        return {**stored, "spec": sent} if sent is not None and stored["spec"] == answer else stored

    async def _send(self, wanted: tuple[NodeOwner, tuple[Card, ...]]) -> None:
        changes = self._changes()
        for body in changes.create:
            await self._store(body, self._slices.create_slice)
        for body in changes.replace:
            await self._store(body, self._slices.replace_slice)
        for name in changes.delete:
            with contextlib.suppress(NotFound):
                await self._slices.delete_slice(name)
            self.writes += 1
            self._stored.pop(name, None)

    async def _store(self, body: Json, send: Callable[[Json], Awaitable[Json]]) -> None:
        name, events = body["metadata"]["name"], self._events
        stored = await send(body)
        self.writes += 1
        self._sent[name] = (body["spec"], stored["spec"])
        if events == self._events:  # else the watch knows better, or will in a moment
            self._stored[name] = stored


def _version(found: Json) -> int:
    return int(found["metadata"]["resourceVersion"])
