"""Reservations in memory beside the holders of cards: holds, promised room, and CPU and memory of nodes.

A *hold* is kept for a pod until it is bound. Promised room counts before it is free: others have to leave for it. A
promise begins in memory, and goes on as a *claim* that the API server stores with the card. When the share fits, the
pod becomes a holder of it, which ends the claim.

CPU and memory of a node are its allocatable amounts, less the requests of our scheduler's pods: a help for preferences,
and no authority: pods of other schedulers are not seen here. Nodes whose cards are not in the ledger, because another
device plugin only counts them, are here with their number; for these, pods of all schedulers count, and the kubelet is
the authority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import Card
from gpuledger.model.request import NO_HOST, HostAmounts
from gpuledger.model.share import Claim, Holder, Placement, Share


@dataclass(frozen=True, slots=True)
class Hold:
    """A placement kept in memory until `deadline_s`, a time of the caller's clock in seconds."""

    pod_uid: str
    placement: Placement
    deadline_s: float
    spares: tuple[Placement, ...] = ()
    """The same on other nodes, the preferred first, while one of them can still be chosen instead."""
    is_early: bool = False
    """Whether kube-scheduler has not asked for the pod yet: then all of it is spare."""

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All that is kept, the preferred first."""
        return (self.placement, *self.spares)

    @property
    def has_spares(self) -> bool:
        """Whether others get some of it where they need it."""
        return self.is_early or bool(self.spares)

    def is_spare(self, uuid: str) -> bool:
        """Return whether another pod may take this card's share."""
        return self.is_early or all(share.uuid != uuid for share in self.placement.shares)


def shares_on_hold(uuid: str, holds: Iterable[Hold]) -> dict[str, Share]:
    """Return the held shares of a card, by the UIDs of the pods."""
    return {
        hold.pod_uid: share
        for hold in holds
        for placement in hold.placements
        for share in placement.shares
        if share.uuid == uuid
    }


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
        """Forget a pod's promise in memory. Its claims at the API server stay. Idempotent."""
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


@dataclass(slots=True)
class _Use:
    node_name: str
    amounts: HostAmounts
    bound: bool


class Hosts:
    """The amounts that pods take of each node. `touch` is called with the name of a node that has changed."""

    def __init__(self, touch: Callable[[str], None]) -> None:
        self._touch = touch
        self._capacity: dict[str, HostAmounts] = {}  # node name -> what pods can have there
        self._used: dict[str, HostAmounts] = {}  # node name -> the sum of its pods
        self._uses: dict[str, _Use] = {}  # pod UID -> what it asks for, and where
        self._promised: dict[str, _Use] = {}  # pod UID -> the same where pods are evicted for it

    def set_capacity(self, node_name: str, capacity: HostAmounts | None) -> None:
        """Note what a node offers to pods, None if that is not known or the node is gone."""
        if capacity != self._capacity.get(node_name):
            if capacity is None:
                del self._capacity[node_name]
            else:
                self._capacity[node_name] = capacity
            self._touch(node_name)

    def free(self, node_name: str) -> HostAmounts | None:
        """Return the free amounts of a node, None if they are unknown."""
        capacity = self._capacity.get(node_name)
        return None if capacity is None else capacity - self._used.get(node_name, NO_HOST)

    def counts_cards(self, node_name: str) -> bool:
        """Return whether a node has cards that only its own device plugin knows, which counts them."""
        capacity = self._capacity.get(node_name)
        return capacity is not None and capacity.cards > 0

    def has_cards(self, node_name: str, pod_uid: str, cards: int) -> bool:
        """Return whether so many of them are left for a pod, apart from those that count for it already."""
        free, use = self.free(node_name), self._uses.get(pod_uid)
        own = use.amounts.cards if use is not None and use.node_name == node_name else 0
        return free is not None and self.counts_cards(node_name) and cards <= free.cards + own

    def of_pod(self, pod_uid: str) -> HostAmounts:
        """Return the amounts that a pod takes of its node, as far as they are known."""
        use = self._uses.get(pod_uid)
        return use.amounts if use else NO_HOST

    def node_names(self) -> AbstractSet[str]:
        """Return the nodes whose CPU and memory are known."""
        return self._capacity.keys()

    def pod_uids(self) -> set[str]:
        """Return the UIDs of the bound pods that count."""
        return {uid for uid, use in self._uses.items() if use.bound}

    def hold(self, pod_uid: str, node_name: str, amounts: HostAmounts) -> None:
        """Count a pod that will be bound to a node, in place of its earlier entry."""
        self._count(pod_uid, _Use(node_name, amounts, bound=False))

    def give_up(self, pod_uid: str) -> None:
        """Count a pod only where pods are evicted for it, if anywhere; not if it is bound."""
        use, promised = self._uses.get(pod_uid), self._promised.get(pod_uid)
        if use is None or use.bound:
            return
        if promised is None:
            self._discount(pod_uid)
        else:
            self._count(pod_uid, promised)

    def promise(self, pod_uid: str, node_name: str, amounts: HostAmounts) -> None:
        """Count a pod on the node where pods are evicted for it, until `withdraw`, unless it is on hold elsewhere."""
        self._promised[pod_uid] = _Use(node_name, amounts, bound=False)
        self._count(pod_uid, self._promised[pod_uid])

    def withdraw(self, pod_uid: str) -> None:
        """Record that no pods are evicted for a pod any more. Idempotent."""
        promised = self._promised.pop(pod_uid, None)
        if promised is not None and self._uses.get(pod_uid) is promised:
            self._discount(pod_uid)

    def bound(self, pod_uid: str, node_name: str, amounts: HostAmounts) -> None:
        """Count a bound pod until it is gone. Idempotent."""
        self._promised.pop(pod_uid, None)
        self._count(pod_uid, _Use(node_name, amounts, bound=True))

    def forget(self, pod_uid: str) -> None:
        """Count a pod no more. Idempotent."""
        self._promised.pop(pod_uid, None)
        self._discount(pod_uid)

    def _discount(self, pod_uid: str) -> None:
        use = self._uses.pop(pod_uid, None)
        if use is not None and use.amounts != NO_HOST:
            left = self._used[use.node_name] - use.amounts
            if left == NO_HOST:
                del self._used[use.node_name]
            else:
                self._used[use.node_name] = left
            self._touch(use.node_name)

    def _count(self, pod_uid: str, use: _Use) -> None:
        before = self._uses.get(pod_uid)
        if before is None or (before.node_name, before.amounts) != (use.node_name, use.amounts):
            self._discount(pod_uid)
            if use.amounts != NO_HOST:
                self._used[use.node_name] = self._used.get(use.node_name, NO_HOST) + use.amounts
                self._touch(use.node_name)
        self._uses[pod_uid] = use
