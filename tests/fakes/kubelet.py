"""A kubelet as device plugins see it: real gRPC over unix sockets, around the bookkeeping in device_manager.

Source: k8s.io/kubernetes 1.36, pkg/kubelet/cm/devicemanager/plugin/v1beta1 (server.go, client.go, handler.go).
"""

import asyncio
import contextlib
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from fakes.device_manager import DeviceManager, Json
from gpuledger.agent._generated import device_plugin_pb2 as plugin
from gpuledger.agent._generated import pod_resources_pb2 as resources
from gpuledger.agent.kubelet.device_plugin import add_service, client

CHANNEL = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
"""Another process' channels: they know nothing of attempts that the plugin's own have made."""


class Endpoint:
    """The kubelet's end of one registered plugin."""

    def __init__(self, request: plugin.RegisterRequest, channel: grpc.aio.Channel) -> None:
        self.request, self.channel = request, channel
        self.stub = client(channel, plugin.DESCRIPTOR.services_by_name["DevicePlugin"])
        self.options = plugin.DevicePluginOptions()
        self.lists: list[list[tuple[str, str]]] = []
        """Every list of slots and their health that has come."""
        self.listening: asyncio.Task[None] | None = None


class Kubelet:
    """One node's kubelet; `root` must be a short path, for its sockets."""

    def __init__(self, root: Path) -> None:
        self.plugins, self.pod_resources = root / "device-plugins", root / "pod-resources"
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.pod_resources.mkdir(parents=True, exist_ok=True)
        self.manager = DeviceManager(self.plugins)
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: Counter[str] = Counter()
        self.reads = 0
        self.refuses = False
        """Whether registrations fail."""
        self.listens = True
        """Whether it asks a registered plugin for its slots."""
        self.answers: asyncio.Event | None = None
        """Where it is set, lists are answered only after that."""
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Start, or start anew: what the directory has of sockets is removed."""
        for path in self.plugins.iterdir():
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
        self.manager.restart()
        await self._serve(self.plugins / "kubelet.sock", plugin.DESCRIPTOR.services_by_name["Registration"])
        path = self.pod_resources / "kubelet.sock"
        path.unlink(missing_ok=True)
        await self._serve(path, resources.DESCRIPTOR.services_by_name["PodResourcesLister"])

    async def stop(self) -> None:
        """End, as a process does that is killed: connections break, sockets stay."""
        for endpoint in self.endpoints.values():
            await self._disconnect(endpoint)
        self.endpoints.clear()
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()

    async def admit(self, pod: Json) -> None:
        """Take a pod up: every container gets its slots from the plugins."""
        await self.manager.admit(pod, self._allocate)

    async def start_container(self, pod: Json, container: str, timeout_s: float = 30.0) -> list[str]:
        """Start a container; return the CDI devices that its runtime is told. Raises grpc's AioRpcError."""
        names = []
        for resource, given in self.manager.given[pod["metadata"]["uid"]][container].items():
            endpoint = self.endpoints[resource]
            if endpoint.options.pre_start_required:
                request = plugin.PreStartContainerRequest(devices_ids=list(given.slots))
                await endpoint.stub.PreStartContainer(request, timeout=timeout_s)
            answer = plugin.ContainerAllocateResponse.FromString(given.answer)
            names += [device.name for device in answer.cdi_devices]
        return names

    async def Register(self, request: Any, context: Any) -> plugin.Empty:  # noqa: N802
        self.registrations[request.resource_name] += 1
        if self.refuses or request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, "requested API version is not supported by kubelet")
        old = self.endpoints.pop(request.resource_name, None)
        if old is not None:
            await self._disconnect(old)
        channel = grpc.aio.insecure_channel(f"unix:{self.plugins / request.endpoint}", options=CHANNEL)
        endpoint = Endpoint(request, channel)
        try:
            endpoint.options = await endpoint.stub.GetDevicePluginOptions(plugin.Empty(), timeout=10)
        except grpc.aio.AioRpcError as error:
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {error.details()}")
        self.endpoints[request.resource_name] = endpoint
        if self.listens:
            endpoint.listening = asyncio.create_task(self._listen(endpoint))
        return plugin.Empty()

    async def List(self, request: Any, context: Any) -> resources.ListPodResourcesResponse:  # noqa: N802
        self.reads += 1
        answer = self.manager.pod_resources()
        if self.answers is not None:
            await self.answers.wait()
        return answer

    async def _serve(self, path: Path, service: ServiceDescriptor) -> None:
        server = grpc.aio.server()
        add_service(server, service, self)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    async def _listen(self, endpoint: Endpoint) -> None:
        resource = endpoint.request.resource_name
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for answer in endpoint.stub.ListAndWatch(plugin.Empty()):
                endpoint.lists.append([(each.ID, each.health) for each in answer.devices])
                self.manager.take_list(resource, endpoint.lists[-1])
        if self.endpoints.get(resource) is endpoint:
            self.manager.plugin_gone(resource)

    async def _allocate(self, resource: str, slots: list[str]) -> bytes:
        request = plugin.AllocateRequest(container_requests=[plugin.ContainerAllocateRequest(devices_ids=slots)])
        answer = await self.endpoints[resource].stub.Allocate(request)
        return bytes(answer.container_responses[0].SerializeToString())

    async def _disconnect(self, endpoint: Endpoint) -> None:
        if endpoint.listening is not None:
            endpoint.listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await endpoint.listening
        await endpoint.channel.close()
