"""What people are shown of Kueue's queues: which one a pod is in, and what a ClusterQueue has and lets wait.

Source: apis/kueue/v1beta2 of Kueue 0.19.2. Users can write the labels of pods, too: nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.formats.objects.condition import condition_of
from gpuledger.formats.quantity import amount
from gpuledger.model.errors import BadInput

Json = Mapping[str, Any]

GROUP = "kueue.x-k8s.io/v1beta2"

ASKED_LABEL = "kueue.x-k8s.io/queue-name"
"""The LocalQueue that a user names."""
LOCAL_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"
"""Kueue adds both when it admits a pod's workload."""
OWNER_LABEL = "kueue.x-k8s.io/job-uid"
"""Of a workload: the UID of the job, or of the pod, that it stands for."""
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
"""Of pods that are one workload together."""
GATE = "kueue.x-k8s.io/admission"
"""The scheduling gate of a pod whose workload is not admitted."""

THOUSANDTHS = 1000


def queue_of(pod: Json) -> str:
    """Return the LocalQueue that a pod is in, and behind it the ClusterQueue if that is known; empty without one."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    local = labels.get(LOCAL_QUEUE_LABEL) or labels.get(ASKED_LABEL) or ""
    cluster = labels.get(CLUSTER_QUEUE_LABEL) or ""
    return f"{local} of ClusterQueue {cluster}" if local and cluster else str(local or cluster)


def cluster_queue_of(pod: Json) -> str:
    """Return the ClusterQueue from which a pod was admitted, empty if none is said."""
    return str(((pod.get("metadata") or {}).get("labels") or {}).get(CLUSTER_QUEUE_LABEL) or "")


def why_not_admitted(workload: Json) -> str:
    """Return what keeps a workload, in the words of Kueue or of the first check that has not agreed.

    Empty for one that is admitted or has finished.
    """
    kinds = ("Admitted", "Finished", "QuotaReserved")
    admitted, finished, quota = (condition_of(workload, kind) or {} for kind in kinds)
    if "True" in (admitted.get("status"), finished.get("status")):
        return ""
    if quota.get("status") != "True":
        return f"waits for quota: {quota.get('message') or 'Kueue has not looked at it yet'}"
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    open_checks = [each for each in checks if each.get("state") != "Ready"]
    if not open_checks:
        return "has quota: Kueue is about to admit it"
    first = open_checks[0]
    return f"has quota, and waits for AdmissionCheck {first.get('name')}: {first.get('message') or 'no word of it yet'}"


@dataclass(slots=True)
class QueueAmount:
    """What a ClusterQueue has of one resource, over all flavors, in thousandths."""

    nominal: int = 0
    reserved: int = 0
    """By workloads that have quota."""
    borrowed: int = 0
    """The part of it that is beyond its own."""


@dataclass(slots=True)
class QueueState:
    """What a ClusterQueue says of itself."""

    name: str
    cohort: str
    admitted: int
    """Workloads that run."""
    with_quota: int
    """Workloads that have quota, and wait for what else they need: cards, above all."""
    without_quota: int
    """Workloads that wait for quota."""
    amounts: dict[str, QueueAmount] = field(default_factory=dict)
    """Extended resource -> what the queue has of it: these have a slash in their names, unlike Kubernetes' own."""


def queue_state(found: Json) -> QueueState:
    """Read a ClusterQueue. An amount that can't be read counts as none."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    admitted, reserving = int(status.get("admittedWorkloads") or 0), int(status.get("reservingWorkloads") or 0)
    state = QueueState(
        name=str(found["metadata"]["name"]),
        cohort=str(spec.get("cohortName") or ""),
        admitted=admitted,
        with_quota=max(reserving - admitted, 0),
        without_quota=int(status.get("pendingWorkloads") or 0),
    )
    flavors = [flavor for group in spec.get("resourceGroups") or () for flavor in group.get("flavors") or ()]
    for each in _resources(flavors):
        state.amounts.setdefault(str(each["name"]), QueueAmount()).nominal += _thousandths(each.get("nominalQuota"))
    for each in _resources(status.get("flavorsReservation") or ()):
        known = state.amounts.setdefault(str(each["name"]), QueueAmount())
        known.reserved += _thousandths(each.get("total"))
        known.borrowed += _thousandths(each.get("borrowed"))
    return state


def _resources(flavors: Iterable[Json]) -> Iterator[Json]:
    for flavor in flavors:
        yield from (each for each in flavor.get("resources") or () if "/" in str(each.get("name")))


def _thousandths(quantity: object) -> int:
    try:
        return amount(str(quantity or "0"), THOUSANDTHS)
    except BadInput:
        return 0
