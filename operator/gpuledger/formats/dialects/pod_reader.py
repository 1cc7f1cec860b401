"""Reads what pods request, once for all pods that say the same, as the pods of one template do.

The webhook, the watch, and each Filter read the same pod. The result is remembered by the text of all that it can
depend on: the reader is shown that text, and nothing else of the pod. The names of resources are kept as the container
has written them, so that messages use its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import orjson

from gpuledger.formats.dialects.request import counted, pod_request
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.quantity import host_request
from gpuledger.model.json_object import CONTAINERS, JsonMapping, all_containers, picked

Read = TypeVar("Read")

REMEMBERED = 512
"""Texts, the latest: more than there are templates of which pods come at a time."""

LONGEST_TEXT_BYTES = 8 * 1024
"""Annotations and labels can take 256 KiB. Results for longer texts are not shared between pods."""

OF_POD = ("resources", "overhead", "runtimeClassName")
OF_CONTAINER = ("name", "resources", "restartPolicy")


class PodReader:
    """Reads pods without their ResourceClaims, in the vocabularies that it was given."""

    def __init__(self, dialects: Dialects) -> None:
        self.request = _remembering(lambda pod: pod_request(pod, dialects), _said_by)
        """What its containers ask for, see `pod_request`. Raises BadInput."""
        self.warnings = _remembering(lambda pod: pod_warnings(pod, dialects), _said_by)
        """What it says that has no effect, see `pod_warnings`."""
        self.host = _remembering(lambda pod: host_request(pod, dialects.elsewhere), _asked_by)
        """What it takes of its node beside cards, and how many of those that are only counted."""
        self.counted = _remembering(lambda pod: counted(pod, dialects), _asked_by)
        """What the kubelet asks device plugins for, see `counted`."""


def _remembering(
    read: Callable[[JsonMapping], Read], part_of: Callable[[JsonMapping], JsonMapping]
) -> Callable[[JsonMapping], Read]:
    """Return a reader of a part of a pod that reads it once for all pods in which it is equal."""

    @lru_cache(REMEMBERED)
    def read_text(text: bytes) -> Read:
        return read(orjson.loads(text))

    def remembered(pod: JsonMapping) -> Read:
        try:
            text = orjson.dumps(part_of(pod), option=orjson.OPT_PASSTHROUGH_DATETIME)
        except orjson.JSONEncodeError:  # a pod of a YAML file
            return read(pod)
        return read_text(text) if len(text) <= LONGEST_TEXT_BYTES else read_long(pod, text)

    in_use: WeakValueDictionary[bytes, Any] = WeakValueDictionary()  # hash of a long text -> what it says

    def read_long(pod: JsonMapping, text: bytes) -> Read:
        key = blake2b(text, digest_size=16).digest()
        found: Read | None = in_use.get(key)
        if found is None:
            found = read(pod)
            with suppress(TypeError):  # what is short is not shared
                in_use[key] = found
        return found

    return remembered


def _said_by(pod: JsonMapping) -> JsonMapping:
    """Return all of a pod that matters for what it asks for, and for what of that has no effect."""
    metadata = pod.get("metadata") or {}
    words = {"annotations": metadata.get("annotations"), "labels": metadata.get("labels")}
    return {"metadata": words, **_asked_by(pod)}


def _asked_by(pod: JsonMapping) -> JsonMapping:
    """Return all of a pod that matters for what it takes of its node, whatever is written to it in the meantime."""
    spec = pod.get("spec") or {}
    of_containers = {kind: [picked(each, OF_CONTAINER) for each in spec.get(kind) or ()] for kind in CONTAINERS}
    return {"spec": {**picked(spec, OF_POD), **of_containers}}


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """Names that a container has in its resources; empty where it has none for that."""

    count: str = ""
    memory: str = ""
    memory_percentage: str = ""
    cores: str = ""


OF_CLAIMS = ResourceNames(count="count", memory="capacity.requests.memory", cores="capacity.requests.cores")
"""The names of these amounts in a request of a ResourceClaim."""


def resource_names(pod: JsonMapping, container_name: str, dialects: Dialects) -> ResourceNames:
    """Return the names that a pod's container has, or a request of its claims; none if there is no such container."""
    if "/" in container_name:  # no container's name has one: it is a request of a claim
        return OF_CLAIMS
    found = next((each for each in all_containers(pod) if each.get("name") == container_name), None)
    resources = (found or {}).get("resources") or {}
    names = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}

    def first(kind: str) -> str:
        return next((name for each in dialects.vocabularies if (name := getattr(each, kind)) in names), "")

    return ResourceNames(*(first(kind) for kind in ("count", "memory", "memory_percentage", "cores")))
