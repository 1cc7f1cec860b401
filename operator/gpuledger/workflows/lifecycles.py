"""When bound pods have started and leave, and until when room is kept for those that are promised some.

The wall clock of another machine is another one, and one's own can be set while a pod waits. So a deadline is looked at
once, when this process sees it first; from then on, the time that was left is counted by the loop's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from attrs import define

from gpuledger.formats.kubernetes.pod import (
    LONGEST_GRACE_S,
    bound_node,
    is_finished,
    leaves_at,
    leaves_slowly,
    started_at,
)
from gpuledger.model.clock import BoundedMap, Clock
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import PodSeenBound

FAR_S = 2**40

OVERDUE_S = 30
"""After this time beyond its end a pod that is being deleted counts as one that refuses to go."""


@define(eq=False, slots=False)
class PodLifecycles(Component):
    """Start and end of bound pods, in Unix seconds."""

    def __attrs_post_init__(self) -> None:
        self._started: dict[str, int] = {}  # UID of a bound pod -> when a kubelet has taken it up, 0 if none has
        self._leaves: dict[str, int] = {}  # UID of a pod that is being deleted -> when it must have ended
        self._slow: set[str] = set()  # UIDs of bound pods that need not leave within an hour

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
            self._events.tell(PodSeenBound())

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


DEADLINES_KEPT = 16_384
"""Of which is remembered when they are over. One that is forgotten is looked at once more."""


class Deadlines:
    """The deadlines of shares that are claimed or reserved.

    At first sight at least `least_s` are left, however far another machine's clock is behind, and at most as much as a
    preemption may take.
    """

    def __init__(self, *, clock: Clock, least_s: float = 0.0) -> None:
        self._clock, self._least_s = clock, least_s
        # pod UID and deadline -> when it is over, loop's clock
        self._until_s: BoundedMap[tuple[str, str], float] = BoundedMap(DEADLINES_KEPT)

    def least_left_s(self, holders: Iterable[Holder]) -> float:
        """Return for how long the room of all these shares is still kept."""
        return min(self.seconds_left(holder) for holder in holders if holder.deadline)

    def seconds_left(self, holder: Holder) -> float:
        """Return for how long the room of a claimed or reserved share is still kept, 0 or less if it is over."""
        if not holder.deadline:
            return 0.0
        key, now_s = (holder.pod.uid, holder.deadline), self._clock.now_s()
        until_s = self._until_s.get(key)
        if until_s is None:
            left_s = unix_s(holder.deadline) - self._clock.wall().timestamp()
            until_s = now_s + min(max(left_s, self._least_s), LONGEST_GRACE_S + self._least_s)
            self._until_s.note(key, until_s)
        return until_s - now_s
