"""CPU and memory of nodes and pods, and which resources pods request.

They decide between nodes only, so what can't be read counts as nothing. Beside them is the number of cards under the
name of an extended resource, counted as kube-scheduler counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gpuledger.formats.kubernetes.quantity import amount
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import NO_HOST, HostAmounts

MIB = 1 << 20

LARGEST = 1 << 53
"""Of any amount: more is a mistake, and would not be exact as a float, in which prices are computed."""


def host_capacity(node: JsonMapping) -> HostAmounts | None:
    """Return the CPU and memory that a Node offers to pods, None if it does not say so."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    if "cpu" not in allocatable or "memory" not in allocatable:
        return None
    return _amounts(allocatable, "")


def counted_cards(node: JsonMapping, count: str) -> int:
    """Return how many cards a Node offers to pods under this name."""
    return _amounts((node.get("status") or {}).get("allocatable") or {}, count).cards


def host_request(pod: JsonMapping, count: str = "") -> HostAmounts:
    """Return what a pod asks for as a whole.

    Source: Kubernetes' rule for a pod's effective request. Each init container runs beside the sidecars declared
    before it, the main containers beside all sidecars; what the pod asks for at its own level counts instead; overhead
    is added.
    """
    spec = pod.get("spec") or {}
    sidecars = peak = NO_HOST
    for container in spec.get("initContainers") or ():
        asked = _asked(container, count)
        if container.get("restartPolicy") == "Always":
            sidecars = sidecars + asked
            peak = peak.peak(sidecars)
        else:
            peak = peak.peak(sidecars + asked)
    peak = peak.peak(sum((_asked(container, count) for container in spec.get("containers") or ()), sidecars))
    own = _asked(spec, "")
    whole = HostAmounts(own.cpu_milli or peak.cpu_milli, own.memory_mib or peak.memory_mib, peak.cards)
    return whole + _amounts(_mapping(spec.get("overhead")), "")


def _asked(described: JsonMapping, count: str) -> HostAmounts:
    """Return the requests of a container, or of a pod; limits stand for what is not said."""
    resources = _mapping(described.get("resources"))
    return _amounts({**_mapping(resources.get("limits")), **_mapping(resources.get("requests"))}, count)


def _mapping(value: object) -> JsonMapping:
    return value if isinstance(value, dict) else {}


def _amounts(quantities: JsonMapping, count: str) -> HostAmounts:
    cards = _amount(quantities.get(count), 1) if count else 0
    return HostAmounts(_amount(quantities.get("cpu"), 1000), _amount(quantities.get("memory"), 1) // MIB, cards)


def _amount(quantity: object, per_unit: int) -> int:
    return _known_amount(str(quantity), per_unit) if isinstance(quantity, str | int | float) else 0


@lru_cache(maxsize=4096)
def _known_amount(quantity: str, per_unit: int) -> int:
    try:
        return min(amount(quantity, per_unit), LARGEST)
    except BadInput:
        return 0


def resources_asked(pod: JsonMapping) -> Iterator[str]:
    """Yield the names of all resources that a pod's containers ask for."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        asked = container.get("resources") or {}
        yield from asked.get("limits") or ()
        yield from asked.get("requests") or ()
