"""Kueue's objects, as far as cards depend on them: workloads, admission checks, flavors, ClusterQueues, cohorts.

Source: apis/kueue/v1beta2 of Kueue 0.19.2 (sigs.k8s.io/kueue). Labels and annotations of pods
that are read here are set by Kueue, and users can set them as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from gpuledger.formats.annotations import ASKED_LABEL
from gpuledger.formats.kubernetes.other import condition_of, is_true, shortened
from gpuledger.formats.quantity import amount
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import WorkloadName
from gpuledger.model.json_object import Json, JsonMapping, picked, placed_by

GROUP = "kueue.x-k8s.io/v1beta2"

LOCAL_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"
"""Kueue adds both when it admits a pod's workload."""
OWNER_LABEL = "kueue.x-k8s.io/job-uid"
"""Of a workload: the UID of the job, or of the pod, that it stands for."""
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
"""Of pods that are one workload together."""
GATE = "kueue.x-k8s.io/admission"
"""The scheduling gate of a pod whose workload is not admitted."""

THOUSANDTHS, BILLIONTHS = 1000, 10**9


def queue_of(pod: JsonMapping) -> str:
    """Return the LocalQueue that a pod is in, and behind it the ClusterQueue if that is known; empty without one."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    local = labels.get(LOCAL_QUEUE_LABEL) or labels.get(ASKED_LABEL) or ""
    cluster = labels.get(CLUSTER_QUEUE_LABEL) or ""
    return f"{local} of ClusterQueue {cluster}" if local and cluster else str(local or cluster)


def cluster_queue_of(pod: JsonMapping) -> str:
    """Return the ClusterQueue from which a pod was admitted, empty if none is said."""
    return str(((pod.get("metadata") or {}).get("labels") or {}).get(CLUSTER_QUEUE_LABEL) or "")


def why_not_admitted(workload: JsonMapping) -> str:
    """Return the reason that keeps a workload waiting, in the words of Kueue or of the first check that has not agreed.

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
    """A ClusterQueue's amounts of one resource, over all flavors, in thousandths."""

    nominal: int = 0
    reserved: int = 0
    """By workloads that have quota."""
    borrowed: int = 0
    """The part of it that is beyond its own."""


@dataclass(slots=True)
class QueueState:
    """The state of a ClusterQueue, from its status."""

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

    def json(self) -> Json:
        """Return it as `top --by queue -o json` and the page have it."""
        return {
            "queue": self.name,
            "cohort": self.cohort or None,
            "quota": [
                {
                    "resource": name,
                    "nominal": number(each.nominal),
                    "reserved": number(each.reserved),
                    "borrowed": number(each.borrowed),
                }
                for name, each in self.amounts.items()
            ],
            "workloads": {
                "admitted": self.admitted,
                "waitingForCards": self.with_quota,
                "waitingForQuota": self.without_quota,
            },
        }


def number(thousandths: int) -> int | float:
    """Return an amount as people write it."""
    return thousandths / THOUSANDTHS if thousandths % THOUSANDTHS else thousandths // THOUSANDTHS


def queue_state(found: JsonMapping) -> QueueState:
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


def _resources(flavors: Iterable[JsonMapping]) -> Iterator[JsonMapping]:
    for flavor in flavors:
        yield from (each for each in flavor.get("resources") or () if "/" in str(each.get("name")))


def _thousandths(quantity: object) -> int:
    try:
        return amount(str(quantity or "0"), THOUSANDTHS)
    except BadInput:
        return 0


CONTROLLER = "gpuledger.dev/cards"
"""The `controllerName` of admission checks that are ours."""

NAME_LENGTH = 253
"""Characters of an object's name, at most; users can write longer ones into annotations."""

WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
POD_SET_LABEL = "kueue.x-k8s.io/podset"


LONGEST_BYTES = 128 * 1024
"""Of that, for all of its sets of pods, as JSON: they stay in memory for as long as the workload has quota."""

_TOO_LONG = "too long"
"""Stands in a spec for what was left out, with its length: no field of Kueue's has a blank in its name."""


class CheckState(StrEnum):
    """The state of an admission check of a workload."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    """Kueue evicts the workload, all of its pods, and queues it again."""
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of a workload that are alike."""

    name: str
    count: int
    pod: dict[str, Any]
    """One of them, as far as the template says."""
    flavors: tuple[str, ...]
    """The names of the resource flavors that they were assigned."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload at one moment."""

    name: WorkloadName
    uid: str
    version: str
    created: str
    priority: int
    queue: str
    """The name of its LocalQueue."""
    cluster_queue: str
    """Where its quota is reserved; empty if it has none."""
    reserved_at: str
    """When its quota was reserved, RFC 3339."""
    is_admitted: bool
    is_evicted: bool
    is_finished: bool
    """It needs nothing any more: it has finished, or is being deleted."""
    checks: tuple[JsonMapping, ...]
    """The state of each admission check, as it is stored."""

    @property
    def has_quota(self) -> bool:
        """Return whether it has quota, and keeps it."""
        return bool(self.cluster_queue) and not (self.is_evicted or self.is_finished)

    @property
    def is_to_leave(self) -> bool:
        """Return whether a check has Kueue evict it."""
        return any(each.get("state") in (CheckState.RETRY, CheckState.REJECTED) for each in self.checks)

    def check(self, names: Collection[str]) -> JsonMapping | None:
        """Return the state of the first of these checks; None if it needs none of them."""
        return next((each for each in self.checks if str(each.get("name")) in names), None)

    def not_ready(self, but: Collection[str]) -> list[str]:
        """Return the names of its checks that are not ready, without these."""
        others = (each for each in self.checks if str(each.get("name")) not in but)
        return [str(each.get("name")) for each in others if each.get("state") != CheckState.READY]


def workload(found: JsonMapping) -> Workload:
    """Read a workload, without its pods."""
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    admission, quota = status.get("admission") or {}, condition_of(found, "QuotaReserved") or {}
    is_reserved = quota.get("status") == "True"
    return Workload(
        name=WorkloadName(str(metadata["namespace"]), str(metadata["name"])),
        uid=str(metadata["uid"]),
        version=str(metadata["resourceVersion"]),
        created=str(metadata.get("creationTimestamp") or ""),
        priority=int(spec.get("priority") or 0),
        queue=str(spec.get("queueName") or ""),
        cluster_queue=str(admission.get("clusterQueue") or "") if is_reserved else "",
        reserved_at=str(quota.get("lastTransitionTime") or "") if is_reserved else "",
        is_admitted=is_true(found, "Admitted"),
        is_evicted=is_true(found, "Evicted"),
        is_finished=is_true(found, "Finished") or bool(metadata.get("deletionTimestamp")),
        checks=tuple(status.get("admissionChecks") or ()),
    )


def pod_sets(found: JsonMapping) -> list[PodSet]:
    """Return the pods of a workload that has quota: as many as were admitted, which may be fewer than it wants.

    Raises BadInput for those that `workload_text` has found to be too long.
    """
    if size := (found.get("spec") or {}).get(_TOO_LONG):
        raise BadInput(f"what its pods ask for has {size:,} bytes as JSON, and {LONGEST_BYTES:,} are the most")
    namespace, uid = str(found["metadata"]["namespace"]), str(found["metadata"]["uid"])
    assigned = {str(each.get("name")): each for each in _assignments(found)}
    sets = []
    for pod_set in (found.get("spec") or {}).get("podSets") or ():
        name, template = str(pod_set["name"]), pod_set.get("template") or {}
        assignment = assigned.get(name) or {}
        metadata = {**(template.get("metadata") or {}), "namespace": namespace, "name": name, "uid": f"{uid}/{name}"}
        pod = {"metadata": metadata, "spec": template.get("spec") or {}}
        admitted = assignment.get("count")
        count = int(pod_set.get("count") or 0) if admitted is None else int(admitted)
        sets.append(PodSet(name, count, pod, tuple(sorted(set((assignment.get("flavors") or {}).values())))))
    return sets


def workload_text(found: JsonMapping) -> bytes:
    """Return the fields of a workload that are read beside `Workload`, as JSON; without its pods if it is too long."""
    metadata = {name: found["metadata"][name] for name in ("namespace", "name", "uid")}
    assigned = [picked(each, ("name", "count", "flavors", "resourceUsage")) for each in _assignments(found)]
    status = {"admission": {"podSetAssignments": assigned}}
    sets = [_picked_set(each) for each in (found.get("spec") or {}).get("podSets") or ()]
    text = orjson.dumps({"metadata": metadata, "spec": {"podSets": sets}, "status": status})
    if len(text) <= LONGEST_BYTES:
        return text
    return orjson.dumps({"metadata": metadata, "spec": {_TOO_LONG: len(text)}, "status": status})


def _picked_set(pod_set: JsonMapping) -> JsonMapping:
    template = pod_set.get("template") or {}
    spec = template.get("spec") or {}
    metadata = picked(template.get("metadata") or {}, ("annotations", "labels"))
    pod = {"metadata": metadata, "spec": placed_by(spec)}
    return {**picked(pod_set, ("name", "count")), "template": pod}


def pod_counts(found: JsonMapping) -> dict[str, int]:
    """Return how many pods of each set a workload was admitted with."""
    return {str(each.get("name")): int(each.get("count") or 0) for each in _assignments(found)}


def workload_of(pod: JsonMapping) -> tuple[WorkloadName, str] | None:
    """Return of which workload a pod says that it is, and of which of its sets of pods; None if of none."""
    metadata = pod.get("metadata") or {}
    name = (metadata.get("annotations") or {}).get(WORKLOAD_ANNOTATION)
    if not name or len(str(name)) > NAME_LENGTH:
        return None
    return WorkloadName(str(metadata.get("namespace")), str(name)), str(
        (metadata.get("labels") or {}).get(POD_SET_LABEL) or ""
    )


def check_patch(of: Workload, check: str, state: CheckState, message: str, now: str) -> JsonMapping:
    """Return a merge patch of a workload's status in which one check says something else.

    The API server refuses it if the workload has changed since it was read. Of one that is to be evicted, nothing says
    after how long it may be queued again: what Kueue 0.19.2 queues then, after a pause, lacks the requests that follow
    from limits, and is admitted without quota and without checks.
    """
    text = shortened(message)
    checks = []
    for each in of.checks:
        if each.get("name") == check:
            since = now if each.get("state") != state else each.get("lastTransitionTime") or now
            each = {**each, "state": state.value, "message": text, "lastTransitionTime": since}
            each["requeueAfterSeconds"] = None
        checks.append(each)
    return {"metadata": {"uid": of.uid, "resourceVersion": of.version}, "status": {"admissionChecks": checks}}


def is_ours(check: JsonMapping) -> bool:
    """Return whether an AdmissionCheck is one that gpuledger answers."""
    return (check.get("spec") or {}).get("controllerName") == CONTROLLER


def active_patch(check: JsonMapping, now: str) -> JsonMapping | None:
    """Return a merge patch that says that an AdmissionCheck is served; None if it says so already."""
    condition = condition_of(check, "Active")
    if condition is not None and condition.get("status") == "True":
        return None
    others = [each for each in (check.get("status") or {}).get("conditions") or () if each.get("type") != "Active"]
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "gpuledger admits workloads whose pods have cards",
        "observedGeneration": int(check["metadata"].get("generation") or 0),
        "lastTransitionTime": now,
    }
    version = str(check["metadata"]["resourceVersion"])
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, active]}}


class Flavor(NamedTuple):
    """The fields that a ResourceFlavor adds to the pods that are assigned it."""

    labels: Mapping[str, str]
    tolerations: tuple[JsonMapping, ...]


def flavor(found: JsonMapping) -> Flavor:
    """Read a ResourceFlavor."""
    spec = found.get("spec") or {}
    return Flavor(dict(spec.get("nodeLabels") or {}), tuple(spec.get("tolerations") or ()))


def with_flavors(pod: dict[str, Any], flavors: Sequence[Flavor]) -> dict[str, Any]:
    """Return a pod with what its flavors add, as Kueue will create it."""
    spec = dict(pod["spec"])
    for each in flavors:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **each.labels}
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *each.tolerations]
    return {**pod, "spec": spec}


Usage = dict[tuple[str, str], int]
"""(flavor, resource) -> thousandths of it."""


class Quota(NamedTuple):
    """The quota of one flavor's resource, in thousandths of it."""

    nominal: int = 0
    lends: int | None = None
    """The most of it that others may borrow; None for all of it."""
    borrows: int | None = None
    """The most that may be borrowed beyond it; None for no limit."""


@dataclass(frozen=True, slots=True)
class Lender:
    """A cohort or a ClusterQueue, which lends quota to others of its cohort, and borrows theirs."""

    name: str
    cohort: str
    """The name of the cohort that it belongs to; empty if it belongs to none."""
    quotas: Mapping[tuple[str, str], Quota]
    """(flavor, resource) -> its quota of it."""
    weight: float
    """Its weight among those of its cohort, in fair sharing."""


@dataclass(frozen=True, slots=True)
class ClusterQueue(Lender):
    """A ClusterQueue's quota, and its rules for taking back."""

    within: str
    """`preemption.withinClusterQueue`."""
    reclaim: str
    """`preemption.reclaimWithinCohort`."""
    borrowing_takes: int | None
    """The highest priority of a workload that may be evicted for one that borrows: `preemption.borrowWithinCohort`;
    None if there is none."""
    shares_fairly: bool
    """Whether Kueue's fair sharing is on: only then the status says what share it has."""


ANY_PRIORITY = 2**31


def cohort(found: JsonMapping) -> Lender:
    """Read a Cohort. Raises BadInput."""
    spec = found.get("spec") or {}
    return Lender(str(found["metadata"]["name"]), str(spec.get("parentName") or ""), _quotas(spec), _weight(spec))


def cluster_queue(found: JsonMapping) -> ClusterQueue:
    """Read a ClusterQueue. Raises BadInput."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    preemption = spec.get("preemption") or {}
    borrowing = preemption.get("borrowWithinCohort") or {}
    takes_lower, highest = borrowing.get("policy") == "LowerPriority", borrowing.get("maxPriorityThreshold")
    return ClusterQueue(
        name=str(found["metadata"]["name"]),
        cohort=str(spec.get("cohortName") or ""),
        quotas=_quotas(spec),
        weight=_weight(spec),
        within=str(preemption.get("withinClusterQueue") or "Never"),
        reclaim=str(preemption.get("reclaimWithinCohort") or "Never"),
        borrowing_takes=(ANY_PRIORITY if highest is None else int(highest)) if takes_lower else None,
        shares_fairly=bool(status.get("fairSharing")),
    )


def _quotas(spec: JsonMapping) -> dict[tuple[str, str], Quota]:
    flavors = [each for group in spec.get("resourceGroups") or () for each in group.get("flavors") or ()]
    return {
        (str(flavor["name"]), str(each["name"])): Quota(
            _limit(each, "nominalQuota") or 0, _limit(each, "lendingLimit"), _limit(each, "borrowingLimit")
        )
        for flavor in flavors
        for each in flavor.get("resources") or ()
    }


def _limit(resource: JsonMapping, name: str) -> int | None:
    some = resource.get(name)
    return None if some is None else amount(str(some), THOUSANDTHS)


def _weight(spec: JsonMapping) -> float:
    weight = (spec.get("fairSharing") or {}).get("weight")
    return 1.0 if weight is None else amount(str(weight), BILLIONTHS) / BILLIONTHS


def usage(found: JsonMapping) -> Usage:
    """Return the quota that a workload takes. Raises BadInput."""
    taken: Usage = {}
    for each in _assignments(found):
        flavors = each.get("flavors") or {}
        for resource, some in (each.get("resourceUsage") or {}).items():
            key = str(flavors.get(resource) or ""), str(resource)
            taken[key] = taken.get(key, 0) + amount(str(some), THOUSANDTHS)
    return taken


def _assignments(found: JsonMapping) -> Sequence[JsonMapping]:
    """Return the assignments of a workload, by its sets of pods; none without quota."""
    return ((found.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
