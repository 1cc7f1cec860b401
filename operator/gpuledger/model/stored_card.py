"""A card as the API server stores it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.card import Amounts, Card
from gpuledger.model.share import Claim, Holder, Pod


@dataclass(frozen=True, slots=True)
class Misfit:
    """A share that a bound pod was found with and that does not fit on the card. Shown there, never counted."""

    pod: Pod
    amounts: Amounts
    why: str


@dataclass(frozen=True, slots=True)
class StoredCard:
    """A GPUAllocation as the API server stores it. `holders` is None before the first status write."""

    card: Card
    resource_version: int
    holders: tuple[Holder, ...] | None
    phase: str = ""
    reason: str = ""
    misfits: tuple[Misfit, ...] = ()
    """Its `status.conflicts`."""
    claims: tuple[Claim, ...] = ()
    """Its `status.claims`."""
    cordoned: str = ""
    """Why a person wants no new pods on the card; empty if it may take some."""
