"""When bound pods have started, and which of them are leaving: by that one victim is preferred to another."""

from __future__ import annotations

from datetime import datetime

from gpuledger.formats.kubernetes.pod import (
    LONGEST_GRACE_S,
    bound_node,
    is_finished,
    leaves_at,
    leaves_slowly,
    started_at,
)
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.json_object import Json

FAR_S = 2**40

OVERDUE_S = 30
"""After this time beyond its end a pod that is being deleted counts as one that refuses to go."""


class PodLifecycles:
    """Start and end of bound pods, in Unix seconds."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._started: dict[str, int] = {}  # UID of a bound pod -> when a kubelet has taken it up, 0 if none has
        self._leaves: dict[str, int] = {}  # UID of a pod that is being deleted -> when it must have ended
        self._slow: set[str] = set()  # UIDs of bound pods that need not leave within an hour
        self.on_newcomer = Listeners[[]]()
        """Called when a pod is seen bound for the first time."""

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """Observe a bound pod."""
        uid = pod["metadata"]["uid"]
        if is_finished(pod) or not bound_node(pod):
            self.forget_bound(uid, pod)
            return
        is_new, started, leaves = uid not in self._started, started_at(pod), leaves_at(pod)
        self._started[uid] = unix_s(started) if started else 0
        if leaves:
            self._leaves[uid] = unix_s(leaves)
        if leaves_slowly(pod):
            self._slow.add(uid)
        if is_new:
            self.on_newcomer()

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """Record that a pod is gone. Idempotent."""
        self._started.pop(pod_uid, None)
        self._leaves.pop(pod_uid, None)
        self._slow.discard(pod_uid)

    def known_bound(self) -> set[str]:
        """Return the UIDs of the pods of which something is known."""
        return set(self._started)

    def started_s(self, pod_uid: str) -> int:
        """Return when the pod has started, 0 if it has not."""
        return self._started.get(pod_uid, 0)

    def leaves_slowly(self, pod_uid: str) -> bool:
        """Return whether the pod's termination would take longer than a preemptor waits."""
        return pod_uid in self._slow

    def is_bound(self, pod_uid: str) -> bool:
        """Return whether the pod was seen with a node, and not seen to end."""
        return pod_uid in self._started

    def leaves_s(self, pod_uid: str) -> int:
        """Return when a pod that is being deleted must have ended, 0 for others."""
        return self._leaves.get(pod_uid, 0)

    def is_leaving(self, pod_uid: str) -> bool:
        """Return whether the pod is on its way out, and not late."""
        return pod_uid in self._leaves and not self.refuses_to_go(pod_uid)

    def refuses_to_go(self, pod_uid: str) -> bool:
        """Return whether the pod is overdue, or its termination takes longer than a preemptor waits."""
        leaves_s = self._leaves.get(pod_uid)
        if leaves_s is None:
            return False
        now_s = self._clock.wall().timestamp()
        return now_s >= leaves_s + OVERDUE_S or leaves_s > now_s + LONGEST_GRACE_S


def unix_s(text: str) -> int:
    """Return a time of RFC 3339 in Unix seconds. One beyond the year 9999 is far away."""
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return FAR_S
