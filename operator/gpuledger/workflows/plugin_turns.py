"""Over another system's device plugin: how it is told of a pod's cards, and whose turn it is.

The kubelet does not say for which pod it asks a device plugin. HAMi's and Volcano's guess, and a guess can be wrong
only while several pods answer to it. So a pod is bound when no other one that its node's plugin could mistake it for is
still to be found. HAMi's takes any pod of the node that waits, unless the node's lock names one: one pod at a time,
under that lock. Volcano's compares the number of cards: pods with different numbers never wait for each other. Our own
node agent asks the kubelet, and nobody waits.

A turn ends when the plugin has marked the pod, when the pod is gone, or after `timeout_s`: then the next pod is bound,
whatever has become of the plugin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from gpuledger.formats.assignments import hami_assignment, unmatched, volcano_assignment
from gpuledger.formats.devices import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.node_lock import LOCK_ANNOTATION, NodeLock, lock_text, read_lock
from gpuledger.formats.pod import bound_node, is_finished
from gpuledger.formats.words import AssignmentWords, Words
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import ApiError, BindFailed, Conflict, NotFound
from gpuledger.model.node_offer import Dialect
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.pauses import pause

logger = logging.getLogger(__name__)

Json = dict[str, Any]

Key = tuple[str, int]
"""Node name, and number of cards where that tells pods apart: pods with one key can be mistaken for each other."""


class LockStore(Protocol):
    """Nodes and pods at the API server."""

    async def node(self, name: str) -> Json:
        """Return a node as it is now. Raises NotFound."""

    async def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as it is now. Raises NotFound."""

    async def annotate_node(self, name: str, annotation: str, value: str | None, resource_version: str) -> None:
        """Set or remove an annotation, if the node has not changed since. Raises Conflict if it has."""


@dataclass(slots=True)
class _Desk:
    """Pods that a plugin could mistake for each other."""

    queue: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: set[str] = field(default_factory=set)  # UIDs of the pods that are still to be found
    free: asyncio.Event = field(default_factory=asyncio.Event)


class PluginTurns:
    """Hands out turns at the device plugins of nodes."""

    def __init__(self, ledger: Ledger, words: Words, store: LockStore, counts: Counts, timeout_s: float) -> None:
        self._ledger = ledger
        self._words = words
        self._counts = counts
        self._lock = HamiLock(store, timeout_s)
        self._timeout_s = timeout_s
        self._desks: dict[Key, _Desk] = {}
        self._keys: dict[str, Key] = {}  # pod UID -> where it is open
        self._given_up: set[str] = set()  # UIDs of bound pods that were not found in time
        self._tasks: set[asyncio.Task[None]] = set()

    def dialect(self, node_name: str) -> Dialect:
        """Return whose words the node's plugin understands. Raises BindFailed while it does not answer."""
        offer = self._ledger.offer(node_name)
        if offer is None:
            raise BindFailed(f"node {node_name}: GPU node agent is not ready")
        return offer.dialect

    def annotations(self, placement: Placement, request: PodRequest | None, dialect: Dialect) -> dict[str, str]:
        """Return what the pod is told of its cards: in our words always, and in those of the node's plugin."""
        told = {DEVICES_ANNOTATION: devices_annotation(placement.shares)}
        if request is None or dialect is Dialect.NATIVE:
            return told
        now_s, names = int(datetime.now(UTC).timestamp()), request.all_containers
        if dialect is Dialect.HAMI:
            return told | hami_assignment(names, placement.shares, self._assignment, placement.node_name, now_s)
        main, unit_mib = names[request.init_containers :], self._words.volcano_memory_unit_mib
        return told | volcano_assignment(main, placement.shares, placement.node_name, now_s, unit_mib)

    def _assignment(self, uuid: str) -> AssignmentWords:
        entry = self._ledger.entry(uuid)
        return self._words.assignment(entry.card) if entry is not None else AssignmentWords()

    @asynccontextmanager
    async def turn(self, pod: Pod, placement: Placement, dialect: Dialect) -> AsyncIterator[None]:
        """Wait until the pod can be bound; what is raised inside says that it was not, and ends its turn."""
        if dialect is Dialect.NATIVE or not placement.shares:
            yield
            return
        cards = sum(len(share.containers) for share in placement.shares)
        key = (placement.node_name, cards if dialect is Dialect.VOLCANO else 0)
        desk = self._desks.setdefault(key, _Desk())
        async with desk.queue:
            while desk.open - {pod.uid}:
                desk.free.clear()
                await desk.free.wait()
            self._open(key, pod.uid)
        try:
            if dialect is Dialect.HAMI:
                await self._lock.take(placement.node_name, pod)
            yield
        except BaseException:
            self._close(pod.uid)
            if dialect is Dialect.HAMI:
                self._later(self._lock.give_back(placement.node_name, pod))
            raise
        self._end_in_time(pod, key, dialect)

    def observe(self, pod: Json, uid: str, gone: bool) -> None:
        """Take in a bound pod: perhaps its plugin has found it."""
        waits_for = None if gone or is_finished(pod) or not bound_node(pod) else unmatched(pod)
        if waits_for is None:
            self._given_up.discard(uid)
            self._close(uid)
        elif uid not in self._keys and uid not in self._given_up:  # bound before this process was there
            dialect, cards = waits_for
            key = (bound_node(pod), cards)
            self._open(key, uid)
            metadata = pod["metadata"]
            self._end_in_time(Pod(uid, metadata["namespace"], metadata["name"]), key, dialect)

    def _open(self, key: Key, uid: str) -> None:
        self._desks.setdefault(key, _Desk()).open.add(uid)
        self._keys[uid] = key

    def _close(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        if key is not None:
            desk = self._desks[key]
            desk.open.discard(uid)
            desk.free.set()

    def _end_in_time(self, pod: Pod, key: Key, dialect: Dialect) -> None:
        asyncio.get_running_loop().call_later(self._timeout_s, self._give_up, pod, key, dialect)

    def _give_up(self, pod: Pod, key: Key, dialect: Dialect) -> None:
        if self._keys.get(pod.uid) != key:
            return
        node_name, _ = key
        logger.warning(
            "pod %s: the device plugin of node %s has not found it within %.0f s; the next pod is bound",
            pod,
            node_name,
            self._timeout_s,
        )
        self._counts.plugin_late += 1
        self._given_up.add(pod.uid)
        self._close(pod.uid)
        if dialect is Dialect.HAMI:
            self._later(self._lock.give_back(node_name, pod))

    def _later(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class HamiLock:
    """HAMi's lock of a node: an annotation that names the pod which the node's device plugin has to serve next.

    Source: HAMi 2.10, `pkg/util/nodelock`. The plugin removes it when it has served all containers of the pod.
    """

    def __init__(
        self, store: LockStore, timeout_s: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._now = now

    async def take(self, node_name: str, pod: Pod) -> None:
        """Set the lock for a pod; wait while another one's is in force. Raises ApiError."""
        attempt = 0
        while True:
            node = await self._store.node(node_name)
            lock = read_lock(node)
            if lock is not None and lock.is_of(pod):
                return
            try:
                if lock is None or await self._is_void(lock):
                    await self._write(node, lock_text(pod, self._now()))
                    return
                raise Conflict(f"node {node_name} is locked for pod {lock.namespace}/{lock.name}")
            except Conflict as error:
                await pause(attempt, error)
                attempt += 1

    async def give_back(self, node_name: str, pod: Pod) -> None:
        """Remove the lock if it is this pod's. Tries until that is clear."""
        attempt = 0
        while True:
            try:
                with suppress(NotFound):
                    node = await self._store.node(node_name)
                    lock = read_lock(node)
                    if lock is not None and lock.is_of(pod):
                        await self._write(node, None)
                return
            except ApiError as error:
                await pause(attempt, error)
                attempt += 1

    async def _is_void(self, lock: NodeLock) -> bool:
        """Tell whether nobody will remove a lock: it is too old, or its pod is not on its way to the node any more."""
        if lock.age_s(self._now()) > self._timeout_s:
            return True
        try:
            found = await self._store.pod(lock.namespace, lock.name)
        except NotFound:
            return True
        return is_finished(found) or (bool(bound_node(found)) and unmatched(found) is None)

    async def _write(self, node: Json, value: str | None) -> None:
        metadata = node["metadata"]
        await self._store.annotate_node(metadata["name"], LOCK_ANNOTATION, value, metadata["resourceVersion"])
