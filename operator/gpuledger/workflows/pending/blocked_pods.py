"""Pods that wait because their namespace has what it may have: no room is of use to them before that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuledger.ledger.quotas import Left, Quotas, is_certain
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.request import Shape
from gpuledger.workflows.pending.waiting_pod import WaitingPod, rank_of

UNCERTAIN_AT_ONCE = 16
"""Pods of a namespace, whose memory depends on their cards, that are tried at once; when these are, others may be."""

GROUPS_AT_ONCE = 16
"""Groups of a namespace's pods, of one shape and for the same nodes, that are tried at once; afterwards others may be.
Each may have all that the quota leaves: nobody knows who of them finds it on cards."""


class BlockedPods:
    """Remembers them by namespace, and which namespaces may have more than when it was looked at last."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._pods: dict[str, dict[str, WaitingPod]] = {}  # namespace -> pod UID -> pod
        self._namespaces: dict[str, str] = {}  # pod UID -> its namespace
        self._limits: dict[str, QuotaLimit] = {}  # pod UID -> what its namespace may not exceed
        self._changed: set[str] = set()
        self._on_trial: list[WaitingPod] = []  # what was released since others were let try last

    def __len__(self) -> int:
        return len(self._namespaces)

    def __iter__(self) -> Iterator[WaitingPod]:
        return (waiting for pods in self._pods.values() for waiting in pods.values())

    def uids(self) -> set[str]:
        """Return their UIDs."""
        return set(self._namespaces)

    def add(self, waiting: WaitingPod, limit: QuotaLimit) -> None:
        """Remember a pod, and which limit its namespace would exceed."""
        uid, namespace = waiting.pod.uid, waiting.pod.namespace
        self._pods.setdefault(namespace, {})[uid] = waiting
        self._namespaces[uid] = namespace
        self._limits[uid] = limit

    def remove(self, pod_uid: str) -> bool:
        """Forget a pod; return whether it was one."""
        namespace = self._namespaces.pop(pod_uid, None)
        if namespace is None:
            return False
        del self._pods[namespace][pod_uid], self._limits[pod_uid]
        if not self._pods[namespace]:
            del self._pods[namespace]
            self._changed.discard(namespace)
        return True

    def find(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod, None if it is not one of them."""
        namespace = self._namespaces.get(pod_uid)
        return self._pods[namespace][pod_uid] if namespace is not None else None

    def limit_of(self, pod_uid: str) -> QuotaLimit | None:
        """Return which limit was in the way of a pod, None if it is not one of them."""
        return self._limits.get(pod_uid)

    def may_have_more(self, namespace: str) -> bool:
        """Record that a namespace may have more than before; return whether a pod of it waits for that."""
        if namespace not in self._pods:
            return False
        self._changed.add(namespace)
        return True

    def released(self) -> list[WaitingPod]:
        """Return those that may get room now, and remember them no more: in their order, as many as a quota allows."""
        found = [each for namespace in self._changed for each in self._released_of(namespace)]
        self._changed.clear()
        for each in found:
            self.remove(each.pod.uid)
        self._on_trial += found
        return found

    def others_may_try(self, waits: Callable[[WaitingPod], bool]) -> bool:
        """Have others try next where those that were released have found no cards and wait; return whether any may.

        Else the first would keep what the quota leaves from those behind them.
        """
        tried, self._on_trial = self._on_trial, []
        self._changed |= {each.pod.namespace for each in tried if each.pod.namespace in self._pods and waits(each)}
        return bool(self._changed)

    def _released_of(self, namespace: str) -> Iterator[WaitingPod]:
        """Yield the first of each of the first groups, as many as the quota allows if no other one gets any.

        What a pod takes is known when it has its cards; until then, it is the least that it may be.
        """
        all_left, uncertain = self._quotas.left(namespace), 0
        of_groups: dict[tuple[Shape, int], Left] = {}
        for waiting in sorted(self._pods[namespace].values(), key=rank_of):
            if uncertain == UNCERTAIN_AT_ONCE:
                return
            group = waiting.request.shape, id(waiting.node_names)
            if group not in of_groups and len(of_groups) == GROUPS_AT_ONCE:
                continue
            left = of_groups.get(group) or all_left.copy()
            if left.takes(waiting.request.shape):
                of_groups[group] = left
                uncertain += not is_certain(waiting.request.shape)
                yield waiting
