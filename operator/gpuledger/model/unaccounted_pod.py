"""A pod whose node has given it cards, as far as anybody can tell, without the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.model.node_offer import Dialect
from gpuledger.model.share import Pod


@dataclass(frozen=True, slots=True)
class Counted:
    """How many cards one container counts under one name: what the kubelet asks of the device plugin that serves it."""

    container: str
    resource: str
    vendor: str
    cards: int


@dataclass(frozen=True, slots=True)
class UnaccountedPod:
    """A bound pod that has, or is about to get, cards from its node's device plugin, and lacks shares of them."""

    pod: Pod
    node_name: str
    counted: tuple[Counted, ...]
    """Only what is more than zero."""
    assigned: Mapping[Dialect, frozenset[str]] = field(default_factory=dict)
    """Whose device plugin -> UUIDs of the cards that this plugin was told to give out, if it names so many."""
