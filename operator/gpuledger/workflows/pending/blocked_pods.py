"""Pods that wait because their namespace has what it may have: no room is of use to them before that changes."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.ledger.quotas import Quotas, is_certain
from gpuledger.model.quota import QuotaLimit
from gpuledger.workflows.pending.waiting_pod import WaitingPod, rank_of

UNCERTAIN_AT_ONCE = 16
"""Pods of a namespace, whose memory depends on their cards, that are tried at once; when one gets room, others are."""


class BlockedPods:
    """Remembers them by namespace, and which namespaces may have more than when it was looked at last."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._pods: dict[str, dict[str, WaitingPod]] = {}  # namespace -> pod UID -> pod
        self._namespaces: dict[str, str] = {}  # pod UID -> its namespace
        self._limits: dict[str, QuotaLimit] = {}  # pod UID -> what its namespace may not exceed
        self._changed: set[str] = set()

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
        """Forget a pod; tell whether it was one."""
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
        """Note that a namespace may have more than before; tell whether a pod of it waits for that."""
        if namespace not in self._pods:
            return False
        self._changed.add(namespace)
        return True

    def released(self) -> list[WaitingPod]:
        """Return those that may get room now, and remember them no more: in their order, as many as the quota allows.

        What a pod takes is known when it has its cards; until then, it is the least that it may be.
        """
        found: list[WaitingPod] = []
        for namespace in self._changed:
            left, uncertain = self._quotas.left(namespace), 0
            for waiting in sorted(self._pods[namespace].values(), key=rank_of):
                if uncertain < UNCERTAIN_AT_ONCE and left.takes(waiting.request.shape):
                    found.append(waiting)
                    uncertain += not is_certain(waiting.request.shape)
        self._changed.clear()
        for each in found:
            self.remove(each.pod.uid)
        return found
