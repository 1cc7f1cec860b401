"""HAMi's and Volcano's device plugins, as far as they look for the pod that the kubelet asks for.

Sources: HAMi 2.10, `pkg/util/util.go` (GetPendingPod, GetAllocatePodByNode), `pkg/device-plugin` (Allocate);
volcano-vgpu-device-plugin, `pkg/util/util.go` (getOldestPod, GetNextDeviceRequest). What they do for a container apart
from that does not matter here: they give out the cards that the pod's annotation lists next.
"""

from typing import Any, Protocol

Json = dict[str, Any]

NEVER = str(2**64 - 1)


class PluginApi(Protocol):
    """What a device plugin asks the API server for."""

    def node(self, name: str) -> Json:
        """Return a node."""

    def pod(self, namespace: str, name: str) -> Json:
        """Return a pod."""

    def all_pods(self) -> list[Json]:
        """Return all pods, in the API server's order: by name."""

    def annotate_pod(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Change annotations of a pod."""

    def annotate_node(self, name: str, annotations: dict[str, str | None], resource_version: str) -> bool:
        """Change or remove annotations of a node, if it has not changed since; return whether that was so."""


class PluginError(Exception):
    """What the kubelet shows as UnexpectedAdmissionError."""


class HamiPlugin:
    """One pod at a time: whom the node's lock names, else the first pending pod that is allocating, or was."""

    def __init__(self, api: PluginApi, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    def allocate(self, number: int) -> list[str]:
        """Return the UUIDs of the cards that a container gets for whom the kubelet asks for so many."""
        pod = self._pending_pod()
        text = annotations(pod).get("hami.io/vgpu-devices-to-allocate", "")
        containers = text.split(";")
        place = next((i for i, container in enumerate(containers) if "," in container), None)
        if place is None:
            raise PluginError("device request not found")
        cards = uuids(containers[place])
        if len(cards) != number:
            raise PluginError("device number not matched")
        containers[place] = ""
        left = ";".join(containers)
        self._annotate(pod, {"hami.io/vgpu-devices-to-allocate": left})
        if "," not in left:
            self._annotate(pod, {"hami.io/bind-phase": "success"})
            self._unlock(pod)
        return cards

    def _pending_pod(self) -> Json:
        lock = annotations(self._api.node(self._node_name)).get("hami.io/mutex.lock", "")
        if lock.count(",") == 2:
            _, namespace, name = lock.split(",")
            return self._api.pod(namespace, name)
        for pod in self._api.all_pods():
            told = annotations(pod)
            if (
                pod["spec"].get("nodeName") == self._node_name
                and pod["status"]["phase"] == "Pending"
                and "hami.io/bind-time" in told
                and told.get("hami.io/bind-phase") in ("allocating", "success")
                and told.get("hami.io/vgpu-node") == self._node_name
            ):
                return pod
        raise PluginError(f"no binding pod found on node {self._node_name}")

    def _unlock(self, pod: Json) -> None:
        mine = f",{pod['metadata']['namespace']},{pod['metadata']['name']}"
        node = self._api.node(self._node_name)
        while annotations(node).get("hami.io/mutex.lock", "").endswith(mine):
            if self._api.annotate_node(
                self._node_name, {"hami.io/mutex.lock": None}, node["metadata"]["resourceVersion"]
            ):
                return
            node = self._api.node(self._node_name)

    def _annotate(self, pod: Json, changes: dict[str, str]) -> None:
        self._api.annotate_pod(pod["metadata"]["namespace"], pod["metadata"]["name"], changes)


class VolcanoPlugin:
    """The pod of the node that has as many cards to get as the kubelet asks for, and the smallest time."""

    def __init__(self, api: PluginApi, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    def allocate(self, number: int) -> list[str]:
        """Return the UUIDs of the cards that a container gets for whom the kubelet asks for so many."""
        oldest: Json | None = None
        for pod in self._api.all_pods():
            told = annotations(pod)
            if told.get("volcano.sh/vgpu-node") != self._node_name:
                continue
            if len(uuids(told.get("volcano.sh/devices-to-allocate", "").replace(";", ""))) != number:
                continue
            if oldest is None or _time(pod) < _time(oldest):
                oldest = pod
        if oldest is None:
            raise PluginError("cannot get valid pod")
        containers = annotations(oldest)["volcano.sh/devices-to-allocate"].split(";")
        place = next(i for i, container in enumerate(containers) if "," in container)
        cards = uuids(containers[place])
        containers[place] = ""
        changes = {"volcano.sh/devices-to-allocate": ";".join(containers)}
        if not any("," in container for container in containers):
            changes |= {"volcano.sh/bind-phase": "success", "volcano.sh/vgpu-time": NEVER}
        self._api.annotate_pod(oldest["metadata"]["namespace"], oldest["metadata"]["name"], changes)
        return cards


def annotations(thing: Json) -> dict[str, str]:
    """Return an object's annotations."""
    return thing["metadata"].get("annotations") or {}


def uuids(container: str) -> list[str]:
    """Return the cards in a container's part of an assignment."""
    return [card.split(",")[0] for card in container.split(":") if "," in card]


def _time(pod: Json) -> int:
    return int(annotations(pod).get("volcano.sh/vgpu-time", NEVER))
