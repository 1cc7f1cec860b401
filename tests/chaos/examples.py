"""Small objects with good defaults, for the tests of the checkers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from chaos.arithmetic import DEVICES, REGISTER, totals
from chaos.history import Change
from cluster.cluster import COUNT, MEMORY, container

Json = dict[str, Any]

NODE, CARD, POD = "node-1", "GPU-1", "uid-1"
CAPACITY = {"memoryMiB": 10_000, "cores": 100, "number": 4}
_revisions = itertools.count(1)


def a_pod(uid: str = POD, *limits: Mapping[str, object], node: str | None = NODE, **told: int) -> Json:
    """Return a pod with one container for each of these limits, one share without any.

    With a node, it was told that it has so many MiB of the card of that name, in its first container.
    """
    containers = [
        container(each, f"c{number}")
        for number, each in enumerate(limits or ({COUNT: max(1, len(told)), MEMORY: 4000},))
    ]
    cards = [{"uuid": uuid.replace("_", "-"), "memoryMiB": memory, "cores": 0} for uuid, memory in told.items()]
    annotations = {DEVICES: json.dumps({"c0": cards})} if cards else {}
    return {
        "metadata": {"uid": uid, "namespace": "default", "name": f"pod-{uid}", "annotations": annotations},
        "spec": {"schedulerName": "gpuledger", "containers": containers, **({"nodeName": node} if node else {})},
        "status": {"phase": "Pending"},
    }


def a_holder(uid: str = POD, memory_mib: int = 4000, **changes: object) -> Json:
    """Return a pod's share of a card."""
    return {
        "podUID": uid,
        "namespace": "default",
        "pod": f"pod-{uid}",
        "memoryMiB": memory_mib,
        "cores": 0,
        "number": 1,
        "exclusive": False,
        "priority": 0,
        "containers": [{"name": "c0", "memoryMiB": memory_mib, "cores": 0}],
        "state": "allocated",
        "attempt": "first",
        **changes,
    }


def a_card(*holders: Json, uuid: str = CARD, node: str = NODE, phase: str = "Ready", **capacity: int) -> Json:
    """Return a card with these holders."""
    status = {"phase": phase, "used": totals(holders), "holders": list(holders)}
    spec = {"uuid": uuid, "nodeName": node, "index": 0, "healthy": True, "capacity": {**CAPACITY, **capacity}}
    return {"metadata": {"name": uuid.lower()}, "spec": spec, "status": status}


def a_node(*uuids: str, slots: int = 4, healthy: bool = True, **amounts: int) -> Json:
    """Return a node that reports these cards."""
    capacity = {**CAPACITY, **amounts}
    register = [
        {"uuid": uuid, "memoryMiB": capacity["memoryMiB"], "number": capacity["number"], "healthy": healthy}
        for uuid in uuids or (CARD,)
    ]
    return {
        "metadata": {"name": NODE, "annotations": {REGISTER: json.dumps(register)}},
        "status": {"allocatable": {COUNT: str(slots)}},
    }


def changed(kind: str, before: Json | None, now: Json | None, at_s: float = 0.0) -> Change:
    """Return a change of an object."""
    found = now or before or {}
    name = found["metadata"]["name"]
    key = name if kind in ("card", "node") else f"{found['metadata'].get('namespace', 'default')}/{name}"
    return Change(next(_revisions), at_s, kind, key, before, now)
