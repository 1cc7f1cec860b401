"""Which containers of a pod use which of its claims, and whether a node can keep each of them to its share.

A container gets one device of ours, because a container runtime puts the edits of several over each other. Requests
that the same containers use are one device; a claim that pods share is one, whatever they use of it. Everything else
would be refused by the node's agent when the pod starts (agent/claims/units.py), so it is refused before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.model.errors import BadInput

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UsedClaim:
    """A claim of the pod that is served by us."""

    name: str
    """In the pod."""
    requests: tuple[str, ...]
    shared: bool


def check_containers(pod: Json, claims: Sequence[UsedClaim], with_resources: Collection[str]) -> None:
    """Raise BadInput if a container would need several of our devices.

    `with_resources` are the names of the containers that ask for cards by their own resources.
    """
    by_name = {claim.name: claim for claim in claims}
    spec = pod.get("spec") or {}
    used: dict[str, set[tuple[str, str]]] = {}  # container -> its requests, each by claim and name
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for each in (container.get("resources") or {}).get("claims") or ():
            claim = by_name.get(str(each.get("name")))
            if claim is not None:
                used.setdefault(str(container["name"]), set()).update(_requests(claim, each.get("request")))
    for name, requests in used.items():
        if name in with_resources:
            raise BadInput(f"container {name} asks for GPUs by its resources and by a claim: let it ask in one way")
        if len({frozenset(other for other in used if each in used[other]) for each in requests}) > 1:
            raise BadInput(
                f"container {name} uses requests of claims of which other containers use only some: let each container "
                "use one request, or all of them the same ones"
            )
        of_claims = {claim for claim, _ in requests}
        if len(of_claims) > 1 and any(by_name[claim].shared for claim in of_claims):
            raise BadInput(f"container {name} uses a claim that pods share and another one: give each a container")


def _requests(claim: UsedClaim, named: object) -> set[tuple[str, str]]:
    """Return the requests of a claim that a container uses; of a claim that pods share, it gets all."""
    if claim.shared or not named:
        return {(claim.name, each) for each in claim.requests}
    return {(claim.name, str(named))}
