"""Pods' requests: what their containers ask for in any vocabulary, and their ResourceClaims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from gpuledger.formats.dialects.container_request import ContainerRequest, reader_of
from gpuledger.formats.dialects.selection import Selection, selection
from gpuledger.formats.dialects.totals import MAX_CARDS
from gpuledger.formats.dialects.vocabulary import Dialects, Vocabulary
from gpuledger.formats.objects.host import host_request
from gpuledger.formats.quantity import whole_number
from gpuledger.formats.resource_claims.demands import Entry
from gpuledger.formats.resource_claims.names import has_claims
from gpuledger.formats.resource_claims.objects import ClaimObjects
from gpuledger.formats.resource_claims.pod_claims import NO_CLAIMS, ClaimsOfPod, claims_of_pod
from gpuledger.model.card_filter import CardFilter
from gpuledger.model.errors import BadInput
from gpuledger.model.request import ANY_NVIDIA, Lifetime, PodRequest
from gpuledger.model.unaccounted_pod import Counted

Json = Mapping[str, Any]

MOST_CONTAINERS = 256
"""Of a pod with GPUs, those without any included: their names stay in memory for as long as it waits."""


def pod_request(pod: Json, dialects: Dialects, claims: ClaimObjects | None = None) -> PodRequest | None:
    """Return what the pod asks for, None if it asks for no card.

    Its ResourceClaims count where it is known what they ask for: `claims` says so. Where they can be served in several
    ways, the first one is returned, with the others as its alternatives. Raises BadInput, naming the container or the
    claim, the resource, and what to write instead.
    """
    asking = (each for each in container_requests(pod, dialects) if each is not None)
    found = list(islice(asking, dialects.most_containers + 1))
    with_claims = claims is not None and has_claims(pod)
    if not found and not with_claims:
        return None
    if len(found) > dialects.most_containers:
        raise BadInput(too_many_containers(dialects.most_containers))
    _check_one_container(found, dialects)
    chosen = selection(pod)
    of_claims = NO_CLAIMS
    if claims is not None and with_claims:
        of_claims = claims_of_pod(pod, claims, chosen.cards, {each.name for each in found})
    if not found and not of_claims.claims and not of_claims.joined:
        return None
    first, *others = (_request(pod, dialects, found, chosen, of_claims, way) for way in of_claims.ways)
    return replace(first, alternatives=tuple(others)) if others else first


def _request(
    pod: Json,
    dialects: Dialects,
    found: Sequence[ContainerRequest],
    chosen: Selection,
    of_claims: ClaimsOfPod,
    way: Sequence[Entry],
) -> PodRequest:
    if len(found) + len(way) > dialects.most_containers:
        raise BadInput(too_many_containers(dialects.most_containers))
    every = list(islice(containers(pod), MOST_CONTAINERS + 1))
    if len(every) > MOST_CONTAINERS:
        raise BadInput(f"the pod has more than {MOST_CONTAINERS} containers: spread them over several pods")
    return PodRequest(
        names=(*(each.name for each in way), *(each.name for each in found)),
        shape=(*(each.demand for each in way), *(each.demand for each in found)),
        all_containers=tuple(str(container["name"]) for container, _ in every),
        init_containers=sum(lifetime is not Lifetime.MAIN for _, lifetime in every),
        node_policy=chosen.node_policy,
        card_policy=chosen.card_policy,
        host=host_request(pod, dialects.elsewhere),
        warnings=(*chosen.warnings, *(warning for each in found for warning in each.warnings)),
        claims=of_claims.claims,
        joined=of_claims.joined,
    )


def _check_one_container(found: Sequence[ContainerRequest], dialects: Dialects) -> None:
    """Raise BadInput if several containers ask for cards whose plugin is told of one."""
    alone = {each.name for each in dialects.vocabularies if each.one_container}
    asking = [each for each in found if each.vocabulary in alone]
    if len({each.name for each in asking}) > 1:
        raise BadInput(
            f"containers {' and '.join(each.name for each in asking)} ask for cards of {asking[0].vocabulary}, whose "
            "device plugin serves one container of a pod: give each a pod of its own"
        )


def too_many_containers(most: int) -> str:
    """Return the message for a pod that has more containers with cards than that."""
    return f"more than {most} containers of this pod ask for GPUs: spread them over several pods"


def container_requests(pod: Json, dialects: Dialects) -> Iterator[ContainerRequest | None]:
    """Yield for every container, the init containers first, what it asks for: None for no card. Raises BadInput."""
    chosen: Selection | None = None
    for container, lifetime in containers(pod):
        reader = reader_of(container, dialects)
        request = reader.read() if reader else None
        if reader is None or request is None:
            yield None
            continue
        chosen = chosen or selection(pod)
        wanted = _wanted(pod, reader.vocabulary, chosen)
        demand = replace(request.demand, lifetime=lifetime, wanted=wanted, one_numa_node=chosen.one_numa_node)
        yield replace(request, demand=demand)


def containers(pod: Json) -> Iterator[tuple[Json, Lifetime]]:
    """Yield the containers, the init containers first, and when each runs."""
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        yield container, Lifetime.SIDECAR if container.get("restartPolicy") == "Always" else Lifetime.INIT
    for container in spec.get("containers") or ():
        yield container, Lifetime.MAIN


def counted(pod: Json, dialects: Dialects) -> tuple[Counted, ...]:
    """Return what the kubelet asks device plugins for, whatever else the pod says; readable or not for us."""
    found: list[Counted] = []
    for container, _ in containers(pod):
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            counting = next((each for each in dialects.by_name.get(name, ()) if each.count == name), None)
            cards = _cards(amount) if counting else 0
            if counting and cards:
                cards = 1 if counting.count_is_cores else cards
                found.append(Counted(str(container["name"]), name, counting.vendor, cards))
    return tuple(found)


def _cards(amount: object) -> int:
    try:
        return min(whole_number(amount), MAX_CARDS)
    except BadInput:  # "1Ki" is a number to the kubelet, and more than there are
        return MAX_CARDS


def _wanted(pod: Json, vocabulary: Vocabulary, chosen: Selection) -> CardFilter:
    # The annotations for models and modes are about NVIDIA's cards, as with HAMi.
    chosen_cards = chosen.cards if vocabulary.vendor == ANY_NVIDIA.vendor else ANY_NVIDIA
    wanted = replace(chosen_cards, vendor=vocabulary.vendor, model=vocabulary.model)
    own = {
        "use_uuids": chosen.entries_of(pod, vocabulary.use_uuid),
        "avoid_uuids": chosen.entries_of(pod, vocabulary.avoid_uuid),
        "use_models": chosen.entries_of(pod, vocabulary.use_model),
        "avoid_models": chosen.entries_of(pod, vocabulary.avoid_model),
    }
    return replace(wanted, **{name: getattr(wanted, name) + more for name, more in own.items() if more})
