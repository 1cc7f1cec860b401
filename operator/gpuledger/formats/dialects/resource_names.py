"""The names of resources as a container has written them, so that it is answered in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.dialects.vocabulary import Dialects

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """Names that a container has in its resources; empty where it has none for that."""

    count: str = ""
    memory: str = ""
    memory_percentage: str = ""
    cores: str = ""


OF_CLAIMS = ResourceNames(count="count", memory="capacity.requests.memory", cores="capacity.requests.cores")
"""What a request of a ResourceClaim says these by."""


def resource_names(pod: Json, container_name: str, dialects: Dialects) -> ResourceNames:
    """Return the names that a pod's container has, or a request of its claims; none if there is no such container."""
    if "/" in container_name:  # no container's name has one: it is a request of a claim
        return OF_CLAIMS
    spec = pod.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    found: Json | None = next((each for each in containers if each.get("name") == container_name), None)
    resources = (found or {}).get("resources") or {}
    names = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}

    def first(kind: str) -> str:
        return next((name for each in dialects.vocabularies if (name := getattr(each, kind)) in names), "")

    return ResourceNames(*(first(kind) for kind in ("count", "memory", "memory_percentage", "cores")))
