"""The pods of the workload, by the name of their shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.cluster import CORES, COUNT, MEMORY
from node.gpu_node import STAY, gpu_container, gpu_pod
from node_chaos.claims import LOCAL, joint, made
from node_chaos.steps import PlannedPod

Json = dict[str, Any]

UID, CONTAINER = "CHAOS_POD_UID", "CHAOS_CONTAINER"
"""Variables by which each container says whose it is: the kubelet fills in the first."""

STUBBORN = "trap '' TERM; while :; do sleep 1; done"
SOON = "sleep 1"

COUNTERS = "/usr/local/vgpu/usage.cache"
GREEDY_MIB = 20
GREED = f"[ -e {COUNTERS} ] && dd if=/dev/zero of={COUNTERS} bs=1M count={GREEDY_MIB} conv=notrunc 2>/dev/null; "
"""Where a container has counters of HAMi-core: write far more into them than they have."""

JOINT_CLAIMS = 3
"""Claims that pods of a run share."""


def body_of(pod: PlannedPod) -> Json:
    """Return the pod as it is created."""
    stays = STUBBORN if pod.stubborn else STAY
    script = (GREED if pod.greedy else "") + (stays if pod.run_s is None else f"sleep {pod.run_s}")
    if pod.shape in _CLAIMS:
        return _claiming(pod, script)
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


def _claiming(pod: PlannedPod, script: str) -> Json:
    """Return a pod with a claim; its containers use that, or have cards by their resources."""
    claim, listed = _CLAIMS[pod.shape]
    containers = [_container(name, limits or {}, script, pod.number) for name, limits in listed.items()]
    for container in containers:
        if listed[container["name"]] is None:
            container["resources"] = {"claims": [{"name": LOCAL}]}
    if pod.shape == "joins":
        named = {"resourceClaimName": joint(claim["memory_mib"] + pod.number % JOINT_CLAIMS)}
    else:
        named = {"resourceClaimTemplateName": made(**{**claim, "memory_mib": claim["memory_mib"] + pod.number})}
    return gpu_pod(
        pod.name,
        *containers,
        resourceClaims=[{"name": LOCAL, **named}],
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

_CLAIMS: dict[str, tuple[dict[str, int], dict[str, dict[str, int] | None]]] = {
    "claim": ({"memory_mib": 3000}, {"main": None}),
    "claim-of-two": ({"memory_mib": 5000, "cores": 20}, {"main": None, "side": None}),
    "claim-of-three": ({"memory_mib": 7000, "cards": 2}, {"main": None, "side": None, "third": None, "plain": {}}),
    "claim-beside": ({"memory_mib": 9000}, {"main": None, "side": None, "own": _limits(11_000)}),
    "joins": ({"memory_mib": 13_000}, {"main": None}),
}
"""Shape -> what the claim asks for, and the containers: limits, or None for one that uses the claim."""
