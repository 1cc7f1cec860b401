"""The pods of the workload, by the name of their shape."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from chaos.claims import template_name
from chaos.gang_rule import GANG, MINIMUM
from chaos.steps import CreateReplicas, CreateReservation, PlannedPod
from cluster.cluster import CORES, COUNT, MEMORY, PERCENT, container
from gpuledger.formats.annotations import ON_FAILURE_ANNOTATION
from gpuledger.model.clock import rfc3339

Json = dict[str, Any]

GRACE_S = 2
"""How long pods may take to end; the kubelet's player does not hold them to it."""

START_AFTER, RUN, END_AFTER = "chaos/start-after-s", "chaos/run-s", "chaos/end-after-s"
"""Annotations for the kubelet's player, in seconds."""

GROUP, SET = "chaos/group", "chaos/set"
"""Labels; the second one is that of pods of a ReplicaSet, with its name."""


def _one(**limits: object) -> Callable[[], Json]:
    names = {"count": COUNT, "memory": MEMORY, "percent": PERCENT, "cores": CORES}
    return lambda: {"containers": [container({names[name]: amount for name, amount in limits.items()})]}


def _two_containers() -> Json:
    return {"containers": [container({COUNT: 1, MEMORY: 6000}, name) for name in ("first", "second")]}


def _init() -> Json:
    return {
        "initContainers": [container({COUNT: 1, MEMORY: 9000}, "prepare")],
        "containers": [container({COUNT: 1, MEMORY: 3000, CORES: 20})],
    }


def _sidecar() -> Json:
    return {
        "initContainers": [container({COUNT: 1, MEMORY: 1000}, "beside", restartPolicy="Always")],
        "containers": [container({COUNT: 1, MEMORY: 5000})],
    }


SPECS: dict[str, Callable[[], Json]] = {
    "small": _one(count=1, memory=4000),
    "large": _one(count=1, memory=14000),
    "percent": _one(count=1, percent=25),
    "cores": _one(count=1, memory=2000, cores=40),
    "alone": _one(count=1, memory=2000, cores=100),
    "two-cards": _one(count=2, memory=5000),
    "four-cards": _one(count=4, memory=2500),
    "whole": _one(count=1),
    "two-whole": _one(count=2),
    "two-containers": _two_containers,
    "init": _init,
    "sidecar": _sidecar,
    "too-large": _one(count=1, memory=500_000),
    "no-card": _one(count=0),
}
"""Shape -> what is in the pod's spec. Two shapes never ask for the same."""


def body_of(pod: PlannedPod) -> Json:
    """Return the pod as it is created."""
    told = {START_AFTER: str(pod.start_after_s), END_AFTER: str(pod.end_after_s)}
    if pod.run_s is not None:
        told[RUN] = str(pod.run_s)
    if pod.leaves_failed_card:
        told[ON_FAILURE_ANNOTATION] = "leave"
    labels = {GROUP: str(pod.group)}
    if pod.gang:
        labels |= {GANG: pod.gang, MINIMUM: str(pod.minimum)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "labels": labels, "annotations": told},
        "spec": {
            "schedulerName": "gpuledger",
            "priorityClassName": pod.priority,
            "restartPolicy": "Always" if pod.run_s is None else "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            **_asking(_claiming(pod) if pod.templates or pod.claims else SPECS[pod.shape](), pod.cpus),
        },
    }


def _claiming(pod: PlannedPod) -> Json:
    """Return a spec whose container uses claims: `c0`, `c1`, in this order."""
    named = [{"resourceClaimTemplateName": template_name(shape)} for shape in pod.templates]
    named += [{"resourceClaimName": name} for name in pod.claims]
    claims = [{"name": f"c{number}", **each} for number, each in enumerate(named)]
    user = container({}, "user")
    user["resources"] = {"claims": [{"name": each["name"]} for each in claims]}
    return {"containers": [user], "resourceClaims": claims}


def _asking(spec: Json, cpus: int) -> Json:
    if cpus:
        spec["containers"][0]["resources"]["requests"] = {"cpu": str(cpus)}
    return spec


def sets_path(namespace: str) -> str:
    """Return the path of a namespace's ReplicaSets."""
    return f"/apis/apps/v1/namespaces/{namespace}/replicasets"


def set_of(step: CreateReplicas) -> Json:
    """Return a ReplicaSet, as it is created."""
    labels = {SET: step.name, GROUP: str(step.group)}
    metadata = {"labels": labels, "annotations": {START_AFTER: "0.05", END_AFTER: "0.1"}}
    spec = {
        "schedulerName": "gpuledger",
        "priorityClassName": "chaos-normal",
        "terminationGracePeriodSeconds": GRACE_S,
        **SPECS[step.shape](),
    }
    return {
        "metadata": {"name": step.name},
        "spec": {
            "replicas": step.count,
            "selector": {"matchLabels": {SET: step.name}},
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def reservations_path(namespace: str) -> str:
    """Return the path of a namespace's GPUReservations."""
    return f"/apis/gpuledger.dev/v1alpha1/namespaces/{namespace}/gpureservations"


def reservation_of(step: CreateReservation, now: datetime) -> Json:
    """Return a GPUReservation, as it is created."""
    template = {"spec": SPECS[step.shape]()}
    spec = {
        "count": step.count,
        "allocateOnce": step.once,
        "expires": rfc3339(now + timedelta(seconds=step.lasts_s)),
        "owners": [{"selector": {"matchLabels": {GROUP: str(step.group)}}}],
        "template": template,
    }
    body = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "GPUReservation", "metadata": {"name": step.name}}
    return {**body, "spec": spec}


def budgets_path(namespace: str) -> str:
    """Return the path of a namespace's PodDisruptionBudgets."""
    return f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"


def budget_of(group: int, min_available: int) -> Json:
    """Return a PodDisruptionBudget of a group, as it is created."""
    selector = {"matchLabels": {GROUP: str(group)}}
    return {"metadata": {"name": budget_name(group)}, "spec": {"minAvailable": min_available, "selector": selector}}


def budget_name(group: int) -> str:
    """Return the name of the budget of a group."""
    return f"group-{group}"
