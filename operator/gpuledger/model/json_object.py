"""The JSON objects that Kubernetes' API server and other programs send: their types, and parts of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

Json = dict[str, Any]
"""An object to write, or one that has no other owner."""

JsonMapping = Mapping[str, Any]
"""An object that is shared, such as one of a watch: its readers change nothing in it."""


Path = tuple[str, ...]
"""Keys of objects within each other, the outermost first."""

CONTAINERS = ("initContainers", "containers")
"""The lists of a pod's spec, in the order in which their containers start."""


def picked(found: JsonMapping, names: Collection[str]) -> Json:
    """Return the fields of an object that have these names, as far as it has them."""
    return {name: found[name] for name in names if name in found}


_OF_POD = (
    *("schedulerName", "priorityClassName", "resources", "overhead", "runtimeClassName", "resourceClaims"),
    *("nodeSelector", "affinity", "tolerations"),
)
_OF_CONTAINER = ("name", "resources", "restartPolicy")


def placed_by(pod_spec: JsonMapping) -> Json:
    """Return what of a pod's spec decides about its cards and nodes: templates are kept in memory, and can be long."""
    containers = {kind: [picked(each, _OF_CONTAINER) for each in pod_spec.get(kind) or ()] for kind in CONTAINERS}
    return {**picked(pod_spec, _OF_POD), **containers}


def all_containers(pod: JsonMapping) -> tuple[JsonMapping, ...]:
    """Return all containers of a pod, the init containers first."""
    spec = pod.get("spec") or {}
    return tuple(each for kind in CONTAINERS for each in spec.get(kind) or ())


def at(found: Any, path: Path) -> Any:
    """Return the value at a place of an object, None if there is none."""
    for key in path:
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


REFERENCES_READ = 64
"""Of a pod's owners; it has one, and a user can write thousands."""


def controller_of(metadata: JsonMapping) -> JsonMapping | None:
    """Return the reference to the object that has made a pod, and replaces it; None for a pod by itself."""
    references = islice(metadata.get("ownerReferences") or (), REFERENCES_READ)
    return next((each for each in references if each.get("controller")), None)
