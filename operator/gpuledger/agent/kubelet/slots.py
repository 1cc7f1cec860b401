"""The slots that the kubelet counts: without names, as many as all cards of the node have together.

A slot belongs to no card, so it can't be unhealthy for one: the ledger hears of a broken card. Slots are withdrawn
together, when no card can be used at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from gpuledger.model.card import Card


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """The slots of a node: those of each vendor's cards, which pods ask for by other names."""

    of_vendor: Mapping[str, VendorSlots]

    def offer(self, cards: Iterable[Card]) -> None:
        """Offer as many as these cards have."""
        counts = Counter[str]()
        for card in cards:
            counts[card.vendor] += card.capacity.number
        for vendor, slots in self.of_vendor.items():
            slots.offer(counts[vendor])

    def withdraw(self) -> None:
        """Offer none."""
        for slots in self.of_vendor.values():
            slots.withdraw()


class VendorSlots:
    """How many slots there are, and whether they can be used; tells everybody who listens when that changes."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.count = 0
        self.usable = False

    def offer(self, count: int) -> None:
        """Offer so many."""
        self._set(count, True)

    def withdraw(self) -> None:
        """Offer none of them; how many there are is still shown."""
        self._set(self.count, False)

    def names(self) -> list[str]:
        """Return the slots' names: the same number always gives the same ones."""
        return [f"slot-{number}" for number in range(self.count)]

    async def states(self) -> AsyncIterator[tuple[list[str], bool]]:
        """Yield names, and whether they can be used: now, and whenever that changes."""
        while True:
            changed = self._changed
            yield self.names(), self.usable
            await changed.wait()

    def _set(self, count: int, usable: bool) -> None:
        if (count, usable) != (self.count, self.usable):
            self.count, self.usable = count, usable
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
