"""The interface by which the workflows post Events."""

from __future__ import annotations

from typing import Protocol

from gpuledger.model.share import Pod


class EventRecorder(Protocol):
    """Posts Events in the background; none of these calls fails."""

    def tell_node(self, node_name: str, sentence: str) -> None:
        """Show what is wrong with a node's inventory."""

    def tell_pod(self, pod: Pod, warning: bool, reason: str, sentence: str) -> None:
        """Show what has become of a pod's card."""

    def tell_pod_once(self, pod: Pod, reason: str, sentence: str, key: str) -> None:
        """Warn about a pod, unless it was warned under this key before."""
