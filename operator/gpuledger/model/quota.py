"""What the pods of a namespace may have together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from gpuledger.model.amounts import Amounts
from gpuledger.model.card import Card


class Counted(StrEnum):
    """What a limit counts, of every share: the amount's name."""

    MEMORY = "memory_mib"
    CORES = "cores"
    """Percent of one card."""
    SLOTS = "number"
    """A whole card is one, and so is each part of one."""

    def of(self, amounts: Amounts) -> int:
        """Return how much that is of a share's amounts."""
        found: int = getattr(amounts, self)
        return found


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """A limit, as a ResourceQuota states it."""

    quota: str
    """The ResourceQuota's name."""
    key: str
    """The key of its `spec.hard`."""
    counted: Counted
    most: int
    vendor: str
    model: str = ""
    """Only shares of cards whose model has this in its name, compared without case and with dashes for spaces; empty:
    of all of the vendor."""
    unit: int = 1
    """How many MiB, percent or slots one of the key's numbers is."""

    def as_stated(self, amount: int) -> int:
        """Return an amount in the key's own numbers, rounded up."""
        return -(-amount // self.unit)

    def counts(self, vendor: str, model: str) -> bool:
        """Tell whether shares of cards of this kind count."""
        return vendor == self.vendor and (not self.model or dashed(self.model) in dashed(model))


Kind = tuple[str, str]
"""A card's vendor and model."""


def kind_of(card: Card) -> Kind:
    """Return a card's kind."""
    return card.vendor, card.model


@lru_cache(1_024)
def dashed(model: str) -> str:
    """Return a model's name in small letters, with a dash for whatever a key of a ResourceQuota can't have."""
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in model.lower())
