"""Over another system's device plugin: how it learns of a pod's cards, and which pod's turn it is.

The kubelet does not say for which pod it asks a device plugin. HAMi's and Volcano's guess, and a guess can be wrong
only while several pods answer to it. So a pod is bound when no other one that its node's plugin could mistake it for is
still to be found. HAMi's takes any pod of the node that waits, unless the node's lock names one: one pod at a time,
under that lock. Volcano's compares the number of cards: pods with different numbers never wait for each other. Plugins
of other vendors' own have no lock, and say in an annotation of theirs that they have found the pod; or say nothing, and
no one waits for these. Our own node agent asks the kubelet, and no one waits.

A turn ends when the plugin has marked the pod, when the pod is gone, or after `timeout_s`: then the next pod is bound,
whatever has become of the plugin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from attrs import define

from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.dialects.assignments import (
    LOCK_ANNOTATION,
    VOLCANO_PHASE,
    NodeLock,
    hami_assignment,
    lock_text,
    read_lock,
    unmatched,
    volcano_assignment,
)
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.dialects.vocabulary import HAMI_PHASE, AssignmentAnnotations
from gpuledger.formats.kubernetes.pod import bound_node, is_finished
from gpuledger.kube_api.writes import KubeStore
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, BadInput, BindFailed, Conflict, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.node import Dialect
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.workflows.context import Component
from gpuledger.workflows.tasks import sleep_backoff

logger = logging.getLogger(__name__)


UNLOCKING_S = 2.0
"""How long HAMi's plugin may take to remove the lock of a pod that it has served."""

Key = tuple[str, Dialect, int]
"""Node name, dialect of its device plugin, and the number of cards where that tells pods apart. A device plugin can
mistake pods with one key for each other."""


@dataclass(slots=True)
class _Queue:
    """Pods that a plugin could mistake for each other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: set[str] = field(default_factory=set)  # UIDs of the pods that are still to be found
    free: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0  # who waits here, or is about to


@define(eq=False, slots=False)
class DevicePluginQueue(Component):
    """Hands out turns at the device plugins of nodes."""

    def __attrs_post_init__(self) -> None:
        self._answer_names = self._formats.dialects.answers()
        self._timeout_s = self._settings.plugin_timeout_s
        self._lock = HamiLock(self._store, self._timeout_s, self._clock)
        self._queues: dict[Key, _Queue] = {}
        self._keys: dict[str, Key] = {}  # pod UID -> where it is open
        self._over: set[str] = set()  # UIDs of bound pods that had their turn: none gets a second one
        self._waiting: set[str] = set()  # UIDs of pods whose turn has not come

    def dialect(self, node_name: str) -> Dialect:
        """Return the dialect of the node's device plugin. Raises BindFailed while it, or its kubelet, hangs."""
        offer = self._ledger.offer(node_name)
        if offer is None:
            raise BindFailed(f"node {node_name}: GPU node agent is not ready")
        if self._ledger.hangs(node_name):
            raise BindFailed(f"node {node_name} starts no pods: its kubelet or GPU node agent hangs")
        return offer.dialect

    def annotations(self, placement: Placement, request: PodRequest | None, dialect: Dialect) -> dict[str, str]:
        """Return the annotations that name a pod's cards: ours always, and those of the node's plugin."""
        annotations = {DEVICES_ANNOTATION: devices_annotation(placement.shares)}
        if request is None or dialect is Dialect.NATIVE:
            return annotations
        now_s, names = int(self._clock.wall().timestamp()), request.all_containers
        if dialect is Dialect.HAMI:
            shares, node_name = placement.shares, placement.node_name
            by_cores = {name for name, demand in zip(request.names, request.shape, strict=True) if not demand.resource}
            return annotations | hami_assignment(
                names, shares, self._assignment, node_name, now_s, self._index, by_cores
            )
        main, unit_mib = names[request.init_containers :], self._formats.dialects.volcano_memory_unit_mib
        return annotations | volcano_assignment(main, placement.shares, placement.node_name, now_s, unit_mib)

    def _assignment(self, uuid: str) -> AssignmentAnnotations:
        entry = self._ledger.entry(uuid)
        return self._formats.dialects.assignment(entry.card) if entry is not None else AssignmentAnnotations()

    def _index(self, uuid: str) -> int:
        entry = self._ledger.entry(uuid)
        return entry.card.index if entry is not None else 0

    def _answers(self, placement: Placement, dialect: Dialect) -> set[str]:
        """Return where the plugins that have to find the pod say so; some never do, and no one waits for these."""
        if dialect is Dialect.NATIVE:
            return set()
        if dialect is Dialect.VOLCANO:
            return {VOLCANO_PHASE}
        return {self._assignment(share.uuid).answer for share in placement.shares} - {""}

    @asynccontextmanager
    async def turn(self, pod: Pod, placement: Placement, dialect: Dialect) -> AsyncIterator[None]:
        """Wait until the pod can be bound; what is raised inside says that it was not, and ends its turn."""
        answers = self._answers(placement, dialect)
        if not answers:
            yield
            return
        cards = sum(len(share.containers) for share in placement.shares)
        key = (placement.node_name, dialect, cards if dialect is Dialect.VOLCANO else 0)
        with self._noted(pod):
            await self._until_free(key, pod)
        try:
            self._check_still_so(placement, dialect)
            if HAMI_PHASE in answers:
                with self._noted(pod):
                    await self._lock.take(placement.node_name, pod)
            yield
        except Exception:
            await self._end_failed(pod, key)
            raise
        except BaseException:  # a Binding may be under way: the lock stays until it is too old
            self._close(pod.uid, key)
            raise
        self._end_in_time(pod, key)

    def _check_still_so(self, placement: Placement, dialect: Dialect) -> None:
        """Raise BindFailed if, while the pod waited, the node has changed plugins or lost one of its cards."""
        if self.dialect(placement.node_name) is not dialect:
            raise BindFailed(f"the device plugin of node {placement.node_name} has changed since the pod was placed")
        self.check_cards(placement)

    def check_cards(self, placement: Placement) -> None:
        """Raise BindFailed if a chosen card takes no new pods any more.

        It is unhealthy, gone, in another node or cordoned by now, or another pod may use it: the node's device plugin
        was told about another pod.
        """
        for share in placement.shares:
            entry = self._ledger.entry(share.uuid)
            is_there = entry is not None and entry.reported and entry.card.node_name == placement.node_name
            if entry is None or not is_there or not entry.takes_pods:
                raise BindFailed(f"card {share.uuid} of node {placement.node_name} no longer takes new pods")
            if self._ledger.strangers.is_closed(entry):
                raise BindFailed(f"card {share.uuid} may be in use by a pod that is not in the ledger")

    def is_waiting(self, uid: str) -> bool:
        """Return whether a pod waits for its turn."""
        return uid in self._waiting

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod: its device plugin may have found it.

        Users can write the annotations that are read here. So no pod waits for one without cards, or twice for one pod.
        """
        uid = pod["metadata"]["uid"]
        if is_finished(pod) or not bound_node(pod):
            self.forget_bound(uid, pod)
            return
        node_name, key = bound_node(pod), self._keys.get(uid)
        if key is not None and key[0] == node_name:
            if unmatched(pod, key[1], self._answer_names) is None:
                self._over.add(uid)
                self._close(uid)
        elif uid not in self._over:  # bound before this process was there, or by another one
            waits_for = self._waits_for(pod, node_name)
            if waits_for is not None:
                key = (node_name, *waits_for)
                self._open(key, uid)
                metadata = pod["metadata"]
                self._end_in_time(Pod(uid, metadata["namespace"], metadata["name"]), key)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the bound pods that had their turn."""
        return set(self._over)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod has ended or is gone: its turn is over."""
        self._over.discard(pod_uid)
        self._close(pod_uid)

    @contextmanager
    def _noted(self, pod: Pod) -> Iterator[None]:
        self._waiting.add(pod.uid)
        try:
            yield
        finally:
            self._waiting.discard(pod.uid)

    def _waits_for(self, pod: Json, node_name: str) -> tuple[Dialect, int] | None:
        offer = self._ledger.offer(node_name)
        waits_for = unmatched(pod, offer.dialect if offer is not None else None, self._answer_names)
        if waits_for is not None:
            with suppress(BadInput):  # what another system's scheduler has understood is waited for
                if pod_request(pod, self._formats.dialects) is None:
                    return None
        return waits_for

    async def _until_free(self, key: Key, pod: Pod) -> None:
        """Wait until no other pod is still to be found, and open the pod's turn."""
        queue = self._queues.setdefault(key, _Queue())
        queue.waiting += 1
        try:
            async with queue.lock:
                while queue.open - {pod.uid}:
                    queue.free.clear()
                    await queue.free.wait()
                if self._keys.get(pod.uid, key) != key:
                    raise BindFailed(f"pod {pod} is bound to node {self._keys[pod.uid][0]} already")
                self._open(key, pod.uid)
        finally:
            queue.waiting -= 1
            self._tidy(key)

    def _open(self, key: Key, uid: str) -> None:
        self._close(uid)
        self._queues.setdefault(key, _Queue()).open.add(uid)
        self._keys[uid] = key

    def _close(self, uid: str, only: Key | None = None) -> None:
        key = self._keys.get(uid)
        if key is not None and only in (None, key):
            del self._keys[uid]
            queue = self._queues[key]
            queue.open.discard(uid)
            queue.free.set()
            self._tidy(key)

    def _tidy(self, key: Key) -> None:
        queue = self._queues.get(key)
        if queue is not None and not queue.open and not queue.waiting:
            del self._queues[key]

    def _end_in_time(self, pod: Pod, key: Key) -> None:
        self._tasks.after(self._timeout_s, self._give_up, pod, key)

    async def _end_failed(self, pod: Pod, key: Key) -> None:
        """End the turn of a pod that this process has not bound; another one may have, and its plugin looks for it."""
        node_name, dialect, _ = key
        try:
            found = await self._store.pod_now(pod) or {}
        except ApiError:  # unknown
            self._end_in_time(pod, key)
            return
        if bound_node(found) == node_name and unmatched(found, dialect, self._answer_names) is not None:
            self._end_in_time(pod, key)
            return
        if dialect is Dialect.HAMI:  # before the next attempt of the same pod can set it again
            await self._lock.give_back(node_name, pod)
        self._close(pod.uid, key)

    def _give_up(self, pod: Pod, key: Key) -> None:
        if self._keys.get(pod.uid) != key:
            return
        node_name, dialect, _ = key
        logger.warning(
            "pod %s: the device plugin of node %s has not found it within %.0f s; the next pod is bound",
            pod,
            node_name,
            self._timeout_s,
        )
        self._counts.plugin_late.inc()
        self._over.add(pod.uid)
        self._close(pod.uid)
        if dialect is Dialect.HAMI and self._is_active():
            self._tasks.start(self._lock.give_back(node_name, pod), f"unlock node {node_name}")


class HamiLock:
    """HAMi's lock of a node: an annotation that names the pod which the node's device plugin has to serve next.

    Source: HAMi 2.10, `pkg/util/nodelock`. The plugin removes it when it has served all containers of the pod.
    """

    def __init__(self, store: KubeStore, timeout_s: float, clock: Clock) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock

    async def take(self, node_name: str, pod: Pod) -> None:
        """Set the lock for a pod; wait while another one's is in force. Raises ApiError."""
        attempt, seen, since_s = 0, None, self._clock.now_s()
        while True:
            node = await self._store.node(node_name)
            lock = read_lock(node)
            if lock != seen:
                seen, since_s = lock, self._clock.now_s()
            try:
                # One of the same pod is set again, too: it may be of an attempt long ago, and look void to others.
                # A clock that is ahead must not keep a lock alive: what was waited for is measured here as well.
                waited_s = self._clock.now_s() - since_s
                if lock is None or lock.is_of(pod) or await self._is_void(lock, waited_s):
                    await self._write(node, lock_text(pod, self._clock.wall()))
                    return
                raise Conflict(f"node {node_name} is locked for pod {lock.namespace}/{lock.name}")
            except Conflict as error:
                await sleep_backoff(attempt, error)
                attempt += 1

    async def give_back(self, node_name: str, pod: Pod) -> None:
        """Remove the lock if it is this pod's. Tries until that is clear, or the lock too old to matter."""
        attempt, deadline_s = 0, self._clock.now_s() + self._timeout_s
        while self._clock.now_s() <= deadline_s:
            try:
                with suppress(NotFound):
                    node = await self._store.node(node_name)
                    lock = read_lock(node)
                    if lock is not None and lock.is_of(pod):
                        await self._write(node, None)
                return
            except ApiError as error:
                await sleep_backoff(attempt, error)
                attempt += 1

    async def _is_void(self, lock: NodeLock, waited_s: float) -> bool:
        """Return whether no program will remove a lock: it is too old, or its pod will not come any more.

        A device plugin marks the pod first and removes the lock then. Old versions do not check whose lock it is by
        then.
        """
        if max(waited_s, lock.age_s(self._clock.wall())) > self._timeout_s:
            return True
        if not lock.name:  # as old versions of HAMi write it: only its age tells
            return False
        try:
            found = await self._store.pod(lock.namespace, lock.name)
        except NotFound:
            return True
        served = bool(bound_node(found)) and unmatched(found, Dialect.HAMI) is None
        return is_finished(found) or (served and waited_s >= UNLOCKING_S)

    async def _write(self, node: Json, value: str | None) -> None:
        metadata = node["metadata"]
        await self._store.annotate_node(metadata["name"], {LOCK_ANNOTATION: value}, metadata["resourceVersion"])
