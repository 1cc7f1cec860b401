"""The pods of the workload, by the name of their shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.cluster import CORES, COUNT, MEMORY
from node.gpu_node import STAY, gpu_container, gpu_pod
from node_chaos.steps import PlannedPod

Json = dict[str, Any]

UID, CONTAINER = "CHAOS_POD_UID", "CHAOS_CONTAINER"
"""Variables by which each container says whose it is: the kubelet fills in the first."""

STUBBORN = "trap '' TERM; while :; do sleep 1; done"
SOON = "sleep 1"


def body_of(pod: PlannedPod) -> Json:
    """Return the pod as it is created."""
    stays = STUBBORN if pod.stubborn else STAY
    script = stays if pod.run_s is None else f"sleep {pod.run_s}"
    kinds = _SHAPES[pod.shape]
    listed = [_container(name, limits, script, pod.number) for name, limits in kinds["containers"].items()]
    first = [
        _container(name, limits, SOON, pod.number)
        if name in kinds["init"]
        else _container(name, limits, stays, pod.number, restartPolicy="Always")
        for name, limits in {**kinds["init"], **kinds["sidecars"]}.items()
    ]
    return gpu_pod(
        pod.name,
        *listed,
        initContainers=first,
        restartPolicy="Always" if pod.run_s is None else "Never",
        terminationGracePeriodSeconds=pod.grace_s,
    )


def _container(name: str, limits: Mapping[str, int], script: str, number: int, **extra: object) -> Json:
    own = {key: value + number if key == MEMORY else value for key, value in limits.items()}
    uid = {"name": UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return gpu_container(name, own, script, env=[uid, {"name": CONTAINER, "value": name}], **extra)


def _shape(
    init: Mapping[str, Mapping[str, int]] | None = None,
    sidecars: Mapping[str, Mapping[str, int]] | None = None,
    **containers: Mapping[str, int],
) -> dict[str, Mapping[str, Mapping[str, int]]]:
    return {"init": init or {}, "sidecars": sidecars or {}, "containers": containers}


def _limits(memory_mib: int, count: int = 1, **more: int) -> dict[str, int]:
    return {COUNT: count, MEMORY: memory_mib, **{{"cores": CORES}[key]: value for key, value in more.items()}}


_SHAPES = {
    "small": _shape(main=_limits(2000)),
    "large": _shape(main=_limits(30_000)),
    "cores": _shape(main=_limits(4000, cores=30)),
    "whole": _shape(main={COUNT: 1}),
    "two-cards": _shape(main=_limits(6000, 2)),
    "two-containers": _shape(first=_limits(8000), second=_limits(10_000, 2)),
    "plain-beside": _shape(main=_limits(12_000), plain={}),
    "init": _shape({"prepare": _limits(14_000), "again": _limits(16_000, 2)}, main=_limits(18_000)),
    "init-only": _shape({"prepare": _limits(20_000)}, main={}),
    "sidecar": _shape({"prepare": _limits(22_000)}, {"beside": _limits(1000)}, main=_limits(24_000)),
}
"""Shape -> init containers, sidecars and containers -> name -> limits. Whatever is added, no two are equal."""
