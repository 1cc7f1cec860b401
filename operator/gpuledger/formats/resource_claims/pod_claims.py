"""The ResourceClaims of a pod: which of them ask for our cards, and what."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice, product

from gpuledger.formats.resource_claims.claims import (
    DRIVER,
    MOST_CLAIMS,
    Claim,
    ClaimObjects,
    ClaimSpec,
    UsedClaim,
    check_containers,
    claim_names,
)
from gpuledger.formats.resource_claims.demands import MOST_ALTERNATIVES, Entry, check_selectors, claim_alternatives
from gpuledger.model.card import CardFilter
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.request import JoinedClaim, Lifetime, PodClaim


@dataclass(frozen=True, slots=True)
class ClaimsOfPod:
    """What a pod's claims ask for."""

    ways: tuple[tuple[Entry, ...], ...]
    """The ways to serve the claims that are to be allocated, the preferred first; one without entries if none is."""
    claims: tuple[PodClaim, ...] = ()
    joined: tuple[JoinedClaim, ...] = ()


NO_CLAIMS = ClaimsOfPod(ways=((),))


def claims_of_pod(
    pod: JsonMapping, objects: ClaimObjects, chosen: CardFilter, with_resources: Collection[str] = ()
) -> ClaimsOfPod:
    """Return what a pod's claims ask for; those of other drivers are passed over where its scheduler serves them.

    A pod that has its node has also what others have given it there. `chosen` is the pod's own choice of cards,
    `with_resources` are the containers that ask for cards by their resources, too. Raises BadInput, naming the claim
    and what to write instead.
    """
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    given = list(islice(claim_names(pod), MOST_CLAIMS + 1))
    if len(given) > MOST_CLAIMS:
        raise BadInput(f"the pod has more than {MOST_CLAIMS} ResourceClaims: spread them over several pods")
    lifetime = _lifetime(pod)
    leaves_others = objects.serves_other_drivers(str(pod["spec"].get("schedulerName") or ""))
    asking: list[tuple[int, PodClaim, ClaimSpec]] = []
    joined = []
    for number, names in enumerate(given):
        found = _resolved(pod, *names, objects, is_bound)
        if isinstance(found, JoinedClaim):
            joined.append(found)
        elif found is not None and _is_ours(found, objects, leaves_others or is_bound):
            assert isinstance(found.wishes, ClaimSpec)  # noqa: S101 - that is what _resolved puts there
            asking.append((number, found, found.wishes))
    claims, namespace = [claim for _, claim, _ in asking], str(pod["metadata"]["namespace"])
    if not is_bound:
        check_selectors(spec for _, _, spec in asking)
    alternatives = [
        claim_alternatives(claim.name, number, spec, objects, chosen, lifetime, namespace)
        for number, claim, spec in asking
    ]
    _check_nodes(joined)
    if not is_bound:
        check_containers(
            pod, [*map(_used, claims), *(UsedClaim(each.name, ("",), True) for each in joined)], with_resources
        )
    ways = list(islice(product(*alternatives), MOST_ALTERNATIVES + 1))
    if len(ways) > MOST_ALTERNATIVES:
        raise BadInput(f"the pod's claims can be served in more than {MOST_ALTERNATIVES} ways: name fewer of them")
    entries = tuple(tuple(entry for part in way for entry in part) for way in ways)
    return ClaimsOfPod(entries, tuple(claims), tuple(joined))


def _lifetime(pod: JsonMapping) -> Lifetime:
    """Return how long claims are held: from the pod's first container on, to its end."""
    return Lifetime.SIDECAR if (pod.get("spec") or {}).get("initContainers") else Lifetime.MAIN


def _resolved(
    pod: JsonMapping, name: str, object_name: str, template: str, objects: ClaimObjects, is_bound: bool
) -> PodClaim | JoinedClaim | None:
    """Return a claim of the pod as far as it is known; None for one that asks for nothing. Raises BadInput.

    The names are those of `claim_names`.
    """
    namespace, uid = str(pod["metadata"]["namespace"]), str(pod["metadata"]["uid"])
    stored = objects.claim(namespace, object_name) if object_name else None
    if stored is not None:
        return _of_object(name, stored, uid, objects, bool(template), is_bound)
    if template and object_name and not is_bound:
        raise BadInput(
            f"claim {name}: ResourceClaim {object_name}, which was made for the pod, is not there; if it was deleted, "
            "Kubernetes before 1.37 makes no other one: create the pod anew"
        )
    spec = objects.template(namespace, template) if template else None
    if spec is None:
        missing = f"ResourceClaimTemplate {template}" if template else f"ResourceClaim {object_name}"
        raise BadInput(f"claim {name}: there is no {missing} in namespace {namespace}")
    return PodClaim(name, object_name, wishes=spec) if spec.requests else None


def _of_object(
    name: str, stored: Claim, pod_uid: str, objects: ClaimObjects, is_made: bool, is_bound: bool
) -> PodClaim | JoinedClaim | None:
    if stored.owner not in ("", pod_uid) or (is_made and stored.owner != pod_uid):
        raise BadInput(f"claim {name}: ResourceClaim {stored.name} was made for another pod")
    if not stored.spec.requests or (is_bound and stored.is_allocated and DRIVER not in stored.drivers):
        return None
    holder = objects.holder_of(stored)
    if holder and holder != pod_uid:
        return JoinedClaim(name, stored.name, stored.uid, stored.node_name)
    if stored.is_being_deleted and not is_bound:  # who uses it keeps it
        raise BadInput(f"claim {name}: ResourceClaim {stored.name} is being deleted")
    return PodClaim(name, stored.name, stored.uid, not is_made, stored.spec)


def _is_ours(claim: PodClaim, objects: ClaimObjects, leaves_others: bool) -> bool:
    """Return whether a claim asks for our cards. Raises BadInput if nobody serves it here."""
    assert isinstance(claim.wishes, ClaimSpec)  # noqa: S101 - see above
    classes = {name: objects.device_class(name) for name in claim.wishes.classes()}
    if any(found is None or found.is_ours for found in classes.values()):
        return True
    if leaves_others:
        return False
    raise BadInput(
        f"claim {claim.name} is of DeviceClass {min(classes)}, which has no GPUs of {DRIVER}: this scheduler "
        "profile serves no other driver"
    )


def _used(claim: PodClaim) -> UsedClaim:
    spec = claim.wishes
    assert isinstance(spec, ClaimSpec)  # noqa: S101 - see above
    requests = dict.fromkeys(wish.name.partition("/")[0] for wishes in spec.requests for wish in wishes)
    return UsedClaim(claim.name, tuple(requests), claim.shared)


def _check_nodes(joined: list[JoinedClaim]) -> None:
    nodes = {each.node_name: each for each in joined}
    if len(nodes) > 1:
        first, second = list(nodes.values())[:2]
        raise BadInput(
            f"claims {first.name} and {second.name} are allocated on different nodes, {first.node_name} and "
            f"{second.node_name}: wait until the other pods of one of them have ended"
        )
