"""A card as a device of a ResourceSlice: what `kubectl` and autoscalers read, and what CEL selectors are asked of.

Source: k8s.io/api/resource/v1 (`Device`), and the limits of its validation. Amounts are spelled as the API server
gives them back, so that what is stored can be compared with what should be.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from gpuledger.formats.resource_claims.names import CORES, MEMORY, ONLY_TAINT, SLOTS
from gpuledger.model.card import ALL_CORES, Card
from gpuledger.model.card_attributes import ATTRIBUTES, OWN_DOMAIN

Json = dict[str, Any]

UNHEALTHY_TAINT: Final = "gpuledger.dev/unhealthy"
NO_SCHEDULE: Final = "NoSchedule"

ATTRIBUTE_BYTES: Final = 64
"""Kubernetes' limit for the value of an attribute."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST_LENGTH = 20


def device_name(uuid: str) -> str:
    """Return the name of a card's device: its UUID in lower case where that can be a name, else made from it."""
    name = uuid.lower()
    if _LABEL.fullmatch(name):
        return name
    return f"gpu-{hashlib.sha256(uuid.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def device_of(card: Card) -> Json:
    """Return the card as an element of a ResourceSlice's `spec.devices`."""
    capacity = card.capacity
    memory, all_slots = binary_quantity(capacity.memory_mib), decimal_quantity(capacity.number)
    all_cores, most_cores = decimal_quantity(capacity.cores), min(capacity.cores, ALL_CORES)
    return {
        "name": device_name(card.uuid),
        "attributes": _attributes(card),
        "capacity": {
            MEMORY: _capacity(memory, memory, ("1Mi", memory, "1Mi") if capacity.memory_mib > 1 else None),
            CORES: _capacity(all_cores, "0", ("0", str(most_cores), "1") if most_cores else None),
            SLOTS: _capacity(all_slots, "1", ("1", all_slots, "1") if capacity.number > 1 else None),
        },
        "allowMultipleAllocations": True,
        "taints": [{"key": key, "effect": NO_SCHEDULE} for key in _taints(card)],
    }


def _attributes(card: Card) -> Json:
    """Return the card's attributes by the names that slices have them under: without a domain if it is ours."""
    found: dict[str, Json] = {}
    for qualified, read in ATTRIBUTES.items():
        value, name = read(card), qualified.removeprefix(f"{OWN_DOMAIN}/")
        if isinstance(value, int):
            found[name] = {"int": value}
        elif value is not None and (name != "uuid" or len(value.encode()) <= ATTRIBUTE_BYTES):
            found[name] = {"string": _cut(value)}  # though not a UUID, whose part would be that of no card
    return dict(sorted(found.items()))


def _taints(card: Card) -> list[str]:
    return [ONLY_TAINT] if card.healthy else [ONLY_TAINT, UNHEALTHY_TAINT]


def _capacity(value: str, default: str, valid: tuple[str, str, str] | None) -> Json:
    """Return an amount, what a claim gets that names none, and what it can name: the least, the most, and the step.

    Without those it can name the default alone: the API server refuses a range that has no room for a step.
    """
    if valid is None:
        return {"value": value, "requestPolicy": {"default": default, "validValues": [default]}}
    least, most, step = valid
    return {
        "value": value,
        "requestPolicy": {"default": default, "validRange": {"min": least, "max": most, "step": step}},
    }


def binary_quantity(mib: int) -> str:
    """Return an amount of MiB as Kubernetes writes it: 40960 is `40Gi`, 40961 is `40961Mi`."""
    if mib == 0:
        return "0"
    suffixes = ["Mi", "Gi", "Ti", "Pi"]
    while mib % 1024 == 0 and len(suffixes) > 1:
        mib //= 1024
        suffixes.pop(0)
    return f"{mib}{suffixes[0]}"


def decimal_quantity(number: int) -> str:
    """Return a whole number as Kubernetes writes it: 2000 is `2k`, 2500 is `2500`."""
    if number == 0:
        return "0"
    suffixes = ["", "k", "M", "G"]
    while number % 1000 == 0 and len(suffixes) > 1:
        number //= 1000
        suffixes.pop(0)
    return f"{number}{suffixes[0]}"


def _cut(text: str) -> str:
    return text.encode()[:ATTRIBUTE_BYTES].decode(errors="ignore")
