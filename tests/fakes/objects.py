"""Kubernetes objects as the API server shows them, with good defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION, register_of
from gpuledger.model.card import Card

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENTAGE = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"

SHARE: Mapping[str, object] = {GPU: "1", MEMORY: "4k"}
"""4000 MiB of one card, as the API server spells it."""

DIALECTS = dialects_of(Settings())
"""What pods and nodes may say, by default."""

COUNTS = DIALECTS.counts(of="nvidia")
"""The names that our node agent serves."""

Json = dict[str, Any]


def a_container(name: str = "main", limits: Mapping[str, object] = SHARE, **fields: object) -> Json:
    """Return a container with its limits; as the API server does, requests are set to the same."""
    return {"name": name, "image": "image", "resources": {"limits": dict(limits), "requests": dict(limits)}, **fields}


def a_pod_object(
    name: str = "pod",
    limits: Mapping[str, object] = SHARE,
    *,
    uid: str = "",
    node_name: str = "",
    phase: str = "Pending",
    started: bool = False,
    containers: Sequence[Json] = (),
    scheduler_name: str = "gpuledger",
    priority: int = 0,
    created: str = "2030-01-01T00:00:00Z",
) -> Json:
    """Return a pod; its UID is `uid-NAME`, unless one is given."""
    spec: Json = {"schedulerName": scheduler_name, "containers": list(containers) or [a_container("main", limits)]}
    spec |= {"priority": priority} if priority else {}
    status: Json = {"phase": phase}
    if node_name:
        spec["nodeName"] = node_name
    if started:
        status["startTime"] = "2030-01-01T00:00:00Z"
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "creationTimestamp": created}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def with_conditions(pod: Json, conditions: Sequence[Json]) -> Json:
    """Return a pod with these conditions in place of those of the same type, as a strategic merge patch has it."""
    status = pod.get("status") or {}
    types = {condition["type"] for condition in conditions}
    kept = [condition for condition in status.get("conditions") or () if condition["type"] not in types]
    return {**pod, "status": {**status, "conditions": [*kept, *conditions]}}


def a_node_object(name: str, cards: Sequence[Card] = (), *, slots: int = 80, register: str | None = None) -> Json:
    """Return a node that reports these cards, or carries this text as its register."""
    text = register_of(cards) if register is None else register
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {REGISTER_ANNOTATION: text}},
        "status": {"allocatable": {"cpu": "64", **dict.fromkeys(COUNTS, str(slots))}},
    }
