"""Which pods say that they are of which workload.

Users can write what is read here, and only about workloads of their own namespace. So it decides no more than who gets
what is reserved for the workload, and which pods leave when Kueue evicts it.
"""

from __future__ import annotations

from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.formats.kubernetes.workload import WorkloadName, queue_of, workload_of
from gpuledger.model.json_object import Json


class WorkloadPods:
    """Follows pods, with a node or without."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[WorkloadName, str]] = {}  # pod UID -> its workload, and which of its sets of pods
        self._pods: dict[WorkloadName, dict[str, str]] = {}  # workload -> pod UID -> set of pods
        self._bound: set[str] = set()
        self._queues: dict[str, str] = {}  # UID of a pod without a node -> the queue that it is in

    def of(self, pod_uid: str) -> tuple[WorkloadName, str] | None:
        """Return a pod's workload and set of pods, None if it has none."""
        return self._of.get(pod_uid)

    def is_pending(self, pod_uid: str) -> bool:
        """Return whether a pod is of a workload, and has no node."""
        return pod_uid in self._of and pod_uid not in self._bound

    def queue_of(self, pod_uid: str) -> str:
        """Return which queue a pod without a node is in, for people; empty if it is in none."""
        return self._queues.get(pod_uid, "")

    def pods(self, name: WorkloadName) -> dict[str, str]:
        """Return the pods of a workload, by UID, each with its set of pods."""
        return self._pods.get(name, {})

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See BoundPodTracker."""
        uid = str(pod["metadata"]["uid"])
        self._queues.pop(uid, None)
        if is_finished(pod):
            self.forget_bound(uid, pod)
        elif self._note(pod):
            self._bound.add(uid)

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See BoundPodTracker."""
        self._bound.discard(pod_uid)
        self._forget(pod_uid)

    def known_bound(self) -> set[str]:
        """See BoundPodTracker."""
        return self._bound

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker."""
        self._note(pod)
        if queue := queue_of(pod):
            self._queues[str(pod["metadata"]["uid"])] = queue

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._queues.pop(pod_uid, None)
        if pod_uid not in self._bound:
            self._forget(pod_uid)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return (self._of.keys() - self._bound) | self._queues.keys()

    def _note(self, pod: Json) -> bool:
        uid, named = str(pod["metadata"]["uid"]), workload_of(pod)
        if named == self._of.get(uid):
            return named is not None
        self._forget(uid)
        if named is None:
            return False
        self._of[uid] = named
        self._pods.setdefault(named[0], {})[uid] = named[1]
        return True

    def _forget(self, pod_uid: str) -> None:
        named = self._of.pop(pod_uid, None)
        if named is None:
            return
        pods = self._pods[named[0]]
        del pods[pod_uid]
        if not pods:
            del self._pods[named[0]]
