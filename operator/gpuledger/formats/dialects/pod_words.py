"""What pods say of cards, read once for all that say the same, as the pods of one template do.

A pod is read by who warns its owner, who learns from it, and at each Filter. What was read is remembered by the text of
all that it can depend on: the reader is shown that text, and nothing else of the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from gpuledger.formats.dialects.foreign_words import PodWarning, pod_warnings
from gpuledger.formats.dialects.request import counted, pod_request
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.objects.host import host_request
from gpuledger.model.host import HostAmounts
from gpuledger.model.request import PodRequest
from gpuledger.model.stranger import Counted

Json = Mapping[str, Any]
Read = TypeVar("Read")

REMEMBERED = 512
"""Texts, the latest: more than there are templates of which pods come at a time."""

LONGEST_TEXT_BYTES = 8 * 1024
"""Annotations and labels can take 256 KiB; longer texts are read each time."""

OF_POD = ("resources", "overhead", "runtimeClassName")
OF_CONTAINER = ("name", "resources", "restartPolicy")


class PodWords:
    """Reads pods without their ResourceClaims, in the vocabularies that it was given."""

    def __init__(self, dialects: Dialects) -> None:
        self._request = _remembering(lambda pod: pod_request(pod, dialects))
        self._warnings = _remembering(lambda pod: pod_warnings(pod, dialects))
        self._host = _remembering(lambda pod: host_request(pod, dialects.elsewhere))
        self._counted = _remembering(lambda pod: counted(pod, dialects))

    def request(self, pod: Json) -> PodRequest | None:
        """Return what its containers ask for, see `pod_request`. Raises BadInput."""
        return self._request(pod)

    def warnings(self, pod: Json) -> tuple[PodWarning, ...]:
        """Return what it says that has no effect, see `pod_warnings`."""
        return self._warnings(pod)

    def host(self, pod: Json) -> HostAmounts:
        """Return what it takes of its node beside cards, and how many of those that are only counted."""
        return self._host(pod)

    def counted(self, pod: Json) -> tuple[Counted, ...]:
        """Return what the kubelet asks device plugins for, see `counted`."""
        return self._counted(pod)


def _remembering(read: Callable[[Json], Read]) -> Callable[[Json], Read]:
    @lru_cache(REMEMBERED)
    def read_text(text: bytes) -> Read:
        return read(orjson.loads(text))

    def remembered(pod: Json) -> Read:
        text = said_by(pod)
        return read_text(text) if text and len(text) <= LONGEST_TEXT_BYTES else read(pod)

    return remembered


def said_by(pod: Json) -> bytes:
    """Return all of a pod that is looked at by those who read it here, as a pod in JSON.

    Empty for one that is no JSON, as one of a YAML file may be.
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    said = {
        "metadata": {"annotations": metadata.get("annotations"), "labels": metadata.get("labels")},
        "spec": {
            **{name: spec.get(name) for name in OF_POD},
            "initContainers": [_of_container(each) for each in spec.get("initContainers") or ()],
            "containers": [_of_container(each) for each in spec.get("containers") or ()],
        },
    }
    try:
        return orjson.dumps(said, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except orjson.JSONEncodeError:
        return b""


def _of_container(container: Json) -> Json:
    return {name: container[name] for name in OF_CONTAINER if name in container}
