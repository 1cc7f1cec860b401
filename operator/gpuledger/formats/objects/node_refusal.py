"""Why kube-scheduler itself does not take a node for a pod, with numbers, as far as the objects tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuledger.formats.objects.host import counted_cards, host_capacity, host_request
from gpuledger.formats.objects.node_rules import node_rules, pod_rules, refused_by_rules
from gpuledger.formats.objects.pod import is_finished
from gpuledger.model.errors import BadInput
from gpuledger.model.host import NO_HOST

Json = Mapping[str, Any]

RESOURCES_LOOKED_AT = 8
"""Of those that kube-scheduler names."""

_HOSTS_OWN = ("cpu", "memory")


def against_rules(pod: Json, node: Json) -> tuple[str, str] | None:
    """Return a code and a sentence where taints, cordon, selector or affinity keep a pod off a node, else None."""
    try:
        return refused_by_rules(pod_rules(pod), node_rules(node))
    except BadInput:
        return None


def lacking(pod: Json, node: Json, pods_there: Iterable[Json], short_of: Sequence[str]) -> tuple[str, str] | None:
    """Return a code and a sentence on the first resource of which a node has too little for a pod, else None.

    `pods_there` are all pods that are bound to it; `short_of` are the resources that kube-scheduler has named.
    """
    others = [other for other in pods_there if not is_finished(other)]
    return (
        _host_lacks(pod, node, others)
        or next(filter(None, (_lacks(pod, node, others, name) for name in short_of[:RESOURCES_LOOKED_AT])), None)
        or _full(node, others)
    )


def _host_lacks(pod: Json, node: Json, others: Sequence[Json]) -> tuple[str, str] | None:
    capacity = host_capacity(node)
    if capacity is None:
        return None
    asked, free = host_request(pod), capacity - sum(map(host_request, others), NO_HOST)
    if asked.cpu_milli > free.cpu_milli:
        free_text, all_text = _cpus(free.cpu_milli), _cpus(capacity.cpu_milli)
        return "host-cpu", f"asks for {_cpus(asked.cpu_milli)} CPUs, and {free_text} of {all_text} are free"
    if asked.memory_mib > free.memory_mib:
        free_text = f"{max(free.memory_mib, 0):,} of {capacity.memory_mib:,} MiB"
        return "host-memory", f"asks for {asked.memory_mib:,} MiB of the node's memory, and {free_text} are free"
    return None


def _lacks(pod: Json, node: Json, others: Sequence[Json], name: str) -> tuple[str, str] | None:
    asked, offered = host_request(pod, name).cards, counted_cards(node, name)
    if name in _HOSTS_OWN or not asked:
        return None
    if not offered:
        return "resource", f"asks for {name}, of which the node offers none"
    free = offered - sum(host_request(other, name).cards for other in others)
    if asked > free:
        return "resource", f"asks for {asked:,} {name}, and {max(free, 0):,} of {offered:,} are free"
    return None


def _full(node: Json, others: Sequence[Json]) -> tuple[str, str] | None:
    most = counted_cards(node, "pods")
    return ("pods", f"has as many pods as it may: {most}") if most and len(others) >= most else None


def _cpus(milli: int) -> str:
    return f"{max(milli, 0) / 1000:,g}"
