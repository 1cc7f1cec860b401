"""Device plugins on their sockets, and their registration with the kubelet, again whenever it needs one.

A kubelet that starts removes every socket from its directory and knows no plugin. So the server is rebuilt when its
own socket is gone, when the kubelet's socket is another one, or when the kubelet no longer listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc

from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent._generated import device_plugin_pb2_grpc as services
from gpuledger.agent.kubelet.device_plugin import DevicePlugin, options

logger = logging.getLogger(__name__)

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


class PluginServer:
    """One resource's plugin on its socket."""

    def __init__(self, plugin: DevicePlugin, directory: Path) -> None:
        self._plugin = plugin
        self._kubelet = directory / KUBELET_SOCKET
        self._socket = directory / f"gpuledger-{plugin.resource.replace('/', '_')}.sock"

    @property
    def connected(self) -> bool:
        """Whether a kubelet listens."""
        return self._plugin.streams > 0

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            server = grpc.aio.server()
            services.add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
            try:
                self._socket.unlink(missing_ok=True)
                server.add_insecure_port(f"unix:{self._socket}")
                await server.start()
                await self._serve()
            except (OSError, RuntimeError) as error:
                logger.warning("%s: no socket at %s: %s", self._plugin.resource, self._socket, error)
            finally:
                await server.stop(grace=None)
            await asyncio.sleep(LOOK_INTERVAL_S)

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
                logger.info("%s: the kubelet has restarted", self._plugin.resource)
                return
            silent_s = 0.0 if self.connected else silent_s + LOOK_INTERVAL_S
        logger.info("%s: the kubelet is not connected", self._plugin.resource)

    async def _register(self) -> bool:
        request = messages.RegisterRequest(
            version=VERSION, endpoint=self._socket.name, resource_name=self._plugin.resource, options=options()
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=CHANNEL_OPTIONS) as channel:
            stub = services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            try:
                await stub.Register(request, timeout=REGISTER_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.info(
                    "%s: the kubelet does not accept the registration yet: %s", self._plugin.resource, error.details()
                )
                return False
        logger.info("%s: registered", self._plugin.resource)
        return True


async def serve_all(servers: Sequence[PluginServer]) -> None:
    """Serve every resource until cancelled."""
    async with asyncio.TaskGroup() as group:
        for server in servers:
            group.create_task(server.run())


def socket_identity(socket: Path) -> tuple[int, int] | None:
    """Return what tells a socket from another one of its name, None if there is none."""
    with contextlib.suppress(OSError):
        found = socket.stat()
        return found.st_ino, found.st_ctime_ns
    return None
