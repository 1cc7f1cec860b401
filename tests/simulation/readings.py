"""What the API server's objects say, by hand: who holds a card, whether a pod lives, what a pod was told."""

from typing import Any

import orjson

from gpuledger.formats.annotations import DEVICES_ANNOTATION
from simulation.api_server import Json
from simulation.scenario import Wish

Devices = dict[str, dict[str, tuple[int, int]]]
"""Card -> container -> memory and cores."""


def holders_of(card: Json | None) -> list[Json]:
    """Return a card's holders, none if it has no status."""
    found: list[Json] = ((card or {}).get("status") or {"holders": []})["holders"]
    return found


def claims_of(card: Json) -> list[Json]:
    """Return a card's claims, none if it has no status."""
    found: list[Json] = (card.get("status") or {}).get("claims") or []
    return found


def lives_bound(pod: Json) -> bool:
    """Return whether a pod has a node and has not ended."""
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def devices(pod: Json) -> Devices:
    """Return what a pod's annotation names, or that of its Binding."""
    named: dict[str, list[dict[str, Any]]] = orjson.loads(pod["metadata"]["annotations"][DEVICES_ANNOTATION])
    found: Devices = {}
    for container, cards in named.items():
        for card in cards:
            found.setdefault(card["uuid"], {})[container] = (card["memoryMiB"], card["cores"])
    return found


def amount_asked(holder: Json) -> int:
    """Return the memory that a pod has asked for: 0 stands for a card of its own."""
    return 0 if holder["exclusive"] else int(holder["memoryMiB"])


def containers_of(holder: Json) -> dict[str, tuple[int, int]]:
    """Return what a holder's containers have: name -> memory and cores."""
    return {c["name"]: (c["memoryMiB"], c["cores"]) for c in holder["containers"]}


def amounts_of(holder: Json) -> tuple[Any, ...]:
    """Return all that a holder has of a card, to be compared."""
    return holder["memoryMiB"], holder["cores"], holder["number"], holder["exclusive"], holder["containers"]


def free_mib(card: Json) -> int:
    """Return the memory that nobody holds of a card, none of one that somebody has for himself."""
    holders = holders_of(card)
    if any(holder["exclusive"] for holder in holders):
        return 0
    used_mib: int = sum(holder["memoryMiB"] for holder in holders)
    return int(card["spec"]["capacity"]["memoryMiB"]) - used_mib


def has_room(card: Json, wish: Wish, stay_from: int | None) -> bool:
    """Return whether a pod fits on a card beside its holders, or beside those that have at least this priority."""
    holders = [holder for holder in holders_of(card) if stay_from is None or holder["priority"] >= stay_from]
    if not wish.memory_mib or any(holder["exclusive"] for holder in holders):
        return not holders
    capacity = card["spec"]["capacity"]
    used_mib = sum(holder["memoryMiB"] for holder in holders)
    return bool(used_mib + wish.memory_mib <= capacity["memoryMiB"] and len(holders) < capacity["number"])
