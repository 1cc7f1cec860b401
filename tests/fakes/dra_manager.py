"""A kubelet as drivers of ResourceClaims see it: it finds their sockets, asks who is there, and keeps the connection.

Source: k8s.io/kubernetes 1.36, pkg/kubelet/pluginmanager (plugin_watcher.go, reconciler.go, operation_generator.go) and
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go. It polls where the kubelet is told of new sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from fakes.kubelet import CHANNEL
from gpuledger.agent._generated import dra_health_pb2 as health_messages
from gpuledger.agent._generated import dra_plugin_pb2 as messages
from gpuledger.agent._generated import plugin_registration_pb2 as registration
from gpuledger.agent.kubelet.device_plugin import client

LOOK_INTERVAL_S = 0.01


@dataclass
class DraManager:
    """One node's kubelet; its `directory` must be a short path, for the sockets in it."""

    directory: Path
    versions: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    """Which it speaks."""
    drivers: dict[str, str] = field(default_factory=dict)
    """Name of a driver -> path of the socket at which it is asked."""
    registrations: list[tuple[str, bool]] = field(default_factory=list)
    """Drivers that were found, and whether they were taken up."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look for sockets as long as this is open. One that starts anew knows no driver."""
        self.drivers.clear()
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def prepare(self, driver: str, *claims: messages.Claim) -> dict[str, messages.NodePrepareResourceResponse]:
        """Return what a driver answers for claims, by their UIDs."""
        async with self._channel(driver) as channel:
            stub = client(channel, messages.DESCRIPTOR.services_by_name["DRAPlugin"])
            answer = await stub.NodePrepareResources(messages.NodePrepareResourcesRequest(claims=claims), timeout=10)
            return dict(answer.claims)

    async def unprepare(self, driver: str, *claims: messages.Claim) -> dict[str, str]:
        """Return the error that a driver answers for each claim, by its UID; empty for none."""
        async with self._channel(driver) as channel:
            stub = client(channel, messages.DESCRIPTOR.services_by_name["DRAPlugin"])
            request = messages.NodeUnprepareResourcesRequest(claims=claims)
            answer = await stub.NodeUnprepareResources(request, timeout=10)
            return {uid: each.error for uid, each in answer.claims.items()}

    async def health(self, driver: str, service: str) -> AsyncIterator[dict[tuple[str, str], tuple[int, str]]]:
        """Yield what a driver says of its devices: pool and device -> health and message."""
        async with self._channel(driver) as channel:
            watch = channel.unary_stream(
                f"/{service}/NodeWatchResources",
                request_serializer=health_messages.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health_messages.NodeWatchResourcesResponse.FromString,
            )
            async for answer in watch(health_messages.NodeWatchResourcesRequest()):
                yield {
                    (each.device.pool_name, each.device.device_name): (each.health, each.message)
                    for each in answer.devices
                }

    def _channel(self, driver: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"unix:{self.drivers[driver]}", options=CHANNEL)

    async def _look(self) -> None:
        known: dict[Path, tuple[int, int]] = {}  # socket -> inode, and when it was made: inodes are used again
        while True:
            for path in self.directory.glob("*.sock"):
                with contextlib.suppress(OSError, grpc.aio.AioRpcError):
                    found = path.stat()
                    if known.get(path) != (found.st_ino, found.st_ctime_ns):
                        await self._register(path)
                        known[path] = found.st_ino, found.st_ctime_ns
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _register(self, path: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=CHANNEL) as channel:
            stub = client(channel, registration.DESCRIPTOR.services_by_name["Registration"])
            info = await stub.GetInfo(registration.InfoRequest(), timeout=1)
            fits = info.type == "DRAPlugin" and any(each in self.versions for each in info.supported_versions)
            error = (
                "" if fits else f"none of services supported by the plugin ({info.supported_versions}) are supported"
            )
            if fits:
                self.drivers[info.name] = info.endpoint or str(path)
            status = registration.RegistrationStatus(plugin_registered=fits, error=error)
            await stub.NotifyRegistrationStatus(status, timeout=5)
            self.registrations.append((info.name, fits))
