"""The interface by which the workflows post Events."""

from __future__ import annotations

from typing import Protocol

from gpuledger.model.refusal import EventReason
from gpuledger.model.share import Pod


class EventRecorder(Protocol):
    """Posts Events in the background; none of these calls fails."""

    def post_node_event(self, node_name: str, sentence: str) -> None:
        """Show what is wrong with a node's inventory."""

    def post_pod_event(self, pod: Pod, warning: bool, reason: EventReason, sentence: str) -> None:
        """Show what has become of a pod's card."""

    def post_pod_event_once(self, pod: Pod, reason: EventReason, sentence: str, key: str) -> None:
        """Warn about a pod, unless it was warned under this key before."""
