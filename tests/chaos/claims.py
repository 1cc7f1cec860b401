"""ResourceClaims of the workload: what they ask for, by the name of their shape, and what the checkers read of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaos.arithmetic import Ask
from cluster.claims import API, claim_spec, request, share

Json = dict[str, Any]

DRIVER = "gpu.gpuledger.dev"
REQUEST = "gpu"

SHAPES: dict[str, tuple[Json, Ask]] = {
    "tiny": (share("3000Mi"), Ask(REQUEST, 1, 3000, 100, None)),
    "third": (share("5000Mi", cores=30), Ask(REQUEST, 1, 5000, 100, 30)),
    "pair": (share("2000Mi", count=2), Ask(REQUEST, 2, 2000, 100, None)),
    "card": (request(), Ask(REQUEST, 1, None, 100, None)),
}
"""Shape -> the request of such a claim, and what that is. A claim's or template's name ends with its shape."""


def shape_of(name: str) -> str:
    """Return the shape of a claim or template."""
    return name.rpartition("-")[2]


def template_name(shape: str) -> str:
    """Return the name of the template of a shape, which each namespace has."""
    return f"template-{shape}"


def template(shape: str) -> Json:
    """Return the template of a shape, as it is created."""
    return {"metadata": {"name": template_name(shape)}, "spec": {"spec": claim_spec(SHAPES[shape][0])}}


def claim(name: str) -> Json:
    """Return a claim of its own, as it is created."""
    return {"metadata": {"name": name}, "spec": claim_spec(SHAPES[shape_of(name)][0])}


def claims_path(namespace: str) -> str:
    """Return the path of a namespace's claims."""
    return f"{API}/namespaces/{namespace}/resourceclaims"


def templates_path(namespace: str) -> str:
    """Return the path of a namespace's templates."""
    return f"{API}/namespaces/{namespace}/resourceclaimtemplates"


# What the checkers read.


def claim_names(pod: Json) -> Iterator[tuple[str, str, bool]]:
    """Yield a pod's claims: its own name for each, the object's, empty if that is to be made, and if others use it."""
    made = {
        each["name"]: each.get("resourceClaimName") or ""
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for each in pod["spec"].get("resourceClaims") or ():
        shared = "resourceClaimName" in each
        yield each["name"], each["resourceClaimName"] if shared else made.get(each["name"], ""), shared


def claim_asks_of(pod: Json) -> dict[str, Ask]:
    """Return what a pod's own claims, those made from templates, ask for, by the names of their shares."""
    return {
        f"{each['name']}/{REQUEST}": SHAPES[shape_of(each["resourceClaimTemplateName"])][1]
        for each in pod["spec"].get("resourceClaims") or ()
        if "resourceClaimTemplateName" in each
    }


def has_claims(pod: Json) -> bool:
    """Return whether a pod brings claims."""
    return bool(pod["spec"].get("resourceClaims"))


def shares_claims(pod: Json) -> bool:
    """Return whether a pod names claims that others can use, too: what it holds by them comes and goes with others."""
    return any(shared for _, _, shared in claim_names(pod))


def without_shared(pod: Json, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a pod's parts of a card, by their names, those that it does not have by a shared claim."""
    shared = {name for name, _, is_shared in claim_names(pod) if is_shared}
    return {name: part for name, part in parts.items() if name.partition("/")[0] not in shared}


def devices_of(found: Json) -> list[str]:
    """Return the names of the devices of our driver that a claim was given."""
    results = (((found.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
    return [each["device"] for each in results if each["driver"] == DRIVER]


def reserved_for(found: Json) -> set[str]:
    """Return the UIDs of the pods that may use a claim."""
    return {each["uid"] for each in (found.get("status") or {}).get("reservedFor") or ()}


def device_of(uuid: str) -> str:
    """Return the name of a card as a device."""
    return uuid.lower()


def claim_uids(holder: Json) -> set[str]:
    """Return by which claims somebody holds a share of a card."""
    return {each["claim"]["uid"] for each in holder["containers"] if each.get("claim")}
