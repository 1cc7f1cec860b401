"""A ResourceClaim of our driver's cards as it is stored: what an audit compares with the ledger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A claim, and what its status gives."""

    namespace: str
    name: str
    uid: str
    node_name: str = ""
    """Where its cards are; empty if none of ours are allocated to it."""
    cards: frozenset[tuple[str, str]] = frozenset()
    """Request, or `request/alternative`, and UUID of a card; the device's name of one that no card has."""
    consumers: tuple[str, ...] = ()
    """UIDs of the pods that may use it."""
    consumer_names: tuple[str, ...] = ()
    """Their names, in the same order."""
    users: tuple[str, ...] = ()
    """UIDs of those of them that are there, and have not ended."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
