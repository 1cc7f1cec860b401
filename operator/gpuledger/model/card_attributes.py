"""A card's attributes: what of it ResourceSlices publish by name, and ResourceClaims compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from gpuledger.model.card import Card

OWN_DOMAIN: Final = "gpu.gpuledger.dev"
"""Of the names that only our cards have."""

STANDARD_DOMAIN: Final = "resource.kubernetes.io"
"""Of the names that mean the same for the devices of all drivers."""

Value = str | int | bool
"""Of an attribute. All values of one attribute are of one type."""

UNNAMED_MODE: Final = "none"
"""`isolation` of a card whose node says nothing of how it keeps shares apart."""


def _numa_node(card: Card) -> int | None:
    """Return the card's NUMA node; Linux says -1 where it does not know."""
    return None if card.numa_node is None or card.numa_node < 0 else card.numa_node


ATTRIBUTES: Final[Mapping[str, Callable[[Card], Value | None]]] = MappingProxyType(
    {
        f"{OWN_DOMAIN}/uuid": lambda card: card.uuid,
        f"{OWN_DOMAIN}/model": lambda card: card.model or None,
        f"{OWN_DOMAIN}/vendor": lambda card: card.vendor or None,
        f"{OWN_DOMAIN}/index": lambda card: card.index,
        f"{OWN_DOMAIN}/isolation": lambda card: card.mode or UNNAMED_MODE,
        f"{OWN_DOMAIN}/numaNode": _numa_node,
        f"{STANDARD_DOMAIN}/pcieRoot": lambda card: card.pcie_root or None,
        f"{STANDARD_DOMAIN}/numaNode": _numa_node,
    }
)
"""Qualified name -> what a card has under it; None where it is not known.

Source: `resource.kubernetes.io/pcieRoot` and `numaNode` are Kubernetes' standard attributes of devices.
"""


def attribute_of(card: Card, name: str) -> Value | None:
    """Return a card's attribute by its qualified name, None if it has none of this name."""
    read = ATTRIBUTES.get(name)
    return None if read is None else read(card)
