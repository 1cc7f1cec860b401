"""Finds the owner of slots: the pod, its containers, and the device names that their runtime will request.

The kubelet tells a device plugin slots and nothing else. Two places say more. Its list of pod resources is an API, but
leaves out ordinary init containers, whose slots the other containers of the pod get again, and it knows no UIDs. Its
checkpoint has all of that, and the very answer that it will pass to the runtime, but is its own file. So: the
checkpoint where it can be read, checked against the list; else the list with what we remember of our answers, where
that leaves no doubt. The list is read as seldom as can be: its socket allows about 100 reads a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent._generated import pod_resources_pb2 as pod_messages
from gpuledger.agent.kubelet.device_plugin import CHANNEL_OPTIONS, client
from gpuledger.formats.kubernetes.pod import has_started, is_finished, pod_identity
from gpuledger.formats.runtime.cdi import CHECKPOINT_FILE, CheckpointEntry, is_name, own_name, read_checkpoint
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import BadInput, NotFound, NotKnownYet, StartRefused, Unreachable
from gpuledger.model.json_object import JsonMapping

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class SharedRead(Generic[Result]):
    """A read that many ask for at once: as few as can be, and none that begins before it was asked for."""

    def __init__(self, read: Callable[[], Awaitable[Result]]) -> None:
        self._read = read
        self._next: asyncio.Task[Result] | None = None
        self._last: asyncio.Task[Result] | None = None
        self.reads = 0

    async def result(self) -> Result:
        """Return the result of a read that begins after this call. Raises the read's errors.

        A caller that asks while a read is on its way waits for the next one, together with all others.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._last))
            self._next.add_done_callback(_hear_out)
        return await asyncio.shield(self._next)

    async def _read_after(self, before: asyncio.Task[Result] | None) -> Result:
        if before is not None:
            await asyncio.wait([before])
        self._last, self._next = self._next, None  # from here on, others need a read that begins later
        self.reads += 1
        return await self._read()


def _hear_out(read: asyncio.Task[Result]) -> None:
    """Take note of an error that no one waits for any more: asyncio would complain."""
    if not read.cancelled():
        read.exception()


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
        """Return the container of these slots, None if none has exactly them, or the pod can't be determined."""
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
        """Return the kubelet's state at some moment after this call. Raises Unreachable."""
        return await self._shared.result()

    async def _read(self) -> NodePods:
        limits = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=limits) as channel:
            stub = client(channel, pod_messages.DESCRIPTOR.services_by_name["PodResourcesLister"])
            try:
                answer = await stub.List(pod_messages.ListPodResourcesRequest(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise Unreachable(f"the kubelet's {self._socket.name} of pod resources: {error.details()}") from error
        return _node_pods(answer)


def _node_pods(answer: pod_messages.ListPodResourcesResponse) -> NodePods:
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


def _devices(claim: pod_messages.DynamicResource) -> frozenset[str]:
    return frozenset(device.name for each in claim.claim_resources for device in each.cdi_devices)


ANSWERS_REMEMBERED = 4096
NAME = "GPULEDGER_ALLOCATION"
"""Of an answer without CDI: the environment variable that holds the name."""


class PodLister(Protocol):
    """The kubelet's list."""

    async def list(self) -> NodePods:
        """Return it as it is now."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A pod that has these slots, and what each of its containers that has exactly these was answered."""

    pod: JsonMapping
    names: Mapping[str, str]
    """Container -> name that Allocate gave it. With init containers there are several, and any of them starts."""
    noted: bool = True
    """Whether the kubelet's checkpoint says so."""


class SlotOwners:
    """Finds the pod behind slots."""

    def __init__(self, node_name: str, directory: Path, pods: KubeReads, lister: PodLister) -> None:
        self._node_name = node_name
        self._checkpoint = directory / CHECKPOINT_FILE
        self._pods, self._lister = pods, lister
        self._readable = True  # the checkpoint, when it was read last
        # resource, slots -> last name
        self._answers: BoundedMap[tuple[str, frozenset[str]], str] = BoundedMap(ANSWERS_REMEMBERED)

    def remember(self, resource: str, slots: frozenset[str], name: str) -> None:
        """Note what Allocate has answered."""
        self._answers.note((resource, slots), name)

    def answered(self, resource: str, slots: frozenset[str]) -> str | None:
        """Return the name that Allocate has given last for these slots, None if that is not remembered."""
        return self._answers.get((resource, slots))

    async def find(self, resource: str, slots: frozenset[str]) -> Owner:
        """Return the owner of the slots of a container that is about to start.

        Raises NotKnownYet if it is not known yet, StartRefused if it can't be known, ApiError.
        """
        row = (await self._lister.list()).owner(resource, slots)
        own = self._noted(resource, slots) or []
        uids, names = {entry.pod_uid for entry in own}, _names(own)
        if len(uids) == 1 and not names:
            raise StartRefused(
                f"the pod with UID {own[0].pod_uid} got its GPUs from another device plugin: delete it, so that it "
                "is recreated"
            )
        last = self.answered(resource, slots)
        if len(uids) != 1 or (last is not None and last not in names.values()):
            # Unreadable, or older than our answer: the kubelet's own writers can overtake each other.
            return await self._without_checkpoint(row, resource, slots)
        return Owner(await self._live_pod(row, own[0].pod_uid), names)

    def confirm(self, owner: Owner, resource: str, slots: frozenset[str]) -> None:
        """Raise NotKnownYet if the slots have come to another pod since their owner was found."""
        identity = pod_identity(owner.pod)
        last = self.answered(resource, slots)
        lost = last is not None and last not in owner.names.values()
        if owner.noted:
            lost |= {entry.pod_uid for entry in self._noted(resource, slots) or ()} != {identity.uid}
        if lost:
            raise NotKnownYet(f"the kubelet has given the slots of pod {identity} to another pod")

    def entries(self, resource: str) -> list[CheckpointEntry] | None:
        """Return the entries of a resource in the kubelet's checkpoint, None if it can't be read."""
        found = self.all_entries()
        return None if found is None else [entry for entry in found if entry.resource == resource]

    def all_entries(self) -> tuple[CheckpointEntry, ...] | None:
        """Return the entries of all resources in the kubelet's checkpoint, None if it can't be read."""
        try:
            found = read_checkpoint(self._checkpoint.read_bytes())
        except FileNotFoundError:  # a kubelet that has given out nothing yet has none
            return ()
        except (OSError, BadInput) as error:
            if self._readable:
                logger.warning("the kubelet's checkpoint can't be used: %s", error)
            self._readable = False
            return None
        self._readable = True
        return found

    def _noted(self, resource: str, slots: frozenset[str]) -> list[CheckpointEntry] | None:
        """Return the checkpoint's entries with exactly these slots, None if it can't be read."""
        entries = self.entries(resource)
        return None if entries is None else [entry for entry in entries if entry.slots == slots]

    async def _live_pod(self, row: ContainerSlots | None, uid: str) -> JsonMapping:
        if row is not None:
            try:
                pod: JsonMapping = await self._pods.pod(row.namespace, row.pod)
            except NotFound as error:
                raise StartRefused(f"pod {row.namespace}/{row.pod} is gone") from error
            if pod["metadata"]["uid"] == uid:
                return pod
        # An init container's slots that no other container has, or a pod that was recreated under the same name.
        for identity in await self._pods.pods_of_node(self._node_name, pod_identity):
            if identity.uid == uid:
                if row is not None and (row.namespace, row.pod) != (identity.namespace, identity.name):
                    raise NotKnownYet(
                        f"the kubelet lists the slots of a container that starts for pod {row.namespace}/{row.pod}, "
                        f"and has noted them for {identity}"
                    )
                pod = await self._pods.pod(identity.namespace, identity.name)
                if pod["metadata"]["uid"] == uid:
                    return pod
        raise StartRefused(
            f"the pod with UID {uid}, whose container should start, is gone; or it is a static pod, which no scheduler "
            "places: it can have no GPU of this node"
        )

    async def _without_checkpoint(self, row: ContainerSlots | None, resource: str, slots: frozenset[str]) -> Owner:
        name = self.answered(resource, slots)
        if row is None or name is None:
            raise NotKnownYet(
                f"the kubelet does not say whose slots of {resource} these are, and its checkpoint has nothing new "
                "of them"
            )
        try:
            pod: JsonMapping = await self._pods.pod(row.namespace, row.pod)
        except NotFound as error:
            raise StartRefused(f"pod {row.namespace}/{row.pod} is gone") from error
        # Of a pod that was recreated under this name, the kubelet says first that it has taken it up, and then lists
        # it, too: only a row that still stands after that is of the pod that the API server shows.
        if not has_started(pod) or is_finished(pod) or (await self._lister.list()).owner(resource, slots) != row:
            raise NotKnownYet(f"the kubelet has not reported yet that it has pod {row.namespace}/{row.pod}")
        if _may_start_init_container_with(pod, resource):
            raise NotKnownYet(
                f"which container of pod {row.namespace}/{row.pod} starts is only in the kubelet's checkpoint, "
                "which has nothing new of it"
            )
        return Owner(pod, {row.container: name}, noted=False)


def answered_name(entry: CheckpointEntry) -> str | None:
    """Return the name in an answer of ours, None if it is not ours."""
    answer = messages.ContainerAllocateResponse()
    try:
        answer.ParseFromString(entry.answer)
    except DecodeError:
        return None
    of_cdi = next((name for device in answer.cdi_devices if (name := own_name(device.name))), None)
    without_cdi = answer.envs.get(NAME, "")
    return of_cdi or (without_cdi if is_name(without_cdi) else None)


def _names(entries: Iterable[CheckpointEntry]) -> dict[str, str]:
    return {entry.container: name for entry in entries if (name := answered_name(entry))}


def _may_start_init_container_with(pod: JsonMapping, resource: str) -> bool:
    """Return whether an init container that has slots, and ends before the others start, may not have ended yet."""
    ended = {
        each.get("name")
        for each in (pod.get("status") or {}).get("initContainerStatuses") or ()
        if ((each.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
    }
    return any(
        resource in ((container.get("resources") or {}).get("limits") or {})
        and container.get("restartPolicy") != "Always"
        and container["name"] not in ended
        for container in pod["spec"].get("initContainers") or ()
    )
