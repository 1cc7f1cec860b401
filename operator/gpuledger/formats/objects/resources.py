"""Which resources pods ask for, by name alone: a module that takes no time to import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]


def resources_asked(pod: Json) -> Iterator[str]:
    """Yield the names of all resources that a pod's containers ask for."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        asked = container.get("resources") or {}
        yield from asked.get("limits") or ()
        yield from asked.get("requests") or ()
