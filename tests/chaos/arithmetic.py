"""What pods ask for and what cards have, worked out from their JSON. Nothing of the product is used here.

The checkers compare the product with this second opinion. It knows only what the documents promise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Json = dict[str, Any]

COUNT, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
DEVICES = "gpuledger.dev/devices"
REGISTER = "gpuledger.dev/gpus"
AMOUNTS = ("memoryMiB", "cores", "number")
ALL_CORES = 100
CPUS_OF_NODE = 128
_FACTORS = {
    **{letter: Decimal(10) ** exponent for letter, exponent in zip("num", (-9, -6, -3), strict=True)},
    **{f"{letter}i": Decimal(1024) ** exponent for exponent, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** exponent for exponent, letter in enumerate("kMGTPE", 1)},
}
"""The end of a quantity -> what it stands for."""


@dataclass(frozen=True)
class Ask:
    """What one container asks of each of `cards` different cards; no memory given is a share in percent."""

    container: str
    cards: int
    memory_mib: int | None
    percent: int
    cores: int | None

    @property
    def whole(self) -> bool:
        """Whether it asks for cards and nothing else, and so gets all of each."""
        return self.memory_mib is None and self.percent == 100 and self.cores is None

    @property
    def exclusive(self) -> bool:
        """Whether it must be alone on its cards."""
        return self.whole or self.cores == ALL_CORES

    def memory_on(self, capacity: Json) -> int:
        """Return the MiB that it takes of a card."""
        if self.memory_mib is not None:
            return self.memory_mib
        return max(1, int(capacity["memoryMiB"]) * self.percent // 100)

    def cores_on(self, capacity: Json) -> int:
        """Return the cores that it takes of a card, in percent."""
        return int(capacity["cores"]) if self.whole else self.cores or 0

    def fits(self, capacity: Json, used: Json, is_idle: bool, is_shut: bool) -> bool:
        """Return whether a card has room for it beside those who are there."""
        if is_shut or (self.exclusive and not is_idle):
            return False
        free_cores = capacity["cores"] - used["cores"]
        if not self.cores and not self.whole and free_cores <= 0:
            return False  # all cores were promised to others
        return bool(
            used["memoryMiB"] + self.memory_on(capacity) <= capacity["memoryMiB"]
            and self.cores_on(capacity) <= free_cores
            and used["number"] + 1 <= capacity["number"]
        )


def asks_of(pod: Json) -> list[Ask]:
    """Return what each container asks for, those that ask for cards."""
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return [ask for ask in map(_ask, containers) if ask.cards]


def peaks(pod: Json, amounts: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return what a pod takes of a card at its peak, given what its containers have there: memory and cores."""
    moments: list[list[str]] = []
    staying: list[str] = []
    for container in pod["spec"].get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            staying.append(container["name"])
        else:
            moments.append([*staying, container["name"]])
    moments.append([*staying, *(container["name"] for container in pod["spec"]["containers"])])
    here = [[amounts[name] for name in moment if name in amounts] for moment in moments]
    return {
        "memoryMiB": max(sum(memory for memory, _ in moment) for moment in here),
        "cores": max(sum(cores for _, cores in moment) for moment in here),
        "number": max(map(len, here)),
    }


def told(pod: Json) -> dict[str, dict[str, tuple[int, int]]]:
    """Return what a bound pod was given: card UUID -> container -> memory and cores. Raises ValueError."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        for container, cards in json.loads(pod["metadata"]["annotations"][DEVICES]).items():
            for card in cards:
                found.setdefault(card["uuid"], {})[container] = (card["memoryMiB"], card["cores"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"annotation {DEVICES} can't be read: {error!r}") from error
    return found


def told_cards(pod: Json) -> frozenset[str]:
    """Return the UUIDs of the cards that a bound pod was given; of an annotation that can't be read, none."""
    try:
        return frozenset(told(pod))
    except ValueError:  # the checker has found that by itself
        return frozenset()


def totals(holders: Iterable[Json]) -> dict[str, int]:
    """Return what these holders take together."""
    listed = list(holders)
    return {amount: sum(int(holder[amount]) for holder in listed) for amount in AMOUNTS}


def holders_of(card: Json) -> list[Json]:
    """Return a card's holders."""
    return list((card.get("status") or {}).get("holders") or ())


def is_bound(pod: Json) -> bool:
    """Return whether a pod has a node."""
    return bool(pod["spec"].get("nodeName"))


def grace_s(pod: Json) -> int:
    """Return how long the pod may take to end once it is told to."""
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30))


def cpus_of(pod: Json) -> Decimal:
    """Return how many CPUs the pod asks for. No pod of the workload asks for them in an init container."""
    requests = ((container.get("resources") or {}).get("requests") or {} for container in pod["spec"]["containers"])
    return sum((_quantity(each.get("cpu", "0")) for each in requests), Decimal(0))


def why_it_waits(pod: Json) -> list[str]:
    """Return what a pod's conditions say of why it waits."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return [each["message"] for each in conditions if each["status"] == "False" and each.get("message")]


def priority_of(pod: Json) -> int:
    """Return how important the pod is."""
    return int(pod["spec"].get("priority") or 0)


def leaves_failed_card(pod: Json) -> bool:
    """Return whether a pod asks to be evicted from a card that has failed; no controller would make it anew."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get("gpuledger.dev/on-card-failure") == "leave")


def may_be_moved(pod: Json) -> bool:
    """Return whether a pod is one of a ReplicaSet's, which `gpuledger move` evicts."""
    return any(owner["kind"] == "ReplicaSet" for owner in pod["metadata"].get("ownerReferences", ()))


def is_evicted(pod: Json) -> bool:
    """Return whether somebody has asked for an Eviction of the pod.

    Those that kube-scheduler preempts by itself are not meant: it deletes them by name alone, and so, now and then, a
    newer pod of that name (PreemptPod in pkg/scheduler/framework/preemption/executor.go, Kubernetes 1.36).
    """
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("reason") == "EvictionByEvictionAPI" for each in conditions)


def has_ended(pod: Json) -> bool:
    """Return whether all containers of a pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_started(pod: Json) -> bool:
    """Return whether a kubelet has taken a pod up."""
    return bool((pod.get("status") or {}).get("startTime"))


def _ask(container: Json) -> Ask:
    limits = (container.get("resources") or {}).get("limits") or {}
    asked = {name: number_of(limits[name]) for name in (COUNT, MEMORY, PERCENT, CORES) if name in limits}
    return Ask(
        container=container["name"],
        cards=asked.get(COUNT, 1 if asked else 0),
        memory_mib=asked.get(MEMORY) or None,
        percent=asked.get(PERCENT) or 100,
        cores=asked.get(CORES),
    )


def number_of(quantity: object) -> int:
    """Return a quantity as the API server spells it, such as 4k, without what is left of a whole one."""
    return int(_quantity(quantity))


def _quantity(quantity: object) -> Decimal:
    text = str(quantity)
    end = next((end for end in _FACTORS if text.endswith(end)), "")
    return Decimal(text.removesuffix(end)) * _FACTORS.get(end, 1)
