"""Pods: what their containers ask for, and the annotation that tells them what they got.

Resource names and their meaning follow HAMi, so that existing manifests keep working:
count of different cards per container; memory per card in MiB or in percent of the card; cores per card in percent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gpuledger.formats.gpu_allocation import MAX_CORES, MAX_MEMORY_MIB, UUID_PATTERN
from gpuledger.formats.quantity import whole_number
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand, Lifetime, PodRequest
from gpuledger.model.share import Pod, Share
from gpuledger.model.world import PodFacts, ToldCard

DEVICES_ANNOTATION = "gpuledger.dev/devices"
"""On a bound pod: JSON {container: [{uuid, memoryMiB, cores}]}, cards in the order of their index."""

MAX_UUID_LENGTH = 253

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """The names by which containers ask."""

    count: str = "nvidia.com/gpu"
    memory: str = "nvidia.com/gpumem"
    memory_percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"

    def all(self) -> tuple[str, ...]:
        """Return every name: the scheduler must send pods that ask for any, and count none itself."""
        return (self.count, self.memory, self.memory_percentage, self.cores, self.priority)


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What a container gets that leaves something out. Memory 0 means the whole card."""

    number: int = 1
    memory_mib: int = 0
    cores: int = 0


def pod_identity(pod: Json) -> Pod:
    """Return who the pod is. Raises BadInput for something that is not a pod."""
    try:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        priority = spec.get("priority") or 0
        return Pod(str(metadata["uid"]), str(metadata["namespace"]), str(metadata["name"]), int(priority))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"not a pod: {error!r} in its metadata") from error


def pod_request(pod: Json, names: ResourceNames, defaults: RequestDefaults) -> PodRequest | None:
    """Return what the pod asks for, None if it asks for no card.

    Raises BadInput, naming the container, the resource, and what to write instead.
    """
    found = [
        (container["name"], demand)
        for container, lifetime in _containers(pod)
        if (demand := _demand(container, lifetime, names, defaults)) is not None
    ]
    if not found:
        return None
    return PodRequest(tuple(name for name, _ in found), tuple(demand for _, demand in found))


def devices_annotation(shares: Iterable[Share]) -> str:
    """Return the value of the annotation for a pod's shares, given in the order of the cards' index."""
    devices: dict[str, list[dict[str, object]]] = {}
    for share in shares:
        for container in share.containers:
            devices.setdefault(container.name, []).append(
                {"uuid": share.uuid, "memoryMiB": container.memory_mib, "cores": container.cores}
            )
    return orjson.dumps(devices).decode()


def read_devices(text: str) -> tuple[ToldCard, ...]:
    """Return what the annotation says, in its order. Raises BadInput for everything else that it may hold."""
    try:
        devices = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"annotation {DEVICES_ANNOTATION} is not JSON: {error}") from None
    if not isinstance(devices, dict) or not all(isinstance(cards, list) for cards in devices.values()):
        raise BadInput(f"annotation {DEVICES_ANNOTATION} does not map containers to lists of cards")
    told = tuple(_told_card(container, card) for container, cards in devices.items() for card in cards)
    if len({(card.container, card.uuid) for card in told}) < len(told):
        raise BadInput(f"annotation {DEVICES_ANNOTATION} gives a container the same card twice")
    return told


def pod_facts(pod: Json, names: ResourceNames, defaults: RequestDefaults) -> PodFacts:
    """Return what matters of a pod. What can't be read is said in it; raises BadInput only if this is no pod."""
    identity = pod_identity(pod)
    request, bad_request, told, bad_annotation = None, "", None, ""
    try:
        request = pod_request(pod, names, defaults)
    except BadInput as error:
        bad_request = str(error)
    try:
        text = (pod["metadata"].get("annotations") or {}).get(DEVICES_ANNOTATION)
        told = None if text is None else read_devices(text)
    except BadInput as error:
        bad_annotation = str(error)
    return PodFacts(identity, bound_node(pod), is_finished(pod), request, bad_request, told, bad_annotation)


def annotated_cards(pod: Json) -> frozenset[str]:
    """Return the UUIDs in the pod's device annotation, none if it can't be read. Users can write it: it is a hint."""
    try:
        devices = orjson.loads((pod["metadata"].get("annotations") or {})[DEVICES_ANNOTATION])
        return frozenset(str(card["uuid"]) for cards in devices.values() for card in cards)
    except (KeyError, TypeError, AttributeError, ValueError):
        return frozenset()


def created_at(pod: Json) -> str:
    """Return when the pod was created, RFC 3339 in whole seconds of UTC: earlier is less."""
    return str((pod.get("metadata") or {}).get("creationTimestamp") or "")


def is_unschedulable(pod: Json) -> bool:
    """Tell whether a scheduler has tried the pod and found no node for it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


def resource_version(pod: Json) -> str:
    """Return which state of the pod this is."""
    return str((pod.get("metadata") or {}).get("resourceVersion") or "")


def is_finished(pod: Json) -> bool:
    """Tell whether all containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_being_deleted(pod: Json) -> bool:
    """Tell whether the pod is on its way out: the API server binds it to no node any more."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def has_started(pod: Json) -> bool:
    """Tell whether a kubelet has ever taken the pod up: then processes of it may exist."""
    return bool((pod.get("status") or {}).get("startTime"))


def bound_node(pod: Json) -> str:
    """Return the node that the pod is bound to, or an empty string."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _containers(pod: Json) -> Iterator[tuple[Json, Lifetime]]:
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        yield container, Lifetime.SIDECAR if container.get("restartPolicy") == "Always" else Lifetime.INIT
    for container in spec.get("containers") or ():
        yield container, Lifetime.MAIN


def _demand(container: Json, lifetime: Lifetime, names: ResourceNames, defaults: RequestDefaults) -> Demand | None:
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    if not any(name in asked for name in (names.count, names.memory, names.memory_percentage, names.cores)):
        return None
    count = _amount(container, asked, names.count)
    memory_mib = _amount(container, asked, names.memory, MAX_MEMORY_MIB, "a number of MiB per card") or 0
    percent = _amount(container, asked, names.memory_percentage, 100, "a percentage of each card's memory") or 0
    cores = _amount(container, asked, names.cores, ALL_CORES, "a percentage of each card's cores")
    if count is None:
        count = defaults.number
    if count == 0:
        if memory_mib or percent or cores:
            raise BadInput(
                f"container {container['name']} asks for GPU memory or cores on 0 GPUs: "
                f"set {names.count} to 1 or more, or drop the rest"
            )
        return None
    memory_mib = memory_mib or (0 if percent else defaults.memory_mib)
    whole = not memory_mib and percent in (0, 100)
    exclusive = whole and cores is None and not defaults.cores
    if cores is None:
        cores = defaults.cores
    return Demand(
        cards=count,
        memory_mib=memory_mib or None,
        memory_percent=100 if memory_mib else percent or 100,
        cores=cores,
        exclusive=exclusive or cores == ALL_CORES,
        lifetime=lifetime,
    )


def _amount(container: Json, asked: Json, name: str, maximum: int = 0, meaning: str = "") -> int | None:
    if name not in asked:
        return None
    where = f"container {container['name']}, {name}"
    try:
        amount = whole_number(asked[name])
    except BadInput as error:
        raise BadInput(f"{where}: {error}" + (f" ({meaning})" if meaning else "")) from None
    if maximum and amount > maximum:
        raise BadInput(f"{where}: {asked[name]} is more than {maximum}; it is {meaning}")
    return amount


def _told_card(container: str, card: object) -> ToldCard:
    where = f"annotation {DEVICES_ANNOTATION}, container {container[:63]!r}"
    if not isinstance(card, dict):
        raise BadInput(f"{where}: an entry is no card")
    uuid = card.get("uuid")
    if not isinstance(uuid, str) or len(uuid) > MAX_UUID_LENGTH or not re.fullmatch(UUID_PATTERN, uuid):
        raise BadInput(f"{where}: a card has no UUID")
    memory_mib, cores = card.get("memoryMiB"), card.get("cores")
    # Not isinstance: a bool is an int, too.
    if type(memory_mib) is not int or not 0 <= memory_mib <= MAX_MEMORY_MIB:
        raise BadInput(f"{where}, card {uuid}: memoryMiB is not between 0 and {MAX_MEMORY_MIB}")
    if type(cores) is not int or not 0 <= cores <= MAX_CORES:
        raise BadInput(f"{where}, card {uuid}: cores is not between 0 and {MAX_CORES}")
    return ToldCard(container, uuid, memory_mib, cores)
