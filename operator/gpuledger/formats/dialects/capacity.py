"""Cards of which a node tells only how many it has, in the amounts of its `status.capacity`.

Device plugins report such amounts to the kubelet, or patch them into the Node by themselves: here that is the same. The
cards' names are those that HAMi gives them, so that they are unique in the cluster, and the same after a restart.
Source: HAMi 2.10, GetNodeDevices in pkg/device/{cambricon,mthreads,metax,kunlun,enflame,awsneuron}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gpuledger.formats.dialects.vocabulary import NodeCapacity, NodeRegister
from gpuledger.formats.quantity import whole_number
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput

MAX_CARDS = 1024
"""Cards that a node may list: more is no node, and would cost the operator its time."""


def capacity_text(status: Mapping[str, Any], capacity: NodeCapacity) -> str | None:
    """Return what a Node's status says of these cards, as a text that is the same for the same amounts.

    None if it has none of them.
    """
    given, left = status.get("capacity") or {}, status.get("allocatable") or {}
    cards = given.get(capacity.cards)
    if cards is None or _is_zero(cards):
        return None
    told = {"cards": cards, "memory": given.get(capacity.memory), "allocatable": left.get(capacity.cards)}
    return orjson.dumps({name: str(value) for name, value in told.items() if value is not None}).decode()


def capacity_cards(text: str, register: NodeRegister, node_name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the cards behind such a text, and a sentence on what it leaves open. Raises BadInput."""
    capacity = register.capacity
    if capacity is None:
        raise BadInput("it has no amounts")
    told = orjson.loads(text)
    units = _amount(told, "cards", capacity.cards)
    cards = units // capacity.per_card
    if cards > MAX_CARDS:
        raise BadInput(f"it stands for more than {MAX_CARDS} cards")
    memory_mib = register.memory_mib
    if capacity.memory:
        memory_mib = _amount(told, "memory", capacity.memory) * register.memory_unit_mib * capacity.per_card // units
    if not memory_mib:
        raise BadInput(f"the node says nothing of {capacity.memory}, the memory of these cards")
    found = [
        {
            "uuid": f"{node_name}-{register.id}-{index}",
            "index": index,
            "vendor": register.vendor,
            "model": register.model,
            "memoryMiB": memory_mib,
            "cores": ALL_CORES,
            "number": capacity.number,
            "numaNode": index * capacity.numa_nodes // cards if capacity.numa_nodes else None,
        }
        for index in range(cards)
    ]
    return found, list(_left_open(told, units, capacity))


def _left_open(told: Mapping[str, str], units: int, capacity: NodeCapacity) -> list[str]:
    problems = []
    if units % capacity.per_card:
        problems.append(f"{units} is no multiple of {capacity.per_card}, which a card is; the rest is left out")
    usable = _amount(told, "allocatable", capacity.cards) if "allocatable" in told else 0
    if 0 < usable < units:
        problems.append(
            f"only {usable} of {units} are allocatable: some card is at fault, and the node does not say which, "
            "so its cards stay open; drain the node, or cordon the card"
        )
    return problems


def _amount(told: Mapping[str, str], key: str, resource: str) -> int:
    try:
        return whole_number(told.get(key, "0"))
    except BadInput as error:
        raise BadInput(f"{resource}: {error}") from None


def _is_zero(quantity: object) -> bool:
    try:
        return whole_number(quantity) == 0
    except BadInput:
        return False
