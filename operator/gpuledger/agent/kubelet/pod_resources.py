"""The kubelet's list of pods and their slots, read as seldom as can be: its socket allows about 100 reads a second."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuledger.agent._generated import pod_resources_pb2 as messages
from gpuledger.agent._generated import pod_resources_pb2_grpc as services
from gpuledger.agent.kubelet.plugin_server import CHANNEL_OPTIONS
from gpuledger.model.errors import Unreachable

TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Limit of the kubelet's own client."""


@dataclass(frozen=True, slots=True)
class ContainerSlots:
    """The slots of one resource that one container has. Ordinary init containers are never listed."""

    namespace: str
    pod: str
    container: str
    resource: str
    slots: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodePods:
    """The kubelet's list of its active pods."""

    pods: frozenset[tuple[str, str]]
    """Namespace and name, also of those without slots."""
    rows: tuple[ContainerSlots, ...]
    twice: frozenset[tuple[str, str]] = frozenset()
    """Names that two pods have: one ends while the recreated one begins. Nothing here tells them apart."""

    def owner(self, resource: str, slots: frozenset[str]) -> ContainerSlots | None:
        """Return whose slots these are, None if no container has exactly them, or the pod can't be determined."""
        row = next((row for row in self.rows if row.resource == resource and row.slots == slots), None)
        return None if row is None or (row.namespace, row.pod) in self.twice else row


class PodResources:
    """A client of the kubelet's socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._next: asyncio.Task[NodePods] | None = None
        self._last: asyncio.Task[NodePods] | None = None
        self.reads = 0

    async def list(self) -> NodePods:
        """Return what the kubelet knows at some moment after this call. Raises Unreachable.

        A caller that asks while a read is on its way waits for the next one, together with all others.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._last))
            self._next.add_done_callback(_hear_out)
        return await asyncio.shield(self._next)

    async def _read_after(self, before: asyncio.Task[NodePods] | None) -> NodePods:
        if before is not None:
            await asyncio.wait([before])
        self._last, self._next = self._next, None  # from here on, others need a read that begins later
        self.reads += 1
        limits = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=limits) as channel:
            stub = services.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = await stub.List(messages.ListPodResourcesRequest(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise Unreachable(f"the kubelet's {self._socket.name} of pod resources: {error.details()}") from error
        return _node_pods(answer)


def _hear_out(read: asyncio.Task[NodePods]) -> None:
    """Take note of an error that no one waits for any more: asyncio would complain."""
    if not read.cancelled():
        read.exception()


def _node_pods(answer: messages.ListPodResourcesResponse) -> NodePods:
    slots: dict[tuple[str, str, str, str], set[str]] = {}  # namespace, pod, container, resource -> slots
    for pod in answer.pod_resources:
        for container in pod.containers:
            for each in container.devices:  # one for each slot
                key = (pod.namespace, pod.name, container.name, each.resource_name)
                slots.setdefault(key, set()).update(each.device_ids)
    names = Counter((pod.namespace, pod.name) for pod in answer.pod_resources)
    return NodePods(
        pods=frozenset(names),
        rows=tuple(ContainerSlots(*key, frozenset(found)) for key, found in slots.items()),
        twice=frozenset(name for name, number in names.items() if number > 1),
    )
