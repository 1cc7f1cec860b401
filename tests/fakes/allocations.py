"""GPUAllocations as the API server has them, with holders and phases that a test names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import a_card, a_share
from gpuledger.formats.custom_resource.stored_card import holder_json, new_allocation, used_json
from gpuledger.model.card import Card
from gpuledger.model.share import Holder, Pod

Json = dict[str, Any]


def a_holder_of(card: Card, name: str, memory_mib: int = 4_000, cores: int = 20, namespace: str = "default") -> Holder:
    """Return a pod's share of a card; its UID is its name."""
    return Holder(Pod(f"uid-{name}", namespace, name), a_share(card, memory_mib, cores), attempt="first")


def an_allocation(card: Card, *holders: Holder, phase: str = "Ready", reason: str = "", **annotations: str) -> Json:
    """Return a card as the API server has it."""
    found = new_allocation(card)
    status: Json = {"phase": phase, "holders": [holder_json(holder) for holder in holders], "used": used_json(holders)}
    metadata = {
        **found["metadata"],
        "uid": f"uid-of-{card.uuid}",
        "resourceVersion": "7",
        "annotations": {f"gpuledger.dev/{name.replace('_', '-')}": text for name, text in annotations.items()},
    }
    return {**found, "metadata": metadata, "status": status | ({"reason": reason} if reason else {})}


def a_list(*allocations: Json) -> Json:
    """Return what the API server answers to a list."""
    return {"items": list(allocations), "metadata": {"resourceVersion": "9"}}


def two_nodes() -> list[Json]:
    """Return three cards on two nodes: node-2 has one that is idle and not healthy, node-10 two that are in use."""
    first, second = (replace(a_card(index, "node-10"), model="A100", links={}) for index in (0, 1))
    return [
        an_allocation(first, a_holder_of(first, "web"), a_holder_of(first, "chat", 8_000, 30, "team")),
        an_allocation(second, a_holder_of(second, "train", 16_000, 100)),
        an_allocation(replace(a_card(0, "node-2"), model="T4"), phase="Unhealthy", reason="XID 79"),
    ]
