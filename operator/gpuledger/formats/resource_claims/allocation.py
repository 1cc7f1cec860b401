"""What Bind writes into the status of a ResourceClaim: which cards it has, and which pod may use it.

Source: resource.k8s.io/v1, AllocationResult; and what kube-scheduler's plugin DynamicResources writes there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from gpuledger.formats.resource_claims.claims import CORES, DRIVER, MEMORY, SLOTS, ClaimObjects, ClaimSpec, OpaqueConfig
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.model.card import Card
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodClaim
from gpuledger.model.share import ContainerShare, Pod, Share

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
