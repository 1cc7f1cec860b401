"""Claims of the workload. What one asks for stands in its name, so that the checker needs nobody's word for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.claims import CLAIMS, TEMPLATES, claim, share, template

Json = dict[str, Any]

LOCAL, REQUEST = "gpu", "gpu"
"""A claim's name in its pod, and its only request's."""

ENTRY = f"{LOCAL}/{REQUEST}"
"""What the ledger calls it."""

_NAME = re.compile(r"(made|joint)-(\d+)-(\d+)-(\d+)")


def made(memory_mib: int, cards: int = 1, cores: int = 0) -> str:
    """Return the name of a template, from which each pod has a claim of its own."""
    return f"made-{cards}-{memory_mib}-{cores}"


def joint(memory_mib: int, cards: int = 1, cores: int = 0) -> str:
    """Return the name of a claim that pods share."""
    return f"joint-{cards}-{memory_mib}-{cores}"


@dataclass(frozen=True)
class Use:
    """What a container has by a claim."""

    key: str
    """The same for all containers that have one amount together."""
    joint: str
    """Name of the claim, if pods share it."""
    cards: int
    memory_mib: int
    cores: int


def use_of(pod: Json, container: str) -> Use | None:
    """Return what a container uses of its pod's claim; None for one that uses none."""
    found = next((each for each in _containers(pod) if each["name"] == container), None)
    named = (found or {}).get("resources", {}).get("claims")
    return claim_of(pod) if named else None


def claim_of(pod: Json) -> Use | None:
    """Return what a pod's claim asks for; None for a pod without one."""
    for each in pod["spec"].get("resourceClaims") or ():
        _, *amounts = _parts(each.get("resourceClaimName") or each["resourceClaimTemplateName"])
        shared = each.get("resourceClaimName", "")
        return Use(shared or f"claim of {pod['metadata']['uid']}", shared, *map(int, amounts))
    return None


def users(pod: Json) -> int:
    """Return how many containers of a pod use its claim: all of them run at the same time."""
    return sum(use_of(pod, each["name"]) is not None for each in _containers(pod))


def objects(body: Json) -> Iterator[tuple[str, Json]]:
    """Yield what has to be there before a pod is created: path, and object."""
    for each in body["spec"].get("resourceClaims") or ():
        name = each.get("resourceClaimName") or each["resourceClaimTemplateName"]
        kind, cards, memory_mib, cores = _parts(name)
        asked = share(f"{memory_mib}Mi", int(cores) or None, REQUEST, count=int(cards))
        yield (CLAIMS, claim(name, asked)) if kind == "joint" else (TEMPLATES, template(name, asked))


def may_wait(pod: Json, isolation: str) -> bool:
    """Return whether a node must not start all of a pod, as it can't limit a claim's users together."""
    found = claim_of(pod)
    if found is None or isolation == "none":
        return False
    return bool(found.joint) or (isolation != "driver" and users(pod) > 1)


def _containers(pod: Mapping[str, Any]) -> list[Json]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def _parts(name: str) -> tuple[str, ...]:
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return found.groups()
