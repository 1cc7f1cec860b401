"""A card as a device of Dynamic Resource Allocation: what a ResourceSlice shows, and what CEL selectors see. Pure.

Source: resource.k8s.io/v1 (Device, DeviceAttribute, DeviceCapacity); standard attributes of
k8s.io/dynamic-resource-allocation (deviceattribute).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from gpuledger.model.card import Card

DRIVER = "gpu.gpuledger.dev"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_LONGEST_TEXT = 64


def device_name(uuid: str) -> str:
    """Return a card's name in its pool: its UUID if that can be one, else a digest of it."""
    name = uuid.lower()
    return name if _LABEL.fullmatch(name) else "gpu-" + hashlib.sha256(uuid.encode()).hexdigest()[:20]


def device_of(card: Card, driver: str = DRIVER) -> dict[str, Any]:
    """Return the card as an entry of a ResourceSlice's `spec.devices`, with `driver` beside."""
    texts = {"uuid": card.uuid, "model": card.model, "vendor": card.vendor, "isolation": card.mode or "none"}
    attributes: dict[str, dict[str, object]] = {
        name: {"string": text[:_LONGEST_TEXT]} for name, text in texts.items() if text
    }
    attributes["index"] = {"int": card.index}
    if card.numa_node is not None:
        attributes["numaNode"] = attributes["resource.kubernetes.io/numaNode"] = {"int": card.numa_node}
    capacity = {
        "memory": {"value": f"{card.capacity.memory_mib}Mi"},
        "cores": {"value": str(card.capacity.cores)},
        "slots": {"value": str(card.capacity.number)},
    }
    return {
        "name": device_name(card.uuid),
        "driver": driver,
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": capacity,
    }
