"""Our driver on its socket, where a kubelet finds it: in the directory that it watches.

The kubelet asks who is there whenever a socket appears, and when it starts itself; what it asks later, it asks at the
socket that we name, or, as we name none, at the same one. So there is nothing to be done when it restarts. A kubelet
before 1.34 knows no version that we speak, and says so.

Source: k8s.io/kubernetes 1.36, pkg/kubelet/pluginmanager (plugin_watcher.go, operation_generator.go), and
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from gpuledger.agent._generated import dra_health_pb2 as health_messages
from gpuledger.agent._generated import dra_plugin_pb2 as plugin_messages
from gpuledger.agent._generated import plugin_registration_pb2 as messages
from gpuledger.agent.kubelet.device_health import DeviceHealth
from gpuledger.agent.kubelet.device_plugin import socket_identity
from gpuledger.agent.kubelet.dra import DraPlugin
from gpuledger.agent.kubelet.grpc_services import add_service
from gpuledger.formats.resource_claims.claims import DRIVER

logger = logging.getLogger(__name__)

DIRECTORY = "plugins_registry"
"""Below the kubelet's."""

KIND = "DRAPlugin"
PLUGIN_SERVICE = "v1.DRAPlugin"
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The same under two names: 1.36 asks by the second one, whatever a plugin says, and 1.37 by the first."""

LOOK_INTERVAL_S = 1.0


class DraServer:
    """Serves the kubelet, and is told by it whether it has taken the driver up."""

    def __init__(
        self, plugin: DraPlugin, health: DeviceHealth, kubelet_directory: Path, registered: Callable[[bool], None]
    ) -> None:
        """Make one; `registered` is called with what the kubelet says."""
        self._plugin, self._health, self._registered = plugin, health, registered
        self.socket = kubelet_directory / DIRECTORY / f"{DRIVER}-reg.sock"

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            server = grpc.aio.server()
            self._add_services(server)
            try:
                self.socket.unlink(missing_ok=True)
                server.add_insecure_port(f"unix:{self.socket}")
                await server.start()
                await self._until_gone()
                logger.info("%s: its socket is gone", DRIVER)
            except (OSError, RuntimeError) as error:
                logger.warning("%s: no socket at %s: %s", DRIVER, self.socket, error)
            finally:
                await server.stop(grace=None)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def GetInfo(self, request: Any, context: Any) -> messages.PluginInfo:  # noqa: N802
        """Say what is here."""
        return messages.PluginInfo(type=KIND, name=DRIVER, supported_versions=[PLUGIN_SERVICE, *HEALTH_SERVICES])

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> messages.RegistrationStatusResponse:  # noqa: N802
        """Observe whether the kubelet has taken us up. One that has not asks again, later and later."""
        if request.plugin_registered:
            logger.info("%s: registered", DRIVER)
        else:
            logger.warning("%s: the kubelet does not take it up: %s", DRIVER, request.error)
        self._registered(request.plugin_registered)
        return messages.RegistrationStatusResponse()

    async def _until_gone(self) -> None:
        """Return when nobody can find the server any more."""
        own = socket_identity(self.socket)
        while socket_identity(self.socket) == own:  # noqa: ASYNC110 - a kubelet sets no event of ours
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _add_services(self, server: grpc.aio.Server) -> None:
        add_service(server, messages.DESCRIPTOR.services_by_name["Registration"], self)
        add_service(server, plugin_messages.DESCRIPTOR.services_by_name["DRAPlugin"], self._plugin)
        for version in HEALTH_SERVICES:
            add_service(server, health_messages.DESCRIPTOR.services_by_name["DRAResourceHealth"], self._health, version)
