"""Room that is promised to pods for which others have to leave: it counts before it is free.

A promise begins in memory, and goes on as a *claim* that the API server stores with the card. When the share fits, the
pod becomes a holder of it, which ends the claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.share import Claim, Holder, Placement


class Promises:
    """All promises on the cards of a ledger.

    When one changes, `touch` is called with the node's name, and `changed` with the card's line and the pods' UIDs.
    """

    def __init__(
        self,
        entries: Mapping[str, CardEntry],
        touch: Callable[[str], None],
        changed: Callable[[CardEntry, Iterable[str]], None],
    ) -> None:
        self._entries = entries  # card UUID -> its line
        self._touch = touch
        self._changed = changed
        self._claimed: dict[str, set[str]] = {}  # pod UID -> UUIDs of the cards that list a claim of it
        self._placements: dict[str, Placement] = {}  # pod UID -> what was promised in memory

    def make(self, pod_uid: str, placement: Placement) -> None:
        """Count a placement as taken, even if pods are still there. Replaces an earlier one that is in memory alone."""
        self.withdraw(pod_uid)
        self._placements[pod_uid] = placement
        for share in placement.shares:
            entry = self._entries.get(share.uuid)
            if entry is not None:
                entry.promises[pod_uid] = share
                entry.known_room = None
                self._changed(entry, (pod_uid,))
                self._touch(entry.card.node_name)

    def withdraw(self, pod_uid: str) -> None:
        """Forget what is promised to a pod in memory alone. What the API server lists stays. Idempotent."""
        placement = self._placements.pop(pod_uid, None)
        if placement is None:
            return
        for share in placement.shares:
            entry = self._entries.get(share.uuid)
            if entry is not None and pod_uid in entry.promises:
                del entry.promises[pod_uid]
                entry.known_room = None
                self._changed(entry, (pod_uid,))
                self._touch(entry.card.node_name)  # where the card is now: it may have moved since

    def listed(self, entry: CardEntry, claims: Iterable[Claim]) -> None:
        """Take over the claims that the API server lists on a card."""
        uuid, before = entry.card.uuid, entry.claims
        for uid in before:
            self._claimed[uid].discard(uuid)
            if not self._claimed[uid]:
                del self._claimed[uid]
        entry.claims = {claim.holder.pod.uid: claim for claim in claims}
        for uid in entry.claims:
            self._claimed.setdefault(uid, set()).add(uuid)
        self._changed(entry, {*before, *entry.claims})
        entry.known_room = None

    def card_gone(self, entry: CardEntry) -> None:
        """Record that a card is forgotten, with what is promised of it in memory alone."""
        before, entry.promises = entry.promises, {}
        self._changed(entry, before)

    def claims_of(self, pod_uid: str) -> list[tuple[Card, Claim]]:
        """Return the claims of a pod that the API server lists, by the index of the card."""
        entries = [self._entries[uuid] for uuid in self._claimed.get(pod_uid, ())]
        return [(e.card, e.claims[pod_uid]) for e in sorted(entries, key=lambda e: e.card.place)]

    def pod_uids(self) -> list[str]:
        """Return the UIDs of all pods that have a claim at the API server."""
        return list(self._claimed)

    def is_under_way(self, pod_uid: str) -> bool:
        """Return whether something is promised to the pod in memory, whose claims are being written."""
        return pod_uid in self._placements

    def is_made(self, pod_uid: str) -> bool:
        """Return whether something is promised to the pod, stored or not."""
        return pod_uid in self._placements or pod_uid in self._claimed

    def __bool__(self) -> bool:
        return bool(self._placements or self._claimed)


def fullest_node(cards: Sequence[Card], reserved: Sequence[Card]) -> str:
    """Return the node with the most promised, then reserved, shares. Deterministic across replicas."""
    promised, kept = Counter(card.node_name for card in cards), Counter(card.node_name for card in reserved)
    return max(promised, key=lambda name: (promised[name], kept[name], name))


def elsewhere(
    node_name: str, claims: Sequence[tuple[Card, Claim]], reserved: Sequence[tuple[Card, Holder]]
) -> tuple[list[tuple[Card, Claim]], list[tuple[Card, Holder]]]:
    """Return those claims and reserved shares that are on other nodes."""
    return [each for each in claims if each[0].node_name != node_name], [
        each for each in reserved if each[0].node_name != node_name
    ]
