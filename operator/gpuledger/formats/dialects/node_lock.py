"""HAMi's lock of a node: an annotation, `TIME,NAMESPACE,POD`, or only the time in old versions.

Source: HAMi 2.10, `pkg/util/nodelock/nodelock.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuledger.model.share import Pod

LOCK_ANNOTATION = "hami.io/mutex.lock"


@dataclass(frozen=True, slots=True)
class NodeLock:
    """The pod that a node is locked for, and since when; None if the text does not say."""

    since: datetime | None
    namespace: str = ""
    name: str = ""

    def is_of(self, pod: Pod) -> bool:
        """Tell whether the lock names this pod."""
        return (self.namespace, self.name) == (pod.namespace, pod.name)

    def age_s(self, now: datetime) -> float:
        """Return how old the lock is; one without a time counts as very old."""
        return (now - self.since).total_seconds() if self.since else float("inf")


def lock_text(pod: Pod, now: datetime) -> str:
    """Return the lock for a pod."""
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ},{pod.namespace},{pod.name}"


def read_lock(node: Mapping[str, Any]) -> NodeLock | None:
    """Return the lock of a node, None if there is none. An unreadable text is a lock without a holder or a time."""
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(LOCK_ANNOTATION)
    if text is None:
        return None
    time, *owner = str(text).split(",")
    namespace, name = owner if len(owner) == 2 else ("", "")
    try:
        since = datetime.fromisoformat(time)
    except ValueError:
        return NodeLock(None, namespace, name)
    return NodeLock(since if since.tzinfo else since.replace(tzinfo=UTC), namespace, name)
