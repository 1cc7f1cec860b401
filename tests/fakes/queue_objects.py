"""Kueue's objects as Kueue 0.19.2 writes them, with good defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

from fakes.objects import SHARE, a_container

Json = dict[str, Any]

CHECK = "cards"
"""The name of the AdmissionCheck that gpuledger answers."""

LONG_AGO = "2029-12-31T00:00:00Z"

PLENTY, NOTHING = {"gpus": "100", "cpu": "100"}, {"gpus": "0", "cpu": "0"}
"""Quota by resource."""


def a_pod_set(
    name: str = "main", count: int = 1, limits: Mapping[str, object] = SHARE, **spec: object
) -> Mapping[str, Any]:
    """Return the pods of a workload that are alike."""
    template = {
        "metadata": {"labels": {"batch.kubernetes.io/job-name": "a"}},
        "spec": {"schedulerName": "gpuledger", "containers": [a_container("main", limits)], **spec},
    }
    return {"name": name, "count": count, "template": template}


def a_workload(
    name: str = "job-a-76ee9",
    *pod_sets: Mapping[str, Any],
    queue: str = "high",
    priority: int = 0,
    reserved_at: str = LONG_AGO,
    usage: Mapping[str, str] | None = None,
    flavor: str = "any",
    version: int = 1,
    namespace: str = "default",
) -> Json:
    """Return a workload that has quota, and whose check is Pending; its UID is `uid-NAME`.

    `usage` is what each of its sets of pods takes of the quota.
    """
    sets, used = pod_sets or (a_pod_set(),), dict(usage or {"cpu": "1"})
    admission = {
        "clusterQueue": queue,
        "podSetAssignments": [
            {
                "name": each["name"],
                "count": each["count"],
                "flavors": dict.fromkeys(used, flavor),
                "resourceUsage": used,
            }
            for each in sets
        ],
    }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": LONG_AGO,
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-of-job"}],
        },
        "spec": {"active": True, "podSets": list(sets), "priority": priority, "queueName": queue},
        "status": {
            "admission": admission,
            "admissionChecks": [
                {"name": CHECK, "state": "Pending", "message": "", "lastTransitionTime": reserved_at},
            ],
            "conditions": [a_condition("QuotaReserved", since=reserved_at)],
        },
    }


def a_condition(kind: str, status: str = "True", since: str = LONG_AGO) -> Json:
    """Return a condition of a workload."""
    return {
        "type": kind,
        "status": status,
        "reason": kind,
        "message": "as Kueue says",
        "lastTransitionTime": since,
        "observedGeneration": 1,
    }


def a_check(name: str = CHECK, controller: str = "gpuledger.dev/cards") -> Json:
    """Return an AdmissionCheck that nobody has answered yet."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "generation": 1}
    return {"metadata": metadata, "spec": {"controllerName": controller}}


def a_flavor(name: str = "any", labels: Mapping[str, str] | None = None, tolerations: Sequence[Json] = ()) -> Json:
    """Return a ResourceFlavor."""
    spec = {"nodeLabels": dict(labels or {}), "tolerations": list(tolerations)}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}


def a_cluster_queue(
    name: str,
    *,
    cohort: str = "all",
    within: str = "",
    reclaim: str = "",
    borrowing: Mapping[str, object] | None = None,
    nominal: Mapping[str, object] = PLENTY,
    weight: str = "",
    fair: bool = False,
) -> Json:
    """Return a ClusterQueue. `nominal` is its own quota, by resource, and `fair` whether Kueue shares fairly."""
    rules = {"withinClusterQueue": within, "reclaimWithinCohort": reclaim, "borrowWithinCohort": borrowing}
    preemption = {key: value for key, value in rules.items() if value}
    spec = {"cohortName": cohort, "preemption": preemption, **_quota(nominal, weight)}
    status = {"fairSharing": {"weightedShare": 0}} if fair else {}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": status}


def a_cohort(name: str, parent: str = "", nominal: Mapping[str, object] = NOTHING, weight: str = "") -> Json:
    """Return a Cohort."""
    spec = {"parentName": parent, **_quota(nominal, weight)}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}


def _quota(nominal: Mapping[str, object], weight: str) -> Json:
    """Return the quota of a ClusterQueue or a Cohort; an amount may have its limits beside it."""
    resources = [
        {"name": name, **(some if isinstance(some, Mapping) else {"nominalQuota": some})}
        for name, some in nominal.items()
    ]
    groups = [{"coveredResources": [*nominal], "flavors": [{"name": "any", "resources": resources}]}]
    return {"resourceGroups": groups, **({"fairSharing": {"weight": weight}} if weight else {})}
