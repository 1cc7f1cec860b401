"""Which requests of claims come into containers together. Pure.

A container runtime puts the edits of several devices one over the other: of two limits for a container's first card,
the last one would stay. So a container gets one device of ours, whatever it names, and requests that the same
containers name are one. Kubernetes matches by the request, never by its subrequest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuledger.agent.grants.ledger_view import HeldClaims, HeldPart
from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.model.errors import StartRefused
from gpuledger.model.json_object import JsonMapping


@dataclass(frozen=True, slots=True)
class Unit:
    """Requests that are one device."""

    parts: tuple[HeldPart, ...]
    containers: int = 1
    """How many of its pod's containers use it at the same time, at most."""

    @property
    def first(self) -> HeldPart:
        """The part that gives the unit its name, whichever of its claims is asked for."""
        return self.parts[0]

    @property
    def name(self) -> str:
        """The unit's requests, as the ledger names them."""
        return "+".join(dict.fromkeys(part.entry for part in self.parts))

    @property
    def cards(self) -> tuple[GrantedCard, ...]:
        """Its cards in the order of their index: of a card that several requests share, what they have together."""
        found: dict[str, GrantedCard] = {}
        for part in self.parts:
            card, before = part.card, found.get(part.card.uuid)
            found[card.uuid] = card if before is None else _together(before, card)
        return tuple(sorted(found.values(), key=lambda card: (card.index, card.uuid)))


def shared_unit(held: HeldClaims) -> Unit:
    """Return the whole of a claim as one: pods come and go that share it, and each names what it likes of it."""
    return Unit(_in_order(held.parts))


def units_of_pod(held: HeldClaims, pod: JsonMapping) -> list[Unit]:
    """Return the units of a pod.

    Raises StartRefused if a container would get several; or cards by its own resources, or by a claim that pods share,
    as well.
    """
    uses = _users(held, pod)
    grouped: dict[frozenset[str] | tuple[str, str], list[HeldPart]] = {}
    for part in _in_order(held.parts):
        containers = frozenset(name for name, requests in uses.items() if _key(part) in requests)
        grouped.setdefault(containers or _key(part), []).append(part)
    of_others = held.containers | _users_of_shared(held, pod)
    for container, requests in uses.items():
        of_it = [parts for parts in grouped.values() if any(_key(part) in requests for part in parts)]
        if len(of_it) > 1 or container in of_others:
            raise StartRefused(_refusal(container, of_it, container in of_others))
    return [Unit(tuple(parts), _at_once(pod, users)) for users, parts in grouped.items()]


def _users(held: HeldClaims, pod: JsonMapping) -> dict[str, set[tuple[str, str]]]:
    """Return the names of containers that use claims -> the claims' names in the pod, and their requests."""
    found: dict[str, set[tuple[str, str]]] = {}
    for container in _containers(pod):
        for each in (container.get("resources") or {}).get("claims") or ():
            named = {
                _key(part)
                for part in held.parts
                if part.pod_claim == each["name"] and each.get("request") in (None, "", part.request)
            }
            if named:
                found.setdefault(container["name"], set()).update(named)
    return found


def _at_once(pod: JsonMapping, names: Iterable[str]) -> int:
    """Return how many of these containers can run at the same time: ordinary init containers run before, one by one."""
    early = [each for each in pod["spec"].get("initContainers") or () if each["name"] in names]
    sidecars: int = sum(each.get("restartPolicy") == "Always" for each in early)
    late = sum(each["name"] in names for each in pod["spec"]["containers"])
    return max(sidecars + late, sidecars + 1 if sidecars < len(early) else 0)


def _users_of_shared(held: HeldClaims, pod: JsonMapping) -> frozenset[str]:
    """Return the names of containers that use claims that pods share."""
    given = pod["spec"].get("resourceClaims") or ()
    names = {each["name"] for each in given if each.get("resourceClaimName") in held.shared}
    return frozenset(
        container["name"]
        for container in _containers(pod)
        if any(each["name"] in names for each in (container.get("resources") or {}).get("claims") or ())
    )


def _containers(pod: JsonMapping) -> list[JsonMapping]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def _in_order(parts: Iterable[HeldPart]) -> tuple[HeldPart, ...]:
    return tuple(sorted(parts, key=lambda part: (part.entry, part.card.index, part.card.uuid)))


def _key(part: HeldPart) -> tuple[str, str]:
    return part.pod_claim, part.request


def _together(one: GrantedCard, other: GrantedCard) -> GrantedCard:
    cores = one.cores + other.cores if one.cores and other.cores else 0  # what is not limited stays so
    return replace(one, memory_mib=one.memory_mib + other.memory_mib, cores=cores)


def _refusal(container: str, several: Sequence[Sequence[HeldPart]], of_others: bool) -> str:
    names = ", ".join(Unit(tuple(parts)).name for parts in several)
    if of_others:
        return (
            f"container {container} gets GPUs by {names}, and by its own resources or a claim that pods share: a node "
            "can't keep it to both of these shares at once. Let it ask in one way"
        )
    return (
        f"container {container} names {names}, of which other containers name only some: a node can't keep it to all "
        "of these shares at once. Let each container name one request, or let all of them name the same ones"
    )
