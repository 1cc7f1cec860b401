"""Device plugins: one resource each, its slots, its socket, and its registration with the kubelet.

Slots are what the kubelet counts: without meaning, as many as all cards of the node have together. A slot belongs to no
card, so it can't be unhealthy for one: the ledger hears of a broken card. Slots are withdrawn together, when no card
can be used at all. Servers and clients are made from the descriptors of their gRPC services: generated code has only
the messages.

A kubelet that starts removes every socket from its directory and knows no plugin. So the server is rebuilt when its
own socket is gone, when the kubelet's socket is another one, or when the kubelet no longer listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.model.errors import GpuledgerError


class VendorSlots:
    """The number of slots, and whether they can be used; listeners are called when that changes."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.count = 0
        self.usable = False

    def offer(self, count: int) -> None:
        """Offer so many."""
        self._set(count, True)

    def withdraw(self) -> None:
        """Offer none of them; how many there are is still shown."""
        self._set(self.count, False)

    def names(self) -> list[str]:
        """Return the slots' names: the same number always gives the same ones."""
        return [f"slot-{number}" for number in range(self.count)]

    async def states(self) -> AsyncIterator[tuple[list[str], bool]]:
        """Yield names, and whether they can be used: now, and whenever that changes."""
        while True:
            changed = self._changed
            yield self.names(), self.usable
            await changed.wait()

    def _set(self, count: int, usable: bool) -> None:
        if (count, usable) != (self.count, self.usable):
            self.count, self.usable = count, usable
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()


SERVICES = messages.DESCRIPTOR.services_by_name

logger = logging.getLogger(__name__)

Allocate = Callable[[str, frozenset[str]], messages.ContainerAllocateResponse]
"""Resource and slots -> what the kubelet has to tell the runtime. Must not wait for anything."""

Start = Callable[[str, frozenset[str]], Awaitable[None]]
"""Resource and slots of a container that is about to be created. Raises GpuledgerError if it must not be."""


def options() -> messages.DevicePluginOptions:
    """Return the options for the kubelet: ask before each start of a container, and for no preference of slots."""
    return messages.DevicePluginOptions(pre_start_required=True)


KUBELET_SOCKET = "kubelet.sock"
VERSION = "v1beta1"
LOOK_INTERVAL_S = 1.0
REGISTER_TIMEOUT_S = 5.0
LISTEN_GRACE_S = 5.0
"""How long a kubelet may take to connect after our registration."""

CHANNEL_OPTIONS: Sequence[tuple[str, str | int]] = (
    ("grpc.default_authority", "localhost"),  # Go's servers refuse the path of a socket as the name of a host
    ("grpc.use_local_subchannel_pool", 1),  # or a kubelet that was away is kept waiting for up to two minutes
)


class DevicePlugin:
    """One resource's plugin: on its socket, and known to each kubelet that comes."""

    def __init__(self, resource: str, directory: Path, slots: VendorSlots, allocate: Allocate, start: Start) -> None:
        """Make one; `directory` is that of the kubelet for device plugins."""
        self.resource = resource
        self._slots, self._allocate, self._start = slots, allocate, start
        self._streams = 0  # kubelets that listen to ListAndWatch: one, or none while it is gone
        self._kubelet = directory / KUBELET_SOCKET
        self._socket = directory / f"gpuledger-{resource.replace('/', '_')}.sock"

    @property
    def connected(self) -> bool:
        """Whether a kubelet listens."""
        return self._streams > 0

    async def run(self) -> None:
        """Serve until cancelled."""
        await serve_at(self._socket, self.resource, [(SERVICES["DevicePlugin"], "")], self, self._serve)

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> messages.DevicePluginOptions:  # noqa: N802
        """Say what to ask."""
        return options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[messages.ListAndWatchResponse]:  # noqa: N802
        """List the slots, now and at each change."""
        self._streams += 1
        try:
            async for names, usable in self._slots.states():
                health = "Healthy" if usable else "Unhealthy"
                logger.info("%s: %d slots, %s", self.resource, len(names), health)
                yield messages.ListAndWatchResponse(devices=[messages.Device(ID=name, health=health) for name in names])
        finally:
            self._streams -= 1

    async def Allocate(self, request: Any, context: Any) -> messages.AllocateResponse:  # noqa: N802
        """Answer at once: the kubelet waits here with all its pods, and tells us nothing that could be looked up."""
        return messages.AllocateResponse(
            container_responses=[
                self._allocate(self.resource, frozenset(each.devices_ids)) for each in request.container_requests
            ]
        )

    async def PreStartContainer(self, request: Any, context: Any) -> messages.PreStartContainerResponse:  # noqa: N802
        """Have the container's cards ready before its runtime reads them; or say why it does not start."""
        try:
            await self._start(self.resource, frozenset(request.devices_ids))
        except GpuledgerError as error:
            logger.warning("a container start is refused: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return messages.PreStartContainerResponse()

    async def _serve(self) -> None:
        """Return when the server is of no use any more."""
        own = socket_identity(self._socket)
        kubelet = socket_identity(self._kubelet)
        if kubelet is None or not await self._register():
            return
        silent_s = 0.0
        while silent_s < LISTEN_GRACE_S:
            await asyncio.sleep(LOOK_INTERVAL_S)
            if socket_identity(self._socket) != own or socket_identity(self._kubelet) != kubelet:
                logger.info("%s: the kubelet has restarted", self.resource)
                return
            silent_s = 0.0 if self.connected else silent_s + LOOK_INTERVAL_S
        logger.info("%s: the kubelet is not connected", self.resource)

    async def _register(self) -> bool:
        request = messages.RegisterRequest(
            version=VERSION, endpoint=self._socket.name, resource_name=self.resource, options=options()
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=CHANNEL_OPTIONS) as channel:
            stub = client(channel, SERVICES["Registration"])
            try:
                await stub.Register(request, timeout=REGISTER_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.info("%s: the kubelet does not accept the registration yet: %s", self.resource, error.details())
                return False
        logger.info("%s: registered", self.resource)
        return True


# What any plugin of the kubelet does.


async def serve_at(
    socket: Path,
    name: str,
    services: Iterable[tuple[ServiceDescriptor, str]],
    servicer: object,
    until_useless: Callable[[], Awaitable[None]],
) -> None:
    """Serve at a socket until cancelled, with a new server whenever `until_useless` returns. `name` is for the log.

    `services` are as in `add_service`; where there is no socket yet, it is tried again.
    """
    services = tuple(services)
    while True:
        server = grpc.aio.server()
        for service, version in services:
            add_service(server, service, servicer, version)
        try:
            socket.unlink(missing_ok=True)  # noqa: ASYNC240 - as quick as the bind that follows
            server.add_insecure_port(f"unix:{socket}")
            await server.start()
            await until_useless()
        except (OSError, RuntimeError) as error:
            logger.warning("%s: no socket at %s: %s", name, socket, error)
        finally:
            await server.stop(grace=None)
        await asyncio.sleep(LOOK_INTERVAL_S)


def add_service(server: grpc.aio.Server, service: ServiceDescriptor, servicer: object, name: str = "") -> None:
    """Serve the methods that `servicer` has under their names; clients get UNIMPLEMENTED for all others.

    `name` is that of another version of the service, with the same messages.
    """
    methods = {each.name: _handler(each, servicer) for each in service.methods if hasattr(servicer, each.name)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name or service.full_name, methods),))


def _handler(method: MethodDescriptor, servicer: object) -> grpc.RpcMethodHandler[Any, Any]:
    handler = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return handler(getattr(servicer, method.name), request.FromString, response.SerializeToString)


def client(channel: grpc.aio.Channel, service: ServiceDescriptor) -> SimpleNamespace:
    """Return an object that has each method of the service, to be called with a request."""
    methods = SimpleNamespace()
    for method in service.methods:
        call = channel.unary_stream if method.server_streaming else channel.unary_unary
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        path = f"/{service.full_name}/{method.name}"
        setattr(methods, method.name, call(path, request.SerializeToString, response.FromString))
    return methods


def socket_identity(socket: Path) -> tuple[int, int] | None:
    """Return a key that tells a socket from another one of its name, None if there is none."""
    with contextlib.suppress(OSError):
        found = socket.stat()
        return found.st_ino, found.st_ctime_ns
    return None
