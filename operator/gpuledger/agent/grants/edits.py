"""The container runtime's edits for cards: devices and drivers, names of the cards, limits. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.formats.kubernetes.node import NVIDIA
from gpuledger.formats.runtime.cdi import VendorDevices, joined
from gpuledger.model.json_object import Json

VENDOR_KINDS = {NVIDIA: "nvidia.com/gpu"}
"""Vendor -> kind of the CDI devices that its own tools write."""

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""By which NVIDIA's container runtime learns what to bring into a container, where no CDI file says it."""

NO_CARDS = "void"
"""A value of it: bring none, whatever the image asks for."""


def container_edits(cards: Sequence[GrantedCard], vendor: VendorDevices, limits: Json) -> Json:
    """Return all edits for a container with these cards, in the order of their index."""
    return joined([_device_edits(cards, vendor), {"env": _names(cards)}, limits])


def _device_edits(cards: Sequence[GrantedCard], vendor: VendorDevices) -> Json:
    with_tools = [card for card in cards if card.vendor in VENDOR_KINDS]
    found = [vendor.edits(VENDOR_KINDS[card.vendor], _vendor_names(card)) for card in with_tools]
    edits = [each for each in found if each is not None]
    if len(edits) == len(found):
        # Said first, so that the vendor's own word goes before: an image that asks for all cards gets no others.
        return joined([{"env": [f"{VISIBLE}={NO_CARDS}"]}, *edits]) if edits else {}
    return {"env": [f"{VISIBLE}={','.join(card.uuid for card in with_tools if card.vendor == NVIDIA)}"]}


def _vendor_names(card: GrantedCard) -> list[str]:
    """Return what NVIDIA's toolkit calls a card: its UUID, or its number, by its configuration."""
    return [card.uuid] if card.mode == "mig" else [card.uuid, str(card.index)]


def _names(cards: Sequence[GrantedCard]) -> list[str]:
    return [
        f"GPULEDGER_UUIDS={','.join(card.uuid for card in cards)}",
        f"GPULEDGER_MEMORY_MIB={','.join(str(card.memory_mib) for card in cards)}",
        f"GPULEDGER_CORES={','.join(str(card.cores) for card in cards)}",
    ]
