"""A sentence about a node as an Event, where `kubectl describe node` finds it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

LONGEST = 1024
"""Kubernetes' limit for an event's message."""


def node_event(node_name: str, reason: str, sentence: str, component: str, now: datetime) -> dict[str, Any]:
    """Return the Event to create, in the default namespace: a Node has none of its own."""
    at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "gpuledger-", "namespace": "default"},
        # The kubelet's convention: a Node's name stands for its UID.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name},
        "type": "Warning",
        "reason": reason,
        "message": sentence[:LONGEST],
        "source": {"component": component},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
