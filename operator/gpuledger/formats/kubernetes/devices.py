"""The annotation that tells a pod, and its node's agent, which cards its containers got."""

from __future__ import annotations

import re
from collections.abc import Iterable

import orjson

from gpuledger.formats.custom_resource.resource import MAX_CORES, MAX_MEMORY_MIB, UUID_PATTERN
from gpuledger.model.errors import BadInput
from gpuledger.model.node import AnnotatedCard
from gpuledger.model.share import Share

DEVICES_ANNOTATION = "gpuledger.dev/devices"
"""On a bound pod: JSON {container: [{uuid, memoryMiB, cores}]}, cards in the order of their index."""

MAX_UUID_LENGTH = 253


def devices_annotation(shares: Iterable[Share]) -> str:
    """Return the value of the annotation for a pod's shares, given in the order of the cards' index."""
    devices: dict[str, list[dict[str, object]]] = {}
    for share in shares:
        for container in share.containers:
            devices.setdefault(container.name, []).append(
                {"uuid": share.uuid, "memoryMiB": container.memory_mib, "cores": container.cores}
            )
    return orjson.dumps(devices).decode()


def read_devices(text: str) -> tuple[AnnotatedCard, ...]:
    """Return what the annotation says, in its order. Raises BadInput for everything else that it may hold."""
    try:
        devices = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"annotation {DEVICES_ANNOTATION} is not JSON: {error}") from None
    if not isinstance(devices, dict) or not all(isinstance(cards, list) for cards in devices.values()):
        raise BadInput(f"annotation {DEVICES_ANNOTATION} does not map containers to lists of cards")
    annotated = tuple(_annotated_card(container, card) for container, cards in devices.items() for card in cards)
    if len({(card.container, card.uuid) for card in annotated}) < len(annotated):
        raise BadInput(f"annotation {DEVICES_ANNOTATION} gives a container the same card twice")
    return annotated


def _annotated_card(container: str, card: object) -> AnnotatedCard:
    where = f"annotation {DEVICES_ANNOTATION}, container {container[:63]!r}"
    if not isinstance(card, dict):
        raise BadInput(f"{where}: an entry is no card")
    uuid = checked_uuid(card.get("uuid"), where)
    memory_mib = checked_amount(card.get("memoryMiB"), MAX_MEMORY_MIB, f"{where}, card {uuid}: memoryMiB")
    return AnnotatedCard(
        container, uuid, memory_mib, checked_amount(card.get("cores"), MAX_CORES, f"{where}, card {uuid}: cores")
    )


def checked_uuid(uuid: object, where: str) -> str:
    """Return a UUID that a person or another program wrote. Raises BadInput if it can't be one."""
    if not isinstance(uuid, str) or len(uuid) > MAX_UUID_LENGTH or not re.fullmatch(UUID_PATTERN, uuid):
        raise BadInput(f"{where}: a card has no UUID")
    return uuid


def checked_amount(amount: object, maximum: int, what: str) -> int:
    """Return an amount that a person or another program wrote. Raises BadInput if it is none, or too much."""
    # Not isinstance: a bool is an int, too.
    if type(amount) is not int or not 0 <= amount <= maximum:
        raise BadInput(f"{what} is not between 0 and {maximum}")
    return amount
