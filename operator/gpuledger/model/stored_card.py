"""A card as the API server stores it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.card import Card
from gpuledger.model.share import Holder


@dataclass(frozen=True, slots=True)
class StoredCard:
    """A GPUAllocation as the API server stores it. `holders` is None before the first status write."""

    card: Card
    resource_version: int
    holders: tuple[Holder, ...] | None
    phase: str = ""
    reason: str = ""
