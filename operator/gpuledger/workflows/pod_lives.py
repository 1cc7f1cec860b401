"""When bound pods have started, and which of them are leaving: by that one victim is preferred to another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gpuledger.formats.pod import bound_node, is_finished, leaves_at, started_at

Json = dict[str, Any]

OVERDUE_S = 30
"""After this time beyond its end a pod that is being deleted counts as one that refuses to go."""


class PodLives:
    """What is known of the lives of bound pods, in Unix seconds."""

    def __init__(self) -> None:
        self._started: dict[str, int] = {}  # pod UID -> when a kubelet has taken it up
        self._leaves: dict[str, int] = {}  # UID of a pod that is being deleted -> when it must have ended

    def observe(self, pod: Json, gone: bool) -> None:
        """Take in a bound pod."""
        uid = pod["metadata"]["uid"]
        if gone or is_finished(pod) or not bound_node(pod):
            self.forget(uid)
            return
        for times, text in ((self._started, started_at(pod)), (self._leaves, leaves_at(pod))):
            if text:
                times[uid] = unix_s(text)

    def forget(self, pod_uid: str) -> None:
        """Take in that a pod is gone. Idempotent."""
        self._started.pop(pod_uid, None)
        self._leaves.pop(pod_uid, None)

    def known_pods(self) -> set[str]:
        """Return the UIDs of the pods of which something is known."""
        return self._started.keys() | self._leaves.keys()

    def started_s(self, pod_uid: str) -> int:
        """Return when the pod has started, 0 if it has not."""
        return self._started.get(pod_uid, 0)

    def is_leaving(self, pod_uid: str) -> bool:
        """Tell whether the pod is on its way out, and not late."""
        leaves_s = self._leaves.get(pod_uid)
        return leaves_s is not None and datetime.now(UTC).timestamp() < leaves_s + OVERDUE_S


def unix_s(text: str) -> int:
    """Return a time of RFC 3339 in Unix seconds."""
    return int(datetime.fromisoformat(text).timestamp())
