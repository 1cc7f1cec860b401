"""Kubernetes' own groups of pods: clusters on which they are turned on, the groups, and their pods."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cluster.cluster import COUNT, Cluster, RequestFailed, pod
from native_gangs import NativeGangs

Json = dict[str, Any]

POD_BY_POD, OWN_CYCLE = WAYS = ("pod-by-pod", "own-cycle")
"""How kube-scheduler tries the pods of a group: like any others, or with its feature gates."""


def turned_on(native: NativeGangs, way: str) -> dict[str, Any]:
    """Return how to run what is on a plane that has groups, whose kube-scheduler tries them in one of the ways."""
    own = way == OWN_CYCLE
    return {
        "settings": {"native_gangs": own},
        "scheduler_flags": [f"--feature-gates={native.scheduler_gates}"] if own else [],
    }


def groups(native: NativeGangs) -> str:
    """Return the path of all groups."""
    return f"/apis/{native.api_version}/namespaces/default/podgroups"


def create_group(cluster: Cluster, native: NativeGangs, name: str, minimum: int, **spec: object) -> None:
    """Create a group of which so many pods start together."""
    body = {
        "apiVersion": native.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}, **spec},
    }
    cluster.request("POST", groups(native), body)


def clear_groups(cluster: Cluster, native: NativeGangs) -> None:
    """Delete all groups; nobody who protects a group that has pods, as kube-controller-manager does, needs to run."""
    path = groups(native)
    for found in cluster.request("GET", path)["items"]:
        name = f"{path}/{found['metadata']['name']}"
        cluster.request("DELETE", name)
        with suppress(RequestFailed):  # it may be gone
            cluster.patch(name, {"metadata": {"finalizers": None}})
    assert cluster.request("GET", path)["items"] == []


def members(name: str, count: int, **spec: Any) -> list[Json]:
    """Return pods of a group, each of which asks for a whole card."""
    group = {"podGroupName": name}
    return [pod(f"{name}-{number}", {COUNT: 1}, schedulingGroup=group, **spec) for number in range(count)]
