"""CPU and memory of nodes: the allocatable amounts, less the requests of our scheduler's pods.

A help for preferences, and no authority: pods of other schedulers are not seen here. Nodes whose cards are not in the
ledger, because another device plugin only counts them, are here with their number; for these, pods of all schedulers
count, and the kubelet is the authority.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpuledger.model.gang import SeatKey
from gpuledger.model.request import NO_HOST, HostAmounts


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
        self._uses: dict[SeatKey, _Use] = {}  # pod UID, or a pod that is to come -> what it asks for, and where
        self._promised: dict[str, _Use] = {}  # pod UID -> the same where pods are evicted for it
        self._replicated: set[str] = set()  # nodes whose own device plugins give out each card several times

    def set_capacity(self, node_name: str, capacity: HostAmounts | None) -> None:
        """Note what a node offers to pods, None if that is not known or the node is gone."""
        if capacity != self._capacity.get(node_name):
            if capacity is None:
                del self._capacity[node_name]
            else:
                self._capacity[node_name] = capacity
            self._touch(node_name)

    def set_replicated(self, node_name: str, replicated: bool) -> None:
        """Note whether a node's own device plugin gives out each card several times, so that pods of ours get none."""
        if replicated != self.is_replicated(node_name):
            (self._replicated.add if replicated else self._replicated.discard)(node_name)
            self._touch(node_name)

    def is_replicated(self, node_name: str) -> bool:
        """Return the same."""
        return node_name in self._replicated

    def free(self, node_name: str) -> HostAmounts | None:
        """Return the free amounts of a node, None if they are unknown."""
        capacity = self._capacity.get(node_name)
        return None if capacity is None else capacity - self._used.get(node_name, NO_HOST)

    def capacity(self, node_name: str) -> HostAmounts | None:
        """Return what pods can have of a node in sum, None if that is not known."""
        return self._capacity.get(node_name)

    def counts_cards(self, node_name: str) -> bool:
        """Return whether a node has cards that only its own device plugin knows, which counts them."""
        capacity = self._capacity.get(node_name)
        return capacity is not None and capacity.cards > 0

    def has_cards(self, node_name: str, key: SeatKey, cards: int) -> bool:
        """Return whether so many of them are left for a pod, apart from those that count for it already."""
        free, use = self.free(node_name), self._uses.get(key)
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
        return {uid for uid, use in self._uses.items() if use.bound and isinstance(uid, str)}

    def take(self, key: SeatKey, node_name: str, amounts: HostAmounts) -> None:
        """Count a pod that will be bound to a node, in place of its earlier entry."""
        self._count(key, _Use(node_name, amounts, bound=False))

    def give_up(self, key: SeatKey) -> None:
        """Count a pod only where pods are evicted for it, if anywhere; not if it is bound."""
        use, promised = self._uses.get(key), self._promised.get(key) if isinstance(key, str) else None
        if use is None or use.bound:
            return
        if promised is None:
            self._discount(key)
        else:
            self._count(key, promised)

    def promise(self, pod_uid: str, node_name: str, amounts: HostAmounts) -> None:
        """Count a pod on the node where pods are evicted for it, until `withdraw`, unless it has a seat elsewhere."""
        self._promised[pod_uid] = _Use(node_name, amounts, bound=False)
        self._count(pod_uid, self._promised[pod_uid])

    def has_promise(self, pod_uid: str) -> bool:
        """Return whether a pod counts where pods are evicted for it."""
        return pod_uid in self._promised

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

    def _discount(self, key: SeatKey) -> None:
        use = self._uses.pop(key, None)
        if use is not None and use.amounts != NO_HOST:
            left = self._used[use.node_name] - use.amounts
            if left == NO_HOST:
                del self._used[use.node_name]
            else:
                self._used[use.node_name] = left
            self._touch(use.node_name)

    def _count(self, key: SeatKey, use: _Use) -> None:
        before = self._uses.get(key)
        if before is None or (before.node_name, before.amounts) != (use.node_name, use.amounts):
            self._discount(key)
            if use.amounts != NO_HOST:
                self._used[use.node_name] = self._used.get(use.node_name, NO_HOST) + use.amounts
                self._touch(use.node_name)
        self._uses[key] = use


class MarkedNodes:
    """Nodes of which one thing is true at the moment. `touch` is called with the name of one that has changed."""

    def __init__(self, touch: Callable[[str], None]) -> None:
        self._touch = touch
        self._names: set[str] = set()

    def __contains__(self, node_name: object) -> bool:
        return node_name in self._names

    def note(self, node_name: str, is_marked: bool) -> None:
        """Note whether a node is one of them."""
        if is_marked != (node_name in self):
            (self._names.add if is_marked else self._names.discard)(node_name)
            self._touch(node_name)
