"""The kubelet's questions about one resource, in its protocol. What they mean is decided elsewhere."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent._generated import device_plugin_pb2_grpc as services
from gpuledger.agent.kubelet.slots import VendorSlots
from gpuledger.model.errors import GpuledgerError

logger = logging.getLogger(__name__)

Allocate = Callable[[str, frozenset[str]], messages.ContainerAllocateResponse]
"""Resource and slots -> what the kubelet has to tell the runtime. Must not wait for anything."""

Start = Callable[[str, frozenset[str]], Awaitable[None]]
"""Resource and slots of a container that is about to be created. Raises GpuledgerError if it must not be."""


def options() -> messages.DevicePluginOptions:
    """Return what the kubelet should ask us: before each start of a container, and for no preference of slots."""
    return messages.DevicePluginOptions(pre_start_required=True)


class DevicePlugin(services.DevicePluginServicer):
    """Answers for one resource."""

    def __init__(self, resource: str, slots: VendorSlots, allocate: Allocate, start: Start) -> None:
        self.resource = resource
        self.streams = 0
        """Kubelets that listen to ListAndWatch: one, or none while it is gone."""
        self._slots, self._allocate, self._start = slots, allocate, start

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> messages.DevicePluginOptions:  # noqa: N802
        """Say what to ask."""
        return options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[messages.ListAndWatchResponse]:  # noqa: N802
        """List the slots, now and at each change."""
        self.streams += 1
        try:
            async for names, usable in self._slots.states():
                health = "Healthy" if usable else "Unhealthy"
                logger.info("%s: %d slots, %s", self.resource, len(names), health)
                yield messages.ListAndWatchResponse(devices=[messages.Device(ID=name, health=health) for name in names])
        finally:
            self.streams -= 1

    async def GetPreferredAllocation(self, request: Any, context: Any) -> messages.PreferredAllocationResponse:  # noqa: N802
        """Prefer what comes first: slots are all the same. The kubelet asks only if the plugin's options say so."""
        return messages.PreferredAllocationResponse(
            container_responses=[
                messages.ContainerPreferredAllocationResponse(deviceIDs=_preferred(each))
                for each in request.container_requests
            ]
        )

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


def _preferred(request: messages.ContainerPreferredAllocationRequest) -> list[str]:
    must = list(request.must_include_deviceIDs)
    others = sorted(set(request.available_deviceIDs) - set(must))
    return [*must, *others][: request.allocation_size]
