"""What is found out about a card and a node, as values."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.amounts import NOTHING, Amounts
from gpuledger.model.card import Card
from gpuledger.model.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Whether a card takes one container as it is now; if not, the first reason why."""

    card: Card
    reason: Reason | None
    """None if it takes the container."""
    text: str
    short: Amounts = NOTHING
    """How much more would have to be free, or there at all; never negative."""
    by: tuple[str, ...] = ()
    """UIDs of the pods that have what is missing, who has most first."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Whether a node takes a pod as it is now; if not, why, and what would change that."""

    name: str
    refusal: Refusal | None
    """None if the pod fits."""
    container: int
    """Position in the pod's request of the container that the cards were compared with."""
    cards: tuple[CardVerdict, ...]
    """By index."""
    remedy: str
    """What would make the pod fit; empty if it does."""


def amounts_text(amounts: Amounts) -> str:
    """Return amounts as people read them, without those that are zero: "2,000 MiB, 20 % of cores, 1 slot"."""
    slots = f"{amounts.number:,} slot{'s' if amounts.number > 1 else ''}"
    parts = (
        f"{amounts.memory_mib:,} MiB" if amounts.memory_mib else "",
        f"{amounts.cores:,} % of cores" if amounts.cores else "",
        slots if amounts.number else "",
    )
    return ", ".join(part for part in parts if part)
