"""Our cards as devices: the ResourceSlices of a node, and the ResourceClaims that have some of them. Pure.

Source: k8s.io/api/resource/v1 (`ResourceSlice`, `ResourcePool`, `Device`), and the limits of its validation. All slices
of a pool have one generation, which counts up when any of them changes: readers leave older ones aside, and wait until
`resourceSliceCount` are there. `kubectl` and autoscalers read the devices, and CEL selectors are evaluated on them.
Amounts are spelled as the API server returns them, so that what is stored can be compared with what should be.

Bind writes a claim's cards, and the pods that may use them, into its status. Source: resource.k8s.io/v1,
AllocationResult; and the writes of kube-scheduler's plugin DynamicResources.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

import orjson

from gpuledger.formats.resource_claims.claims import (
    CORES,
    DRIVER,
    MEMORY,
    ONLY_TAINT,
    SLOTS,
    UNHEALTHY_TAINT,
    ClaimObjects,
    ClaimSpec,
    OpaqueConfig,
)
from gpuledger.model.card import ALL_CORES, ATTRIBUTES, MIG_PARENT, OWN_DOMAIN, Card
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodClaim
from gpuledger.model.share import ContainerShare, Pod, Share

NO_SCHEDULE: Final = "NoSchedule"

ATTRIBUTE_BYTES: Final = 64
"""Kubernetes' limit for the value of an attribute."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST_LENGTH = 20


def device_name(uuid: str) -> str:
    """Return the name of a card's device: its UUID in lower case where that can be a name, else made from it."""
    name = uuid.lower()
    if _LABEL.fullmatch(name):
        return name
    return f"gpu-{hashlib.sha256(uuid.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def device_of(card: Card) -> Json:
    """Return the card as an element of a ResourceSlice's `spec.devices`."""
    capacity = card.capacity
    memory, all_slots = binary_quantity(capacity.memory_mib), decimal_quantity(capacity.number)
    all_cores, most_cores = decimal_quantity(capacity.cores), min(capacity.cores, ALL_CORES)
    return {
        "name": device_name(card.uuid),
        "attributes": _attributes(card),
        "capacity": {
            MEMORY: _capacity(memory, memory, ("1Mi", memory, "1Mi") if capacity.memory_mib > 1 else None),
            CORES: _capacity(all_cores, "0", ("0", str(most_cores), "1") if most_cores else None),
            SLOTS: _capacity(all_slots, "1", ("1", all_slots, "1") if capacity.number > 1 else None),
        },
        "allowMultipleAllocations": True,
        "taints": [{"key": key, "effect": NO_SCHEDULE} for key in _taints(card)],
    }


def _attributes(card: Card) -> Json:
    """Return the card's attributes by the names that slices have them under: without a domain if it is ours."""
    found: dict[str, Json] = {}
    for qualified, read in ATTRIBUTES.items():
        value, name = read(card), qualified.removeprefix(f"{OWN_DOMAIN}/")
        if isinstance(value, int):
            found[name] = {"int": value}
        elif value is not None and (name != "uuid" or len(value.encode()) <= ATTRIBUTE_BYTES):
            found[name] = {"string": _cut(value)}  # though not a UUID, whose part would be that of no card
    return dict(sorted(found.items()))


def _taints(card: Card) -> list[str]:
    return [ONLY_TAINT] if card.healthy else [ONLY_TAINT, UNHEALTHY_TAINT]


def _capacity(value: str, default: str, valid: tuple[str, str, str] | None) -> Json:
    """Return an amount, what a claim gets that names none, and what it can name: the least, the most, and the step.

    Without those it can name the default alone: the API server refuses a range that has no room for a step.
    """
    if valid is None:
        return {"value": value, "requestPolicy": {"default": default, "validValues": [default]}}
    least, most, step = valid
    return {
        "value": value,
        "requestPolicy": {"default": default, "validRange": {"min": least, "max": most, "step": step}},
    }


def binary_quantity(mib: int) -> str:
    """Return an amount of MiB as Kubernetes writes it: 40960 is `40Gi`, 40961 is `40961Mi`."""
    return _shortest(mib, 1024, "Mi", "Gi", "Ti", "Pi")


def decimal_quantity(number: int) -> str:
    """Return a whole number as Kubernetes writes it: 2000 is `2k`, 2500 is `2500`."""
    return _shortest(number, 1000, "", "k", "M", "G")


def _shortest(number: int, step: int, *suffixes: str) -> str:
    place = 0
    while number and number % step == 0 and place + 1 < len(suffixes):
        number //= step
        place += 1
    return f"{number}{suffixes[place]}" if number else "0"


def _cut(text: str) -> str:
    return text.encode()[:ATTRIBUTE_BYTES].decode(errors="ignore")


API_VERSION: Final = "resource.k8s.io/v1"
"""Kubernetes 1.34 and later."""

DEVICES_PER_SLICE: Final = 64
"""Kubernetes' limit where devices have taints, as all of ours have."""

NAME_LENGTH: Final = 253
_ROOM_FOR_NUMBER = len("-00")


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
    """The writes to make, in this order: an incomplete pool is left aside until the last write."""

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
    """Return the spec of a slice, without the times that the API server adds to taints."""
    devices = [_without_times(device) for device in stored["spec"].get("devices") or ()]
    return {**stored["spec"], "devices": devices}


def _without_times(device: Json) -> Json:
    if not device.get("taints"):
        return device
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}


def _replacing(stored: Json, wanted: Json) -> Json:
    """Return the replacement of a slice, which fails if another client changes it first."""
    version = stored["metadata"]["resourceVersion"]
    return {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}


def _generation(stored: Json) -> int:
    return int(stored["spec"]["pool"]["generation"])


MOST_CONSUMERS = 256
"""Pods that can use one claim at a time: the API server's limit for reservedFor."""


def allocation(
    claim: PodClaim, node_name: str, shares: Sequence[Share], cards: Mapping[str, Card], objects: ClaimObjects
) -> Json:
    """Return the `allocation` of a claim whose cards a pod holds; `cards` are these, by UUID.

    Always the same for the same shares, so that it can be compared with what is stored.
    """
    entries = ((share, entry) for share in shares for entry in share.containers if claim.holds(entry.name))
    results = [_result(claim, node_name, share, entry, cards[share.uuid]) for share, entry in entries]
    config = list(_config(claim, objects))
    devices: Json = {"results": results} | ({"config": config} if config else {})
    node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {"devices": devices, "nodeSelector": {"nodeSelectorTerms": [node]}}


def consumer(pod: Pod) -> Json:
    """Return a pod as an element of `reservedFor`."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def with_consumer(status: Mapping[str, Any], pod: Pod) -> Json:
    """Return a claim's status with a pod among those that may use it."""
    others = [each for each in status.get("reservedFor") or () if each.get("uid") != pod.uid]
    return {**status, "reservedFor": [*others, consumer(pod)]}


def without_consumers(status: Mapping[str, Any], pod_uids: Collection[str]) -> Json:
    """Return a claim's status without pods; without its cards, too, if no other one uses them."""
    others = [each for each in status.get("reservedFor") or () if each.get("uid") not in pod_uids]
    kept = {name: value for name, value in status.items() if name not in ("reservedFor", "allocation", "devices")}
    return {**status, "reservedFor": others} if others else kept


def devices_of(status: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the devices of our driver that a claim's status has."""
    return frozenset(name for _, name in devices_in(status.get("allocation") or {}))


def devices_in(stored: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return node and name of the devices of our driver in an allocation."""
    results = (stored.get("devices") or {}).get("results") or ()
    return frozenset((str(each["pool"]), str(each["device"])) for each in results if each["driver"] == DRIVER)


def is_allocated_as(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an allocation that is stored gives the cards that are wanted.

    Only where they are is compared: API servers before 1.36 drop the amounts.
    """
    return _places(stored) == _places(wanted)


def _places(given: Mapping[str, Any]) -> list[tuple[str, ...]]:
    results = (given.get("devices") or {}).get("results") or ()
    return sorted(tuple(str(each.get(key)) for key in ("request", "driver", "pool", "device")) for each in results)


def _result(claim: PodClaim, node_name: str, share: Share, entry: ContainerShare, card: Card) -> Json:
    whole = share.exclusive
    consumed = {
        MEMORY: f"{entry.memory_mib}Mi",
        CORES: str(card.capacity.cores if whole else entry.cores),
        SLOTS: str(card.capacity.number if whole else 1),
    }
    return {
        "request": entry.name.partition("/")[2],
        "driver": DRIVER,
        "pool": node_name,
        "device": device_name(share.uuid),
        "shareID": str(uuid5(NAMESPACE_URL, f"{claim.uid}/{entry.name}/{share.uuid}")),
        "consumedCapacity": consumed,
    }


def _config(claim: PodClaim, objects: ClaimObjects) -> Iterable[Json]:
    """Yield the parameters that have counted, of the classes before those of the claim."""
    spec = claim.wishes
    if not isinstance(spec, ClaimSpec):
        return
    for wishes in spec.requests:
        for wish in wishes:
            found = objects.device_class(wish.device_class)
            for each in found.config if found else ():
                yield {"source": "FromClass", "requests": [wish.name], **_opaque(each)}
    for each in spec.config:
        yield {"source": "FromClaim", "requests": list(each.requests), **_opaque(each)}


def _opaque(config: OpaqueConfig) -> Json:
    return {"opaque": {"driver": DRIVER, "parameters": orjson.loads(config.parameters)}}
