"""Workloads of Kueue, and who plays Kueue's manager: quota is always there, so cards alone decide who is admitted."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from chaos.admin import Admin
from chaos.history import Change
from chaos.pods import body_of
from chaos.steps import PlannedPod, PlannedWorkload
from chaos.timeline import Timeline
from cluster.cluster import MERGE_PATCH, RequestFailed
from control_plane import ControlPlane
from kueue import API

Json = dict[str, Any]

CHECK, CONTROLLER = "cards", "gpuledger.dev/cards"
CHECKS = f"/apis/{API}/admissionchecks"
FLAVORS = f"/apis/{API}/resourceflavors"
QUEUE, POD_SET = "gpus", "main"
WORKLOAD_ANNOTATION, POD_SET_LABEL = "kueue.x-k8s.io/workload", "kueue.x-k8s.io/podset"

QUOTA_AFTER_S, AGAIN_AFTER_S = 0.1, 1.0
"""Until a new workload has quota, and one that was evicted has it again."""


def workloads_path(namespace: str) -> str:
    """Return the path of a namespace's workloads."""
    return f"/apis/{API}/namespaces/{namespace}/workloads"


def check_body() -> Json:
    """Return our AdmissionCheck, as it is created."""
    return {
        "apiVersion": API,
        "kind": "AdmissionCheck",
        "metadata": {"name": CHECK},
        "spec": {"controllerName": CONTROLLER},
    }


def flavor_body() -> Json:
    """Return the one ResourceFlavor, which says nothing of nodes."""
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}}


def workload_body(planned: PlannedWorkload) -> Json:
    """Return a workload, as it is created."""
    pod = body_of(_like(planned, "pod"))
    metadata = {"labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"]}
    del pod["spec"]["priorityClassName"]
    template = {"metadata": metadata, "spec": pod["spec"]}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": planned.name, "namespace": planned.namespace},
        "spec": {
            "queueName": QUEUE,
            "podSets": [{"name": POD_SET, "count": planned.count, "template": template}],
        },
    }


def _like(planned: PlannedWorkload, name: str) -> PlannedPod:
    return PlannedPod(
        namespace=planned.namespace,
        name=name,
        shape=planned.shape,
        priority="",
        start_after_s=0.05,
        end_after_s=0.1,
    )


def state_of(workload: Json) -> str:
    """Return what our check says of a workload; empty before it is asked."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    return next((str(each.get("state")) for each in checks if each["name"] == CHECK), "")


def is_true(workload: Json, kind: str) -> bool:
    """Return whether a workload has a condition."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def count_of(workload: Json) -> int:
    """Return how many pods a workload has."""
    return int(workload["spec"]["podSets"][0]["count"])


def pod_like(workload: Json) -> Json:
    """Return one of a workload's pods, as far as it says."""
    template = workload["spec"]["podSets"][0]["template"]
    metadata = {**template.get("metadata", {}), "namespace": workload["metadata"]["namespace"], "name": "of-workload"}
    return {"metadata": metadata, "spec": template["spec"]}


class Manager:
    """Plays Kueue's manager in a thread of its own: `with Manager(plane) as manager:`.

    What is to be done is always decided by the workload as it is read then: whatever was lost is done the next time.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._admin = Admin(plane)
        self._timeline = Timeline()
        self._thread = threading.Thread(target=self._timeline.run, name="queues", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timeline.close()
        self._thread.join()
        self._admin.close()

    def take(self, change: Change) -> None:
        """See a workload, in the history's thread."""
        if change.kind != "workload":
            return
        if change.now is None:
            self._later(0.0, partial(self._remove_pods, change.key))
        else:
            evicted = is_true(change.now, "Evicted") and not is_true(change.now, "QuotaReserved")
            self._later(AGAIN_AFTER_S if evicted else QUOTA_AFTER_S, partial(self._look, change.key))

    def _later(self, wait_s: float, task: Any) -> None:
        self._timeline.at(time.monotonic() + wait_s, task)

    def _look(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        try:
            found = self._admin.request("GET", f"{workloads_path(namespace)}/{name}")
        except RequestFailed:
            return
        if found["metadata"].get("deletionTimestamp"):
            return
        if not is_true(found, "QuotaReserved"):
            self._write(found, QuotaReserved=True, Evicted=False)
        elif state_of(found) in ("Retry", "Rejected"):
            self._remove_pods(key)
            self._write(found, QuotaReserved=False, Admitted=False, Evicted=True)
        elif state_of(found) == "Ready":
            if not is_true(found, "Admitted"):
                self._write(found, QuotaReserved=True, Admitted=True)
            self._create_pods(found)

    def _write(self, found: Json, **conditions: bool) -> None:
        """Write conditions, and with quota what the check is asked; nothing if the workload has changed since."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        old = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}
        for kind, holds in conditions.items():
            word = "True" if holds else "False"
            if old.get(kind, {}).get("status") != word:
                old[kind] = {"type": kind, "status": word, "reason": kind, "message": "", "lastTransitionTime": now}
        status: Json = {"conditions": list(old.values())}
        if not is_true(found, "QuotaReserved"):
            status["admission"] = _admission(found)
            pending = {"name": CHECK, "state": "Pending", "message": "", "lastTransitionTime": now}
            status["admissionChecks"] = [pending]
        elif not conditions.get("QuotaReserved"):
            status["admission"] = None
        metadata = found["metadata"]
        change = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
        path = f"{workloads_path(metadata['namespace'])}/{metadata['name']}/status"
        self._admin.try_to("PATCH", path, change, MERGE_PATCH)

    def _create_pods(self, found: Json) -> None:
        metadata, like = found["metadata"], pod_like(found)
        for number in range(count_of(found)):
            pod = {
                "metadata": {
                    "name": f"{metadata['name']}-{metadata['uid'][:4]}-{number}",
                    "namespace": metadata["namespace"],
                    "labels": {**like["metadata"].get("labels", {}), POD_SET_LABEL: POD_SET},
                    "annotations": {**like["metadata"].get("annotations", {}), WORKLOAD_ANNOTATION: metadata["name"]},
                },
                "spec": like["spec"],
            }
            self._admin.try_to("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods", pod)

    def _remove_pods(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        for pod in self._admin.pods().values():
            metadata = pod["metadata"]
            is_its = (metadata.get("annotations") or {}).get(WORKLOAD_ANNOTATION) == name
            if metadata["namespace"] == namespace and is_its:
                self._admin.try_to("DELETE", f"/api/v1/namespaces/{namespace}/pods/{metadata['name']}")


def _admission(found: Json) -> Json:
    assigned = {"name": POD_SET, "count": count_of(found), "flavors": {"cpu": "any"}, "resourceUsage": {"cpu": "1"}}
    return {"clusterQueue": QUEUE, "podSetAssignments": [assigned]}
