"""Who holds what at the API server, by pod."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.share import Holder

NO_PRIORITY = 2**31


class HoldersByPod:
    """Follows the holders of all lines of the ledger."""

    def __init__(self, entries: Mapping[str, CardEntry]) -> None:
        self._entries = entries
        self._cards: dict[str, set[str]] = {}  # pod UID -> UUIDs of the cards it is a holder of
        self._lowest: int | None = None  # the lowest priority of a holder, if none has changed since it was looked for

    def replaced(self, entry: CardEntry, before: Collection[str]) -> None:
        """Note that a card has other holders than those of these UIDs."""
        uuid = entry.card.uuid
        for uid in before:
            self._cards[uid].discard(uuid)
            if not self._cards[uid]:
                del self._cards[uid]
        for uid in entry.holders:
            self._cards.setdefault(uid, set()).add(uuid)
        self._lowest = None

    def of(self, pod_uid: str) -> list[tuple[Card, Holder]]:
        """Return the cards that a pod holds, by index."""
        entries = [self._entries[uuid] for uuid in self._cards.get(pod_uid, ())]
        return [(e.card, e.holders[pod_uid]) for e in sorted(entries, key=lambda e: e.card.place)]

    def uids(self) -> list[str]:
        """Return the UIDs of all pods that hold something."""
        return list(self._cards)

    def lowest_priority(self) -> int:
        """Return the priority of the least important holder; a very high one if there is none."""
        if self._lowest is None:
            priorities = (holder.pod.priority for entry in self._entries.values() for holder in entry.holders.values())
            self._lowest = min(priorities, default=NO_PRIORITY)
        return self._lowest
