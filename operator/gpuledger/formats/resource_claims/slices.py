"""The ResourceSlices in which a node shows its cards. Pure.

Source: k8s.io/api/resource/v1 (`ResourceSlice`, `ResourcePool`). All slices of a pool have one generation, which counts
up when any of them changes: who reads them leaves older ones aside, and waits until `resourceSliceCount` are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.formats.resource_claims.device import device_of
from gpuledger.formats.resource_claims.names import DRIVER
from gpuledger.model.card import Card
from gpuledger.model.card_filter import MIG_PARENT

Json = dict[str, Any]

API_VERSION: Final = "resource.k8s.io/v1"
"""Kubernetes 1.34 and later."""

DEVICES_PER_SLICE: Final = 64
"""Kubernetes' limit where devices have taints, as all of ours have."""

NAME_LENGTH: Final = 253
_ROOM_FOR_NUMBER = len("-00")
_DIGEST_LENGTH = 20


@dataclass(frozen=True, slots=True)
class NodeOwner:
    """The Node that owns the slices: when it goes, Kubernetes' garbage collector deletes them."""

    name: str
    uid: str

    def reference(self) -> Json:
        """Return the owner reference."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}


@dataclass(frozen=True, slots=True)
class SliceChanges:
    """What is to be written, in this order: an incomplete pool is left aside until the last write."""

    create: tuple[Json, ...] = ()
    replace: tuple[Json, ...] = ()
    delete: tuple[str, ...] = ()
    """Names."""

    def __bool__(self) -> bool:
        return bool(self.create or self.replace or self.delete)


def slice_changes(owner: NodeOwner, cards: Iterable[Card], stored: Mapping[str, Json]) -> SliceChanges:
    """Return how the slices of a node, by name, become those that show these cards; nothing where they do.

    A slice that is missing, among others that are right, comes back as it was.
    """
    last = max((_generation(each) for each in stored.values()), default=1)
    wanted = slices_of(owner, cards, last)
    if any(each["spec"] != _spec(stored[name]) for name, each in wanted.items() if name in stored):
        wanted = slices_of(owner, cards, last + 1)
    return SliceChanges(
        create=tuple(each for name, each in wanted.items() if name not in stored),
        replace=tuple(
            _replacing(stored[name], each)
            for name, each in wanted.items()
            if name in stored and not _shows(stored[name], each)
        ),
        delete=tuple(sorted(stored.keys() - wanted.keys())),
    )


def slices_of(owner: NodeOwner, cards: Iterable[Card], generation: int) -> dict[str, Json]:
    """Return name -> ResourceSlice for the cards of a node, in the order of their indexes; none without cards."""
    shown = sorted((card for card in cards if card.mode != MIG_PARENT), key=lambda card: card.place)
    devices = [device_of(card) for card in shown]
    parts = [devices[start : start + DEVICES_PER_SLICE] for start in range(0, len(devices), DEVICES_PER_SLICE)]
    pool = {"name": owner.name, "generation": generation, "resourceSliceCount": len(parts)}
    slices = (_slice(owner, pool, part, number) for number, part in enumerate(parts, start=1))
    return {each["metadata"]["name"]: each for each in slices}


def _slice(owner: NodeOwner, pool: Json, devices: Sequence[Json], number: int) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": _name(owner.name, number), "ownerReferences": [owner.reference()]},
        "spec": {"driver": DRIVER, "nodeName": owner.name, "pool": pool, "devices": list(devices)},
    }


def _name(node_name: str, number: int) -> str:
    name = f"{node_name}-{DRIVER}"
    if len(name) + _ROOM_FOR_NUMBER > NAME_LENGTH:
        name = f"{hashlib.sha256(node_name.encode()).hexdigest()[:_DIGEST_LENGTH]}-{DRIVER}"
    return name if number == 1 else f"{name}-{number}"


def _shows(stored: Json, wanted: Json) -> bool:
    owners = stored["metadata"].get("ownerReferences")
    return _spec(stored) == wanted["spec"] and bool(owners == wanted["metadata"]["ownerReferences"])


def _spec(stored: Json) -> Json:
    """Return what a slice says, without the times that the API server adds to taints."""
    devices = [_without_times(device) for device in stored["spec"].get("devices") or ()]
    return {**stored["spec"], "devices": devices}


def _without_times(device: Json) -> Json:
    if not device.get("taints"):
        return device
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}


def _replacing(stored: Json, wanted: Json) -> Json:
    """Return what to write in place of a slice, unless another client changes it first."""
    version = stored["metadata"]["resourceVersion"]
    return {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}


def _generation(stored: Json) -> int:
    return int(stored["spec"]["pool"]["generation"])
