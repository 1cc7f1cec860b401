"""The kubelet's list of pods and their slots, read as seldom as can be: its socket allows about 100 reads a second."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuledger.agent._generated import pod_resources_pb2 as messages
from gpuledger.agent.kubelet.device_plugin import CHANNEL_OPTIONS
from gpuledger.agent.kubelet.grpc_services import client
from gpuledger.agent.shared_read import SharedRead
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
class ClaimInUse:
    """A ResourceClaim that a container uses, as prepared for the kubelet. Its UID is not listed."""

    namespace: str
    name: str
    devices: frozenset[str]
    """Names of its devices for the container runtime."""


@dataclass(frozen=True, slots=True)
class NodePods:
    """The kubelet's list of its active pods."""

    pods: frozenset[tuple[str, str]]
    """Namespace and name, also of those without slots."""
    rows: tuple[ContainerSlots, ...]
    twice: frozenset[tuple[str, str]] = frozenset()
    """Names that two pods have: one ends while the recreated one begins. Nothing here tells them apart."""
    claims: frozenset[ClaimInUse] = frozenset()

    def owner(self, resource: str, slots: frozenset[str]) -> ContainerSlots | None:
        """Return whose slots these are, None if no container has exactly them, or the pod can't be determined."""
        row = next((row for row in self.rows if row.resource == resource and row.slots == slots), None)
        return None if row is None or (row.namespace, row.pod) in self.twice else row


class PodResources:
    """A client of the kubelet's socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._shared = SharedRead(self._read)

    @property
    def reads(self) -> int:
        """How often the list was read."""
        return self._shared.reads

    async def list(self) -> NodePods:
        """Return what the kubelet knows at some moment after this call. Raises Unreachable."""
        return await self._shared.result()

    async def _read(self) -> NodePods:
        limits = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=limits) as channel:
            stub = client(channel, messages.DESCRIPTOR.services_by_name["PodResourcesLister"])
            try:
                answer = await stub.List(messages.ListPodResourcesRequest(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise Unreachable(f"the kubelet's {self._socket.name} of pod resources: {error.details()}") from error
        return _node_pods(answer)


def _node_pods(answer: messages.ListPodResourcesResponse) -> NodePods:
    slots: dict[tuple[str, str, str, str], set[str]] = {}  # namespace, pod, container, resource -> slots
    for pod in answer.pod_resources:
        for container in pod.containers:
            for each in container.devices:  # one for each slot
                key = (pod.namespace, pod.name, container.name, each.resource_name)
                slots.setdefault(key, set()).update(each.device_ids)
    claims = {
        ClaimInUse(claim.claim_namespace, claim.claim_name, _devices(claim))
        for pod in answer.pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
    }
    names = Counter((pod.namespace, pod.name) for pod in answer.pod_resources)
    return NodePods(
        pods=frozenset(names),
        rows=tuple(ContainerSlots(*key, frozenset(found)) for key, found in slots.items()),
        twice=frozenset(name for name, number in names.items() if number > 1),
        claims=frozenset(claims),
    )


def _devices(claim: messages.DynamicResource) -> frozenset[str]:
    return frozenset(device.name for each in claim.claim_resources for device in each.cdi_devices)
