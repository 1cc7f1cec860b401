"""The names under which cards are offered to ResourceClaims, and those of the claims that a pod has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from gpuledger.model.card_attributes import OWN_DOMAIN

DRIVER: Final = OWN_DOMAIN
"""Our DRA driver: in slices, in results of allocations, and in the node's plugin. As the resource of a demand: it is
asked for by a claim, and only nodes that serve claims have it."""

DEVICE_CLASS: Final = DRIVER
"""The DeviceClass that comes with the installation."""

MEMORY: Final = "memory"
CORES: Final = "cores"
SLOTS: Final = "slots"
"""Capacities of a device: bytes, percent of the card, and how many shares of it there can be."""

SERVES_CLAIMS_ANNOTATION: Final = "gpuledger.dev/serves-claims"
"""On a node: `true` where the kubelet has taken up our agent as a DRA driver."""

ONLY_TAINT: Final = "gpuledger.dev/only"
"""On each of our devices: it is given out by the ledger, and other schedulers have to leave it alone."""

PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Finalizer of an allocated claim that pods share: nobody deletes it under them. kube-controller-manager removes it,
with the allocation, when the last of them has ended. Source: resource.k8s.io/v1, Finalizer."""

MOST_CLAIMS: Final = 32
"""Of one pod: more than any needs, and each is looked up."""

Json = Mapping[str, Any]


def has_claims(pod: Json) -> bool:
    """Tell whether a pod brings ResourceClaims, of whichever driver."""
    return bool((pod.get("spec") or {}).get("resourceClaims"))


def claim_names(pod: Json) -> Iterator[tuple[str, str, str]]:
    """Yield of each claim its name in the pod, the name of its ResourceClaim, and that of its template.

    Either can be empty: a claim that is made from a template has no name before that.
    """
    made = {
        str(each.get("name")): str(each.get("resourceClaimName") or "")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for each in (pod.get("spec") or {}).get("resourceClaims") or ():
        name, template = str(each.get("name")), str(each.get("resourceClaimTemplateName") or "")
        yield name, made.get(name, "") if template else str(each.get("resourceClaimName") or ""), template


def named_claims(pod: Json) -> list[tuple[str, str, str]]:
    """Return `claim_names`; none of a pod that has too many, which gets no cards, and could name 20,000."""
    found = list(islice(claim_names(pod), MOST_CLAIMS + 1))
    return found if len(found) <= MOST_CLAIMS else []


def has_claim(pod: Json, name: str) -> bool:
    """Tell whether a pod has a ResourceClaim of its namespace, whatever else it has."""
    return any(found == name for _, found, _ in claim_names(pod))


def names_of_claims(pod: Json) -> frozenset[str]:
    """Return the names of the ResourceClaims that a pod names, or that were made for it, as far as these are known."""
    return frozenset(name for _, name, _ in named_claims(pod) if name)
