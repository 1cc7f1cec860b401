"""Clocks: the API server's, ours, and those of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from gpuledger.doctor.facts import Facts, known, name_of, time_of
from gpuledger.doctor.kinds import Finding, FindingKind

SKEW = timedelta(seconds=5)
"""The API server tells its time to the second, and an answer takes a while."""

SILENT = timedelta(seconds=60)
"""A kubelet renews its Lease every ten seconds, and after 40 s of silence its node is not ready."""


def check_clock_here(facts: Facts) -> Iterator[Finding]:
    """Yield whether our own clock differs from the API server's."""
    skew = facts.local_time - known(facts.server_time)
    if abs(skew) > SKEW:
        yield Finding.of(FindingKind.CLOCK_SKEW_HERE, "this machine", f"its clock is {_spelled(skew)} the API server's")


def check_clocks_of_nodes(facts: Facts) -> Iterator[Finding]:
    """Yield nodes whose kubelets live, and write of another time than the API server's."""
    now = known(facts.server_time)
    ready = {name_of(node): node for node in known(facts.nodes) if _is_ready(node)}
    for lease in known(facts.node_leases):
        node = ready.get(name_of(lease))
        renewed = time_of((lease.get("spec") or {}).get("renewTime"))
        if node is None or renewed is None:
            continue
        beats = [renewed, *_heartbeats(node)]
        ahead, behind = max(beats) - now, now - max(beats)
        if ahead > SKEW or behind > SILENT:  # it is ready: its kubelet has renewed the Lease within 40 s
            skew = ahead if ahead > SKEW else -behind
            text = f"its clock is about {_spelled(skew)} the API server's, by the Lease that its kubelet renews"
            yield Finding.of(FindingKind.CLOCK_SKEW_NODE, f"node {name_of(node)}", text, NODE=name_of(node))


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _heartbeats(node: dict[str, Any]) -> list[datetime]:
    conditions = (node.get("status") or {}).get("conditions") or ()
    times = (time_of(each.get("lastHeartbeatTime")) for each in conditions)
    return [each for each in times if each is not None]


def _spelled(skew: timedelta) -> str:
    return f"{abs(skew).total_seconds():.0f} s {'ahead of' if skew > timedelta(0) else 'behind'}"
