"""HAMi's device plugin at a real kubelet: it registers cards and slots, and looks for its pods by HAMi's own rules."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.cluster import COUNT, NODES, RequestFailed
from fakes.device_plugins import HamiPlugin
from gpuledger.agent._generated import device_plugin_pb2 as messages
from gpuledger.agent.kubelet.device_plugin import DevicePlugin, VendorSlots
from gpuledger.model.node import NodeConfig
from local_node import Node
from node.pod_cluster import PodCluster, cards_of

Json = dict[str, Any]

REGISTER = "hami.io/node-nvidia-register"
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
SLOTS = NodeConfig().split_count
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What HAMi's plugin tells a container, beside the library's limits, which are left out here."""


class HamiDevicePlugin:
    """It runs on a node from `start` to `stop`, as its DaemonSet has it where the Node has the label gpu=on."""

    def __init__(self, cluster: PodCluster, node: Node) -> None:
        self._cluster, self._node = cluster, node
        self._end: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write the node's register, and serve."""
        cards = cards_of(self._cluster.nodes.index(self._node)).cards
        register = "".join(
            f"{card.uuid},{SLOTS},{card.memory_mib},100,NVIDIA-{card.name},{card.numa_node},true,{index},hami-core:"
            for index, card in enumerate(cards)
        )
        change = {"metadata": {"annotations": {REGISTER: register}}}
        self._cluster.patch(f"{NODES}/{self._node.name}", change)
        started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(len(cards), started),), daemon=True)
        self._thread.start()
        assert started.wait(30)

    def stop(self) -> None:
        """End, as the pod of a DaemonSet does; the register stays."""
        self._end()
        if self._thread:
            self._thread.join()

    async def _run(self, cards: int, started: threading.Event) -> None:
        with contextlib.closing(PodCluster(self._cluster.plane, self._cluster.nodes)) as cluster:
            plugin = HamiPlugin(_Api(cluster), self._node.name)

            def allocate(_: str, slots: frozenset[str]) -> messages.ContainerAllocateResponse:
                uuids = ",".join(plugin.allocate(len(slots)))
                return messages.ContainerAllocateResponse(envs={VISIBLE: uuids})

            async def nothing(_: str, __: frozenset[str]) -> None:
                pass

            slots = VendorSlots()
            slots.offer(cards * SLOTS)
            serving = asyncio.create_task(
                DevicePlugin(COUNT, self._node.path(DEVICE_PLUGINS), slots, allocate, nothing).run()
            )
            loop = asyncio.get_running_loop()
            self._end = lambda: loop.call_soon_threadsafe(serving.cancel)
            started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


class _Api:
    """What the plugin asks the API server for."""

    def __init__(self, cluster: PodCluster) -> None:
        self._cluster = cluster

    def node(self, name: str) -> Json:
        return self._cluster.request("GET", f"{NODES}/{name}")

    def pod(self, namespace: str, name: str) -> Json:
        return self._cluster.request("GET", _path(namespace, name))

    def all_pods(self) -> list[Json]:
        return self._cluster.objects("pods")

    def annotate_pod(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        self._cluster.patch(_path(namespace, name), {"metadata": {"annotations": annotations}})

    def annotate_node(self, name: str, annotations: dict[str, str | None], resource_version: str) -> bool:
        metadata = {"annotations": annotations, "resourceVersion": resource_version}
        try:
            self._cluster.patch(f"{NODES}/{name}", {"metadata": metadata})
        except RequestFailed as failed:
            if failed.status != 409:
                raise
            return False
        return True


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
