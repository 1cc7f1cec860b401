"""Karpenter with its kwok provider on a local control plane: the kinds of its release, its program as a process.

The provider makes Node objects and nothing else. Somebody has to play kubelet and agent of these, or they never become
ready, and Karpenter takes them away again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from build_control_plane import ensure_karpenter, karpenter_types
from control_plane import ControlPlane, ManagedProcess, free_port

Json = dict[str, Any]

GROUP = "karpenter.sh"
POOLS, CLAIMS = (f"/apis/{GROUP}/v1/{plural}" for plural in ("nodepools", "nodeclaims"))
POOL_LABEL = f"{GROUP}/nodepool"
CAPACITY_TYPE, TYPE, ZONE = f"{GROUP}/capacity-type", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"
POOL, ON_DEMAND, ONLY_ZONE = "gpus", "on-demand", "zone-1"
NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}

EIGHT_CARDS = "eight-cards"
SLOTS = 80
"""Of a node of that type, ten for each card."""


def _is(key: str, value: str) -> Json:
    return {"key": key, "operator": "In", "values": [value]}


def instance_type(name: str, price: float, resources: Mapping[str, str]) -> Json:
    """Return a type of node, as the provider's file lists them; the price is per hour."""
    where = [{"key": key, "operator": "In", "values": [word]} for key, word in _PLACE.items()]
    return {
        "name": name,
        "offerings": [{"Price": price, "Available": True, "Requirements": where}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": dict(resources),
    }


_PLACE = {CAPACITY_TYPE: ON_DEMAND, ZONE: ONLY_ZONE}

TYPES = (
    instance_type(EIGHT_CARDS, 30.0, {"cpu": "128", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": str(SLOTS)}),
    instance_type("small", 0.5, {"cpu": "16", "memory": "64Gi", "pods": "250"}),
)


def node_pool(consolidate_after: str = "5s", disrupted: str = "100%") -> Json:
    """Return the pool of nodes with eight cards. `disrupted` is how many may go at a time: "0" for none."""
    template = {
        "metadata": {"labels": {"gpuledger.dev/agent": "true"}},
        "spec": {
            "expireAfter": "Never",
            "nodeClassRef": NODE_CLASS,
            "requirements": [_is(TYPE, EIGHT_CARDS), _is(CAPACITY_TYPE, ON_DEMAND)],
        },
    }
    disruption = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": consolidate_after,
        "budgets": [{"nodes": disrupted}],
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "NodePool",
        "metadata": {"name": POOL},
        "spec": {"template": template, "disruption": disruption},
    }


def node_claim(name: str) -> Json:
    """Return what has Karpenter make one node of that pool, whether or not a pod waits for it."""
    requirements = [_is(TYPE, EIGHT_CARDS), _is(CAPACITY_TYPE, ON_DEMAND), _is(ZONE, ONLY_ZONE)]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {POOL_LABEL: POOL, "gpuledger.dev/agent": "true"}},
        "spec": {
            "nodeClassRef": NODE_CLASS,
            "requirements": requirements,
            "resources": {"requests": {"nvidia.com/gpu": str(SLOTS)}},
        },
    }


class Karpenter:
    """Its program: installed, started, killed."""

    def __init__(self, plane: ControlPlane, types: Sequence[Json] = TYPES) -> None:
        self.plane, self._types = plane, list(types)
        self.program: ManagedProcess | None = None

    def start(self) -> None:
        """Install its kinds, and start it. Raises BuildError or ControlPlaneError."""
        self.install()
        file = self.plane.directory / "instance-types.json"
        file.write_text(json.dumps(self._types))
        ports = {name: free_port() for name in ("metrics-port", "health-probe-port")}
        flags = {"disable-leader-election": "true", "instance-types-file-path": str(file), **ports}
        argv = [str(ensure_karpenter()), *(f"--{name}={value}" for name, value in flags.items())]
        environment = {"KUBECONFIG": str(self.plane.kubeconfig), "SYSTEM_NAMESPACE": "default"}
        url = f"http://127.0.0.1:{ports['health-probe-port']}/readyz"
        self.program = self.plane.start_program(
            "karpenter", argv, environment, lambda: self.plane.status_of(url) == 200
        )

    def install(self) -> None:
        """Install its kinds alone, and the class of its nodes."""
        found = [yaml.safe_load(path.read_text()) for path in karpenter_types()]
        self._apply(*found)
        for each in found:
            self.plane.wait_established(each["metadata"]["name"])
        kind = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": NODE_CLASS["kind"]}
        self._apply({**kind, "metadata": {"name": NODE_CLASS["name"]}})

    def kill(self) -> None:
        """Kill it as a crash would."""
        if self.program:
            self.program.kill()

    def _apply(self, *objects: Json) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.plane.kubectl("apply", "--server-side", "-f", "-", stdin=text)
