"""The answer to a Filter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

MAX_POD_BYTES = 1_000_000
"""Of a pod that gets cards, as JSON. etcd stores 1.5 MiB: where little of that is left, the Binding that tells a pod
its cards may fit in, and the kubelet's word that it runs, or our own that takes the Binding back, does not."""

TOO_LONG = f"the pod is longer than {MAX_POD_BYTES:,} bytes of JSON: move its long fields into a ConfigMap"


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes that a pod can go to, or why each can't take it."""

    node_names: Collection[str]
    refused: Mapping[str, str]
    short_of_room: Mapping[str, str] = field(default_factory=dict)
    """Those nodes among them, apart, on which others could make room; only for a scheduler that asks for it."""
