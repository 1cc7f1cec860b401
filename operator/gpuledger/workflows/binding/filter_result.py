"""The answer to a Filter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from gpuledger.model.refusal import BEING_FREED, NEEDS_ROOM, Refusal

TEXT = attrgetter("text")

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


def refused(refusals: dict[str, Refusal], promised_node: str, scheduler_preempts: bool) -> FilterResult:
    """Return the answer for a pod that no node takes, each for its reason.

    On `promised_node`, empty if there is none, others make room for it. `scheduler_preempts`: kube-scheduler asks
    whom to evict.
    """
    if promised_node in refusals:
        refusals[promised_node] = BEING_FREED
    if not scheduler_preempts:
        # That node must not be "unresolvable": kube-scheduler would clear the pod's nomination for it.
        short = {promised_node: refusals.pop(promised_node).text} if promised_node in refusals else {}
        return FilterResult([], dict(zip(refusals, map(TEXT, refusals.values()), strict=True)), short)
    short = {name: refusal.text for name, refusal in refusals.items() if refusal.reason in NEEDS_ROOM}
    return FilterResult([], {n: r.text for n, r in refusals.items() if n not in short}, short)
