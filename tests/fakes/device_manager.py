"""The kubelet's bookkeeping of slots, as its device manager does it: who gets which, what is noted, what is listed.

Source: k8s.io/kubernetes 1.36, pkg/kubelet/cm/devicemanager (manager.go, pod_devices.go, checkpoint) and
pkg/kubelet/apis/podresources/server_v1.go.
"""

import base64
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gpuledger.agent._generated import pod_resources_pb2 as messages

Json = dict[str, Any]
Allocate = Callable[[str, list[str]], Awaitable[bytes]]
"""Resource and slots -> the plugin's answer for the container."""

CHECKPOINT = "kubelet_internal_checkpoint"


class AdmissionError(Exception):
    """The pod ends with UnexpectedAdmissionError."""


@dataclass(frozen=True, slots=True)
class Given:
    """What one container has of one resource."""

    slots: frozenset[str]
    answer: bytes


@dataclass
class DeviceManager:
    """One node's bookkeeping. A pod is known by its UID, a container by its name."""

    directory: Path
    choose: Callable[[Iterable[str]], Sequence[str]] = sorted
    """In which order free slots are given out; the kubelet has none."""
    healthy: dict[str, set[str]] = field(default_factory=dict)
    unhealthy: dict[str, set[str]] = field(default_factory=dict)
    active: dict[str, Json] = field(default_factory=dict)
    given: dict[str, dict[str, dict[str, Given]]] = field(default_factory=dict)
    """Pod -> container -> resource -> what it has."""
    _reusable: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def take_list(self, resource: str, slots: Iterable[tuple[str, str]]) -> None:
        """Take in what a plugin lists: slots and their health."""
        slots = list(slots)
        self.healthy[resource] = {slot for slot, health in slots if health == "Healthy"}
        self.unhealthy[resource] = {slot for slot, _ in slots} - self.healthy[resource]
        self.write_checkpoint()

    def plugin_gone(self, resource: str) -> None:
        """Count none of a plugin's slots, until it is back."""
        self.unhealthy[resource] = self.unhealthy.get(resource, set()) | self.healthy.get(resource, set())
        self.healthy[resource] = set()

    def capacity(self, resource: str) -> tuple[int, int]:
        """Return how many slots there are, and how many can be given out."""
        healthy = len(self.healthy.get(resource, ()))
        return healthy + len(self.unhealthy.get(resource, ())), healthy

    async def admit(self, pod: Json, allocate: Allocate) -> None:
        """Give every container of a pod its slots, in the order in which the kubelet goes through them."""
        uid = pod["metadata"]["uid"]
        self.active[uid] = pod
        reusable = self._reusable.setdefault(uid, {})
        self._reusable = {uid: reusable}
        for container in pod["spec"].get("initContainers") or ():
            await self._give(uid, container, reusable, allocate)
            for resource, slots in self._slots_of(uid, container["name"]):
                if container.get("restartPolicy") == "Always":
                    reusable[resource] = reusable.get(resource, set()) - slots
                else:
                    reusable[resource] = reusable.get(resource, set()) | slots
        for container in pod["spec"]["containers"]:
            await self._give(uid, container, reusable, allocate)
            for resource, slots in self._slots_of(uid, container["name"]):
                reusable[resource] = reusable.get(resource, set()) - slots

    def forget(self, uid: str) -> None:
        """Let a pod be gone, or ended: its slots are free once somebody asks, and stay noted until then."""
        self.active.pop(uid, None)

    def answer(self, uid: str, container: str, resource: str) -> Given:
        """Return what a container has."""
        return self.given[uid][container][resource]

    def pod_resources(self) -> messages.ListPodResourcesResponse:
        """List as the kubelet's socket does: one row for each slot, without ordinary init containers."""
        self._update()
        return messages.ListPodResourcesResponse(pod_resources=[self._listed(pod) for pod in self.active.values()])

    def restart(self) -> None:
        """Start anew, with what the checkpoint says."""
        self.given, self._reusable = {}, {}
        for resource in self.healthy:
            self.healthy[resource], self.unhealthy[resource] = set(), set()
        path = self.directory / CHECKPOINT
        for entry in orjson.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or () if path.exists() else ():
            slots = frozenset(slot for several in entry["DeviceIDs"].values() for slot in several)
            resources = self.given.setdefault(entry["PodUID"], {}).setdefault(entry["ContainerName"], {})
            resources[entry["ResourceName"]] = Given(slots, base64.b64decode(entry["AllocResp"]))

    def write_checkpoint(self) -> None:
        """Write it as the kubelet does: in one step, with nil for an empty list."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": name,
                "ResourceName": resource,
                "DeviceIDs": {"-1": list(given.slots)},
                "AllocResp": base64.b64encode(given.answer).decode(),
            }
            for uid, containers in self.given.items()
            for name, resources in containers.items()
            for resource, given in resources.items()
        ]
        registered = {resource: list(slots) for resource, slots in self.healthy.items()}
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
        unfinished = self.directory / f".{CHECKPOINT}1"
        unfinished.write_bytes(orjson.dumps({"Data": data, "Checksum": 1}))
        unfinished.replace(self.directory / CHECKPOINT)

    async def _give(self, uid: str, container: Json, reusable: dict[str, set[str]], allocate: Allocate) -> None:
        changed = False
        for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            needed = int(amount) if resource in self.healthy else 0
            has = self.given.get(uid, {}).get(container["name"], {}).get(resource)
            if needed == 0 or has is not None:
                continue
            self._update()
            slots = self._free(resource, needed, reusable.get(resource, set()))
            found = Given(frozenset(slots), await allocate(resource, slots))
            self.given.setdefault(uid, {}).setdefault(container["name"], {})[resource] = found
            changed = True
        if changed:
            self.write_checkpoint()

    def _free(self, resource: str, needed: int, reusable: set[str]) -> list[str]:
        if not self.healthy[resource]:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        used = {
            slot
            for containers in self.given.values()
            for resources in containers.values()
            if resource in resources
            for slot in resources[resource].slots
        }
        candidates = [*self.choose(reusable), *self.choose(self.healthy[resource] - used - reusable)]
        if len(candidates) < needed:
            raise AdmissionError(f"requested number of devices unavailable for {resource}")
        return candidates[:needed]

    def _slots_of(self, uid: str, container: str) -> list[tuple[str, frozenset[str]]]:
        found = self.given.get(uid, {}).get(container, {})
        return [(resource, given.slots) for resource, given in found.items()]

    def _update(self) -> None:
        self.given = {uid: containers for uid, containers in self.given.items() if uid in self.active}

    def _listed(self, pod: Json) -> messages.PodResources:
        metadata, spec = pod["metadata"], pod["spec"]
        sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
        return messages.PodResources(
            name=metadata["name"],
            namespace=metadata["namespace"],
            containers=[
                messages.ContainerResources(
                    name=container["name"],
                    devices=[
                        messages.ContainerDevices(resource_name=resource, device_ids=[slot])
                        for resource, slots in self._slots_of(metadata["uid"], container["name"])
                        for slot in slots
                    ],
                )
                for container in [*sidecars, *spec["containers"]]
            ],
        )
