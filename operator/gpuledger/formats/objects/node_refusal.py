"""Why kube-scheduler itself does not take a node for a pod, with numbers, as far as the objects tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.formats.objects.host import counted_cards, host_capacity, host_request
from gpuledger.formats.objects.node_rules import node_rules, pod_rules, refused_by_rules
from gpuledger.formats.objects.pod import is_finished
from gpuledger.model.errors import BadInput
from gpuledger.model.host import NO_HOST, HostAmounts

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


Taken = tuple[HostAmounts, ...]
"""What a pod takes of its node: of CPU and memory, and after that, as cards, of each resource that is looked at."""


def taken_of(pod: Json, short_of: Sequence[str]) -> Taken | None:
    """Return what a pod takes of its node, None if it has ended; `short_of` as in `lacking`."""
    names = ("", *short_of[:RESOURCES_LOOKED_AT])
    return None if is_finished(pod) else tuple(host_request(pod, name) for name in names)


def lacking(pod: Json, node: Json, others: Sequence[Taken], short_of: Sequence[str]) -> tuple[str, str] | None:
    """Return a code and a sentence on the first resource of which a node has too little for a pod, else None.

    `others` are the pods that are bound to it, and live; `short_of` are the resources that kube-scheduler has named.
    """
    names = short_of[:RESOURCES_LOOKED_AT]
    of_host, *of_names = (sum((each[place] for each in others), NO_HOST) for place in range(1 + len(names)))
    return (
        _host_lacks(pod, node, of_host)
        or next(filter(None, (_lacks(pod, node, *each) for each in zip(names, of_names, strict=True))), None)
        or _full(node, len(others))
    )


def _host_lacks(pod: Json, node: Json, taken: HostAmounts) -> tuple[str, str] | None:
    capacity = host_capacity(node)
    if capacity is None:
        return None
    asked, free = host_request(pod), capacity - taken
    if asked.cpu_milli > free.cpu_milli:
        free_text, all_text = _cpus(free.cpu_milli), _cpus(capacity.cpu_milli)
        return "host-cpu", f"asks for {_cpus(asked.cpu_milli)} CPUs, and {free_text} of {all_text} are free"
    if asked.memory_mib > free.memory_mib:
        free_text = f"{max(free.memory_mib, 0):,} of {capacity.memory_mib:,} MiB"
        return "host-memory", f"asks for {asked.memory_mib:,} MiB of the node's memory, and {free_text} are free"
    return None


def _lacks(pod: Json, node: Json, name: str, taken: HostAmounts) -> tuple[str, str] | None:
    asked, offered = host_request(pod, name).cards, counted_cards(node, name)
    if name in _HOSTS_OWN or not asked:
        return None
    if not offered:
        return "resource", f"asks for {name}, of which the node offers none"
    free = offered - taken.cards
    if asked > free:
        return "resource", f"asks for {asked:,} {name}, and {max(free, 0):,} of {offered:,} are free"
    return None


def _full(node: Json, pods: int) -> tuple[str, str] | None:
    most = counted_cards(node, "pods")
    return ("pods", f"has as many pods as it may: {most}") if most and pods >= most else None


def _cpus(milli: int) -> str:
    return f"{max(milli, 0) / 1000:,g}"
