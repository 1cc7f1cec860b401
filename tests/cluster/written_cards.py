"""GPUAllocations that a test writes itself, on an API server without gpuledger."""

from __future__ import annotations

from typing import Any

from cluster.cluster import ALLOCATIONS, MERGE_PATCH, Connection
from control_plane import ControlPlane

Json = dict[str, Any]

AMOUNTS = ("memoryMiB", "cores", "number")
CAPACITY = {"memoryMiB": 40960, "cores": 100, "number": 10}


def a_holder(pod: str, memory_mib: int = 0, cores: int = 0, number: int = 1, **more: Any) -> Json:
    return {
        "podUID": f"uid-of-{pod}",
        "namespace": "default",
        "pod": pod,
        "memoryMiB": memory_mib,
        "cores": cores,
        "number": number,
        "exclusive": False,
        "priority": 0,
        "containers": [{"name": "main", "memoryMiB": memory_mib, "cores": cores}],
        "state": "allocated",
        "attempt": "first",
        **more,
    }


def taking(amount: str, quantity: int, pod: str = "a") -> Json:
    """Return a holder that takes so much of one amount, and as little as can be of the others."""
    spelled = {"memoryMiB": "memory_mib", "cores": "cores", "number": "number"}
    return a_holder(pod, **{spelled[amount]: quantity})


def total(*holders: Json) -> Json:
    return {amount: sum(holder[amount] for holder in holders) for amount in AMOUNTS}


def a_status(*holders: Json, **lies: Any) -> Json:
    return {"phase": "Ready", "used": total(*holders), "holders": list(holders), **lies}


class Card:
    """One GPUAllocation, and the ways to write to it."""

    def __init__(self, plane: ControlPlane, connection: Connection, number: int) -> None:
        self._plane, self._connection = plane, connection
        self.uuid = f"GPU-{number:04}-A"
        self.name = self.uuid.lower()
        self.path = f"{ALLOCATIONS}/{self.name}"

    def manifest(self, **spec: Any) -> Json:
        return {
            "apiVersion": "gpuledger.dev/v1alpha1",
            "kind": "GPUAllocation",
            "metadata": {"name": self.name},
            "spec": {
                "uuid": self.uuid,
                "nodeName": f"node-of-{self.name}",
                "index": 3,
                "vendor": "nvidia",
                "model": "A100",
                "mode": "none",
                "numaNode": 1,
                "healthy": True,
                "capacity": CAPACITY,
                **spec,
            },
        }

    def create(self, manifest: Json | None = None) -> Card:
        self._connection.request("POST", ALLOCATIONS, manifest or self.manifest())
        return self

    def held_by(self, *holders: Json) -> Card:
        """Create the card with these holders."""
        self.create().write(a_status(*holders))
        return self

    def read(self) -> Json:
        return self._connection.request("GET", self.path)

    def pods(self) -> list[str]:
        return [holder["pod"] for holder in self.read()["status"]["holders"]]

    def table(self, *arguments: str) -> list[list[str]]:
        """Return what a person sees, in cells; no value in these tests has a space inside."""
        lines = self._plane.kubectl("get", "gpua", self.name, *arguments).splitlines()
        return [line.split() for line in lines]

    def write(self, status: Json | None) -> None:
        self.patch_status({"op": "add", "path": "/status", "value": status})

    def patch_status(self, *operations: Json) -> None:
        self._connection.request("PATCH", f"{self.path}/status", list(operations), "application/json-patch+json")

    def patch_spec(self, **spec: Any) -> None:
        self._connection.request("PATCH", self.path, {"spec": spec}, MERGE_PATCH)

    def replace(self, card: Json, endpoint: str = "") -> None:
        self._connection.request("PUT", self.path + endpoint, card)
