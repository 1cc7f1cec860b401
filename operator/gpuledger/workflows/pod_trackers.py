"""The interface of all parts that follow pods: the observer passes each pod to all, in the order of wiring.py."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from typing import Protocol

from gpuledger.formats.kubernetes.pod import bound_node, is_finished, scheduler_of
from gpuledger.ledger.hosts import Hosts
from gpuledger.model.json_object import Json
from gpuledger.model.request import HostAmounts


class BoundPodTracker(Protocol):
    """Follows the bound pods of our scheduler profiles."""

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod, which may have ended; `bound_before` says that it was bound when this process began."""

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod is gone, with what the watch has shown last; None: a full list does not have it.

        Idempotent, and harmless for a pod that was never seen.
        """

    def known_bound(self) -> AbstractSet[str]:
        """Return the UIDs of the bound pods of which something is kept."""


class PendingPodTracker(Protocol):
    """Follows the pods of our scheduler profiles that have no node."""

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod waits no more: it is bound or gone. Idempotent."""

    def known_pending(self) -> AbstractSet[str]:
        """Return the UIDs of the pods without a node of which something is kept."""


class HostTracker:
    """Counts what bound pods take of their nodes: ours, and of other schedulers' those that ask for counted cards."""

    def __init__(
        self, hosts: Hosts, read_host: Callable[[Json], HostAmounts], of_all: bool, scheduler_names: Collection[str]
    ) -> None:
        self._hosts = hosts
        self._read_host = read_host
        self._of_all = of_all  # because others' pods can have counted cards
        self._scheduler_names = scheduler_names

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See BoundPodTracker; a pod of any scheduler."""
        is_ours = scheduler_of(pod) in self._scheduler_names
        if not (is_ours or self._of_all):
            return
        request = self._read_host(pod)
        if is_finished(pod) or not (is_ours or request.cards):
            self._hosts.forget(pod["metadata"]["uid"])
        else:
            self._hosts.bound(pod["metadata"]["uid"], bound_node(pod), request)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See BoundPodTracker."""
        self._hosts.forget(pod_uid)

    def known_bound(self) -> set[str]:
        """See BoundPodTracker."""
        return self._hosts.pod_uids()
