"""Kueue's own manager beside the operator: queues, and jobs in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from cluster.cluster import Cluster
from cluster.shared import cluster_on
from control_plane import ControlPlane
from installation import NOTHING_RUNS
from kueue import API, Kueue

Json = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CORES = "gpuledger.dev/cores"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"/apis/{API}/namespaces/default/workloads"


def _quota(cores: int) -> list[Json]:
    resources = [{"name": CORES, "nominalQuota": str(cores)}]
    return [{"coveredResources": [CORES], "flavors": [{"name": "any", "resources": resources}]}]


@contextmanager
def queues_cluster(settings: Mapping[str, object] | None = None) -> Iterator[Queues]:
    """Run Kueue, operator and kube-scheduler on a control plane of their own: Kueue's kinds stay where they are."""
    with ControlPlane.run() as plane:
        kueue = Kueue(plane)
        kueue.start()
        with cluster_on(nullcontext(plane), {**NOTHING_RUNS, "kueue": True, **(settings or {})}) as cluster:
            yield Queues(cluster, kueue)


class Queues:
    """Queues of one cohort, whose quota is percents of cards; and jobs."""

    def __init__(self, cluster: Cluster, kueue: Kueue) -> None:
        self.cluster = cluster
        self.kueue = kueue
        self._create("resourceflavors", "ResourceFlavor", "any", {})
        self._create("admissionchecks", "AdmissionCheck", "cards", {"controllerName": "gpuledger.dev/cards"})

    def _create(self, plural: str, kind: str, name: str, spec: Json, namespace: str = "") -> None:
        where = f"namespaces/{namespace}/" if namespace else ""
        body = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.cluster.request("POST", f"/apis/{API}/{where}{plural}", body)

    def add(self, name: str, cores: int, cohort: str = "teams", more: Json | None = None, **preemption: str) -> None:
        """Add a queue with so many percents of cards of its own."""
        spec: Json = {
            "namespaceSelector": {},
            "admissionChecksStrategy": {"admissionChecks": [{"name": "cards"}]},
            "resourceGroups": _quota(cores),
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority", **preemption},
            **(more or {}),
        }
        if cohort:
            spec["cohortName"] = cohort
        self._create("clusterqueues", "ClusterQueue", name, spec)
        self.add_local(name, name)

    def add_local(self, name: str, queue: str) -> None:
        """Add a LocalQueue of a queue."""
        self._create("localqueues", "LocalQueue", name, {"clusterQueue": queue}, "default")

    def add_cohort(self, name: str, parent: str = "", cores: int = 0, weight: str = "1") -> None:
        """Add a cohort with so many percents of cards of its own."""
        spec = {"resourceGroups": _quota(cores), "fairSharing": {"weight": weight}}
        self._create("cohorts", "Cohort", name, {**spec, **({"parentName": parent} if parent else {})})

    def job(
        self,
        name: str,
        queue: str,
        limits: Mapping[str, object],
        cores: int,
        pods: int = 1,
        priority: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Create a job; `cores` is what each of its pods takes of the queue's quota."""
        resources = {"limits": {key: str(value) for key, value in {**limits, CORES: cores}.items()}}
        spec = {
            "schedulerName": "gpuledger",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            **({"priorityClassName": priority} if priority else {}),
        }
        template = {"metadata": {"labels": dict(labels or {})}, "spec": spec}
        body = {
            "metadata": {"name": name, "labels": {QUEUE_LABEL: queue}},
            "spec": {"suspend": True, "parallelism": pods, "completions": pods, "template": template},
        }
        self.cluster.request("POST", JOBS, body)

    def delete(self, *names: str) -> None:
        """Delete jobs, with their pods."""
        for name in names:
            self.cluster.request("DELETE", f"{JOBS}/{name}", {"propagationPolicy": "Background"})

    def workload(self, job: str) -> Json:
        """Return the workload of a job; empty if there is none."""
        items = self.cluster.request("GET", WORKLOADS)["items"]
        owned = (each for each in items if each["metadata"]["ownerReferences"][0]["name"] == job)
        return next(owned, {})

    def condition(self, job: str, kind: str) -> bool:
        """Return whether a job's workload has a condition."""
        conditions = self.workload(job).get("status", {}).get("conditions", [])
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)

    def check(self, job: str) -> tuple[str, str]:
        """Return state and message of the check of a job's workload; empty before there is one."""
        checks = self.workload(job).get("status", {}).get("admissionChecks", [])
        return (checks[0]["state"], checks[0]["message"]) if checks else ("", "")

    def bound(self, job: str) -> list[Json]:
        """Return the pods of a job that have a node, have not ended, and are not being deleted."""
        pods = self.cluster.pods().values()
        return [
            pod
            for pod in pods
            if pod["metadata"].get("labels", {}).get("job-name") == job
            and pod["spec"].get("nodeName")
            and pod["status"].get("phase") != "Succeeded"
            and not pod["metadata"].get("deletionTimestamp")
        ]

    def running(self, *jobs: str) -> list[str]:
        """Return those of the jobs all of whose pods are bound that have not ended."""
        found = [self.cluster.request("GET", f"{JOBS}/{job}") for job in jobs]
        left = {
            job["metadata"]["name"]: job["spec"]["completions"] - job["status"].get("succeeded", 0) for job in found
        }
        return [job for job, pods in left.items() if len(self.bound(job)) == pods]

    def wait_running(self, *jobs: str, timeout_s: float = 20.0) -> None:
        """Wait until all pods of these jobs are bound."""
        self.cluster.wait(lambda: set(self.running(*jobs)) == set(jobs), f"jobs {jobs} run", timeout_s)

    def evictions(self) -> Counter[str]:
        """Return how often workloads have been evicted so far, by Kueue's reasons."""
        found = Counter[str]()
        for workload in self.cluster.request("GET", WORKLOADS)["items"]:
            for each in workload.get("status", {}).get("schedulingStats", {}).get("evictions", []):
                found[each["reason"]] += each["count"]
        return found

    def clear_queues(self) -> None:
        """Delete all queues and cohorts: there are no workloads any more."""
        local = f"/apis/{API}/namespaces/default/localqueues"
        for path in (local, f"/apis/{API}/clusterqueues", f"/apis/{API}/cohorts"):
            self.cluster.request("DELETE", path)
            self.cluster.wait(lambda path=path: not self.cluster.request("GET", path)["items"], f"{path} are gone")  # type: ignore[misc]

    def clear(self) -> None:
        """Delete all jobs, and what is left of the cluster's pods and nodes."""
        cluster = self.cluster
        self.delete(*(job["metadata"]["name"] for job in cluster.request("GET", JOBS)["items"]))
        cluster.wait(lambda: not cluster.request("GET", WORKLOADS)["items"], "no workloads are left")
        cluster.clear()
