"""Answers of the operator's view server, as its contract has them."""

from __future__ import annotations

from typing import Any

from gpuledger.model.request import Demand
from gpuledger.reports.explanation import Explanation, Kind, State, asked

Json = dict[str, Any]


def a_node(name: str, **changed: Any) -> Json:
    """Return a node that has too little memory left."""
    return {
        "node": name,
        "fits": False,
        "offered": True,
        "kubeScheduler": None,
        "reason": "no-memory",
        "text": "no card with 8000 MiB free",
        "remedy": f"would fit if 2,000 MiB more were free on GPU-{name}-0",
        "wouldHaveToLeave": [],
        "cards": [
            {
                "uuid": f"GPU-{name}-0",
                "index": 0,
                "fits": False,
                "reason": "no-memory",
                "text": "short by 2000 MiB",
                "short": {"memoryMiB": 2000},
                "by": ["default/chat-1", "default/chat-2"],
            }
        ],
    } | changed


def an_explanation(*nodes: Json, **changed: Any) -> Json:
    """Return why a pod waits that no node has a place for."""
    found = Explanation(
        Kind.POD,
        "default",
        "big",
        State.WAITING,
        "No node has a card with 8000 MiB free; on gpu-node-1, 2,000 MiB are missing.",
        uid="uid-big",
        priority=100,
        since="2026-08-01T12:00:00Z",
        last_tried="2026-08-01T12:04:50Z",
        requests=[asked("main", Demand(1, memory_mib=8000, cores=20))],
        scheduler_says="0/40 nodes are available: 37 no card with 8000 MiB free, 3 node(s) had untolerated taint(s).",
    )
    return {**found.json(), "nodes": list(nodes)} | changed


def a_placed_pod() -> Json:
    """Return where a pod is that has its place."""
    hold = {
        "uuid": "GPU-gpu-node-1-0",
        "node": "gpu-node-1",
        "index": 0,
        "memoryMiB": 8000,
        "cores": 20,
        "number": 1,
        "exclusive": False,
        "state": "allocated",
    }
    return an_explanation(
        state="placed", hasPlace=True, summary="It is on gpu-node-1.", holds=[hold], schedulerSays=None
    )


def a_record(kind: str, text: str, **changed: Any) -> Json:
    """Return a record of something that happened to a pod."""
    return {
        "time": "2026-08-01T12:00:00Z",
        "kind": kind,
        "namespace": "default",
        "pod": "big",
        "podUID": "uid-big",
        "node": "gpu-node-1",
        "cards": [{"uuid": "GPU-gpu-node-1-0", "memoryMiB": 8000, "cores": 20, "number": 1}],
        "text": text,
        "alternatives": [{"node": "gpu-node-2", "rank": [1, 2]}],
    } | changed
