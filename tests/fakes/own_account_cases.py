"""What our own account may change of objects that others look after, and what it may not: as merge patches.

For the API server's policies, on a real one and by their expressions alone.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from cluster.claims import claim, request
from gpuledger.formats.dialects.assignments import LOCK_ANNOTATION
from gpuledger.formats.kubernetes.kept_node import keeping
from gpuledger.formats.kubernetes.node import REGISTER_ANNOTATION
from gpuledger.formats.resource_claims.claims import DRIVER, PROTECTION
from kueue import API as KUEUE

Json = dict[str, Any]

OTHERS = "nic.example.com"
RESERVED = {"resource": "pods", "name": "probe", "uid": "uid-of-probe"}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "probe", "uid": "uid-of-probe"}
LABELLED: Json = {"metadata": {"labels": {"a": "b"}}}
SINCE = "2030-01-01T00:00:00Z"


class Case(NamedTuple):
    """A change of the object of this name, and how the refusal ends; nothing where it is allowed."""

    what: str
    name: str
    subresource: str
    patch: Json
    sentence: str = ""


def allocated(driver: str, pod_uid: str = RESERVED["uid"]) -> Json:
    """Return the status of a claim that has one device of a driver, and a pod that uses it."""
    result = {"request": "gpu", "driver": driver, "pool": "node-1", "device": "gpu-0"}
    return {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{**RESERVED, "uid": pod_uid}]}


def claims(pod_uid: str = RESERVED["uid"]) -> dict[str, tuple[Json, Json]]:
    """Return name -> claim and its status: one that nobody has, one with a card, one with another driver's device.

    A claim that is reserved for a pod that does not exist loses all that again by Kubernetes' own controller.
    """
    found = {}
    for name, driver in (("free", ""), ("ours", DRIVER), ("others", OTHERS)):
        body = claim(name, request())
        finalizers = [PROTECTION, "example.com/own"] if driver else []
        body["metadata"] |= {"labels": {"team": "blue"}, "finalizers": finalizers}
        found[name] = body, allocated(driver, pod_uid) if driver else {}
    return found


TWO = [RESERVED, {**RESERVED, "name": "two", "uid": "2"}]
NOBODY: Json = {"allocation": None, "reservedFor": None}
SAID: Json = {"devices": [{"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "conditions": []}]}

ONLY_ITS, ONLY_ADDS, ONLY_OURS = "changes only its allocation", "only adds", "only devices of"

CLAIM_CASES = (
    Case("protect", "free", "", {"metadata": {"finalizers": [PROTECTION]}}),
    Case("give", "free", "/status", {"status": allocated(DRIVER)}),
    Case("another pod", "ours", "/status", {"status": {"reservedFor": TWO}}),
    Case("no pod", "ours", "/status", {"status": {"reservedFor": None}}),
    Case("take back", "ours", "/status", {"status": NOBODY}),
    Case("labels", "free", "", LABELLED, ONLY_ITS),
    Case("annotations", "free", "", {"metadata": {"annotations": {"a": "b"}}}, ONLY_ITS),
    Case("owner", "free", "", {"metadata": {"ownerReferences": [OWNER]}}, ONLY_ITS),
    Case("what a driver says", "ours", "/status", {"status": SAID}, ONLY_ITS),
    Case("another finalizer", "free", "", {"metadata": {"finalizers": ["example.com/mine"]}}, ONLY_ADDS),
    Case("protection removed", "ours", "", {"metadata": {"finalizers": ["example.com/own"]}}, ONLY_ADDS),
    Case("another's finalizer removed", "ours", "", {"metadata": {"finalizers": [PROTECTION]}}, ONLY_ADDS),
    Case("all finalizers removed", "ours", "", {"metadata": {"finalizers": None}}, ONLY_ADDS),
    Case("another driver's device given", "free", "/status", {"status": allocated(OTHERS)}, ONLY_OURS),
    Case("another driver's device taken", "others", "/status", {"status": NOBODY}, ONLY_OURS),
    Case("another driver's pods", "others", "/status", {"status": {"reservedFor": None}}, ONLY_OURS),
)


def a_node() -> Json:
    """Return a node that an agent of ours describes, and that people have labelled."""
    metadata = {"name": "gpu-node", "labels": {"team": "blue"}, "annotations": {REGISTER_ANNOTATION: "[]"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}


ONLY_ANNOTATIONS, ONLY_THESE = "nothing of a node but annotations", "of a node's annotations, gpuledger changes only"

NODE_CASES = (
    Case("keep", "gpu-node", "", {"metadata": {"annotations": keeping({})}}),
    Case("lock", "gpu-node", "", {"metadata": {"annotations": {LOCK_ANNOTATION: "2030-01-01T00:00:00Z"}}}),
    Case("register", "gpu-node", "", {"metadata": {"annotations": {REGISTER_ANNOTATION: None}}}, ONLY_THESE),
    Case("another annotation", "gpu-node", "", {"metadata": {"annotations": {"a": "b"}}}, ONLY_THESE),
    Case("labels", "gpu-node", "", LABELLED, ONLY_ANNOTATIONS),
    Case("finalizer", "gpu-node", "", {"metadata": {"finalizers": ["example.com/own"]}}, ONLY_ANNOTATIONS),
    Case("cordon", "gpu-node", "", {"spec": {"unschedulable": True}}, ONLY_ANNOTATIONS),
)


def checks() -> list[Json]:
    """Return AdmissionChecks: `cards`, ours, and `budget` of another controller."""
    return [
        {"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": name}, "spec": {"controllerName": by}}
        for name, by in (("cards", "gpuledger.dev/cards"), ("budget", "example.com/budget"))
    ]


def a_workload() -> Json:
    """Return a workload, as it is created."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {"name": "job", "labels": {"team": "blue"}, "finalizers": ["example.com/own"]},
        "spec": {"queueName": "gpus", "podSets": [{"name": "main", "count": 1, "template": template}]},
    }


def condition(kind: str, word: str = "True") -> Json:
    """Return a condition."""
    return {"type": kind, "status": word, "reason": "R", "message": "", "lastTransitionTime": SINCE}


def workload_status() -> Json:
    """Return its status: it has quota, and each check is still to answer."""
    said = [
        {"name": each["metadata"]["name"], "state": "Pending", "message": "", "lastTransitionTime": SINCE}
        for each in checks()
    ]
    return {"conditions": [condition("QuotaReserved")], "admissionChecks": said}


def says(of: str, **fields: object) -> Json:
    """Return the patch by which one check says something else."""
    found = copy.deepcopy(workload_status()["admissionChecks"])
    for each in found:
        if each["name"] == of:
            each |= fields
    return {"status": {"admissionChecks": found}}


POD_SETS = [{"name": "main", "nodeSelector": {"a": "b"}}]
ONLY_CHECKS, NO_CHECK_MORE = "only what its admission checks", "adds and removes no admission check"
TWO_CONDITIONS = [condition("QuotaReserved"), condition("Admitted")]

A_CHECK_LESS = Case(
    "a check less",
    "job",
    "/status",
    {"status": {"admissionChecks": workload_status()["admissionChecks"][:1]}},
    NO_CHECK_MORE,
)
WORKLOAD_CASES = (
    *(
        Case(state, "job", "/status", says("cards", state=state, message="why", lastTransitionTime=SINCE))
        for state in ("Ready", "Pending", "Retry", "Rejected")
    ),
    Case("pods", "job", "/status", says("cards", podSetUpdates=POD_SETS), "changes no pods by one"),
    A_CHECK_LESS,
    Case("admitted", "job", "/status", {"status": {"conditions": TWO_CONDITIONS}}, ONLY_CHECKS),
    Case("no quota", "job", "/status", {"status": {"conditions": None}}, ONLY_CHECKS),
    Case("requeued", "job", "/status", {"status": {"requeueState": {"count": 1}}}, ONLY_CHECKS),
    Case("labels", "job", "", LABELLED, ONLY_CHECKS),
    Case("finalizers", "job", "", {"metadata": {"finalizers": None}}, ONLY_CHECKS),
    Case("owner", "job", "", {"metadata": {"ownerReferences": [OWNER]}}, ONLY_CHECKS),
    Case("stopped", "job", "", {"spec": {"active": False}}, ONLY_CHECKS),
    Case("priority", "job", "", {"spec": {"priority": 1000}}, ONLY_CHECKS),
)

ANSWER_CASES = tuple(
    Case(str(fields), "job", "/status", says("budget", **fields), "only those of the controller")
    for fields in ({"state": "Ready"}, {"message": "x"}, {"requeueAfterSeconds": 5})
)
