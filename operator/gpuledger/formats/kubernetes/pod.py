"""Pods: their identity, their progress, and their facts for the ledger.

Requests are read once for all equal pods, such as those of one template. The webhook, the watch, and each Filter read
the same pod. The result is remembered by the text of all fields that it can depend on: the reader gets that text, and
nothing else of the pod. The names of resources are kept as the container
has written them, so that messages use its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from sys import intern
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import orjson

from gpuledger.formats.annotations import DEVICES_ANNOTATION, read_devices
from gpuledger.formats.dialects.assignments import old_devices, plugin_assigned
from gpuledger.formats.dialects.request import counted, pod_request
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.card_access import ways_past_the_ledger
from gpuledger.formats.kubernetes.other import condition_of, is_true
from gpuledger.formats.kubernetes.workload import CLUSTER_QUEUE_LABEL, LOCAL_QUEUE_LABEL
from gpuledger.formats.quantity import host_request
from gpuledger.formats.resource_claims.claims import ClaimObjects
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import CONTAINERS, JsonMapping, all_containers, controller_of, picked
from gpuledger.model.node import Counted, OldDevices, PodFacts, UnaccountedPod
from gpuledger.model.request import MAX_CARDS
from gpuledger.model.share import DEFAULT_GRACE_S, LONGEST_GRACE_KEPT_S, Pod
from gpuledger.model.usage import Charge

SCHEDULED = "PodScheduled"
"""The condition in which a scheduler says whether it has found a node."""

LONGEST_PROOF_BYTES = 256 * 1024
"""JSON of a pod into which its kubelet can write its status for certain: that repeats names and images of the
containers, and etcd takes 1.5 MiB. An ordinary pod has some 10 kB. A user can make one longer at any time, by labels as
well."""

LONGEST_GRACE_S = 3_600
"""Pods that may take longer to end are evicted last, and no pod waits longer for them."""


def pod_identity(pod: JsonMapping) -> Pod:
    """Return the pod's identity. Raises BadInput for something that is not a pod."""
    try:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        priority = spec.get("priority") or 0
        uid, namespace, name = (intern(str(metadata[key])) for key in ("uid", "namespace", "name"))
        grace = max(0, min(grace_s(pod), LONGEST_GRACE_KEPT_S))
        return Pod(uid, namespace, name, int(priority), grace, charge_of(pod))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"not a pod: {error!r} in its metadata") from error


CHARGED_LENGTH = 128
"""Of the names by which an account is told apart. Those of objects can be twice as long, and are cut."""


def charge_of(pod: JsonMapping) -> Charge:
    """Return to whom the time of a pod's shares is charged: what users write there concerns their own namespace."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    labels = metadata.get("labels") or {}
    queue = labels.get(CLUSTER_QUEUE_LABEL) or labels.get(LOCAL_QUEUE_LABEL) or ""
    words = (_maker(metadata, labels), str(queue), str(spec.get("priorityClassName") or ""))
    owner, queue, priority_class = (intern(word[:CHARGED_LENGTH]) for word in words)
    return Charge(owner, queue, priority_class, created_at(pod))


def _maker(metadata: JsonMapping, labels: JsonMapping) -> str:
    """Return the object that has made a pod, Kind/name; empty for a pod by itself."""
    maker = controller_of(metadata)
    if maker is None:
        return ""
    kind, name = str(maker.get("kind") or ""), str(maker.get("name") or "")
    deployment = _deployments_name(name, _template_of(labels)) if kind == "ReplicaSet" else ""
    return f"Deployment/{deployment}" if deployment else f"{kind}/{name}"


def _template_of(labels: JsonMapping) -> str:
    return str(labels.get("pod-template-hash") or "")


def _deployments_name(replica_set: str, template: str) -> str:
    """Return the name of the Deployment that a ReplicaSet is called after; empty if it is called otherwise."""
    return replica_set.removesuffix(f"-{template}") if template and replica_set.endswith(f"-{template}") else ""


def pod_facts(pod: JsonMapping, dialects: Dialects, claims: ClaimObjects | None = None) -> PodFacts:
    """Return the facts about a pod. Unreadable parts are reported in it; raises BadInput only if this is no pod."""
    identity = pod_identity(pod)
    request, bad_request, annotated, bad_annotation = None, "", None, ""
    try:
        request = pod_request(pod, dialects, claims)
    except BadInput as error:
        bad_request = str(error)
    old = None
    try:
        text = (pod["metadata"].get("annotations") or {}).get(DEVICES_ANNOTATION)
        annotated = None if text is None else read_devices(text)
        old = None if annotated is not None else _old_devices(pod, dialects)
    except BadInput as error:
        bad_annotation = str(error)
    return PodFacts(
        pod=identity,
        node_name=bound_node(pod),
        finished=is_finished(pod),
        taken_up=is_taken_up(pod),
        request=request,
        bad_request=bad_request,
        annotated=annotated,
        bad_annotation=bad_annotation,
        old=old,
        scheduler_name=scheduler_of(pod),
        past_ledger=_past_ledger(pod, dialects, has_share=request is not None),
    )


def _past_ledger(pod: JsonMapping, dialects: Dialects, *, has_share: bool) -> str:
    """Return how a pod reaches cards past the ledger.

    Of a pod without a share, only what has no other purpose, and nothing of what DaemonSets make: those are the
    cluster's own, as node agents are.
    """
    if not has_share and is_of_daemon_set(pod):
        return ""
    ways = ways_past_the_ledger(pod, dialects)
    return "; ".join(each.text for each in ways if has_share or each.is_to_cards)


def stranger(pod: JsonMapping, asked: tuple[Counted, ...], dialects: Dialects) -> UnaccountedPod | None:
    """Return the cards that a pod may have got from its node's device plugin; None if it can't have got any.

    `asked` are the numbers that the kubelet asks plugins for, see `counted`.

    That is so where it is bound, has not ended, counts cards, and where its kubelet has taken it up, for then the
    plugin has said yes; or will, because a scheduler has bound it, which users can't do by themselves. Raises BadInput
    if this is no pod.
    """
    if not asked or not bound_node(pod) or has_ended(pod) or not is_taken_up(pod):
        return None
    annotated = plugin_assigned(pod, asked, dialects.volcano_memory_unit_mib, dialects.hami_annotations)
    return UnaccountedPod(pod_identity(pod), bound_node(pod), asked, annotated)


def is_taken_up(pod: JsonMapping) -> bool:
    """Return whether a bound pod's kubelet has taken it up, or soon has to decide on it, as a scheduler has bound it.

    Who names the node in a new pod has said nothing by that. No user can write what is looked at here. A pod whose
    status would be too long for its kubelet to write is no proof of anything as long as that says nothing.
    """
    return has_started(pod) or (bool(bound_at(pod)) and not is_long(pod))


def is_long(pod: JsonMapping) -> bool:
    """Return whether a kubelet may be unable to write the pod's status: then that it does not says nothing."""
    return len(orjson.dumps(pod)) > LONGEST_PROOF_BYTES


def _old_devices(pod: JsonMapping, dialects: Dialects) -> OldDevices | None:
    return old_devices(pod, dialects.volcano_memory_unit_mib, dialects.hami_annotations)


def annotated_cards(pod: JsonMapping) -> frozenset[str]:
    """Return the UUIDs in the pod's device annotation, none if it can't be read. Users can write it: it is a hint."""
    try:
        devices = orjson.loads((pod["metadata"].get("annotations") or {})[DEVICES_ANNOTATION])
        return frozenset(islice((str(card["uuid"]) for cards in devices.values() for card in cards), MAX_CARDS))
    except (KeyError, TypeError, AttributeError, ValueError):
        return frozenset()


def created_at(pod: JsonMapping) -> str:
    """Return when the pod was created, RFC 3339 in whole seconds of UTC: earlier is less."""
    return str((pod.get("metadata") or {}).get("creationTimestamp") or "")


def scheduler_of(pod: JsonMapping) -> str:
    """Return the name of the scheduler profile that has to place the pod; it can't be changed."""
    return str((pod.get("spec") or {}).get("schedulerName") or "")


def is_unschedulable(pod: JsonMapping) -> bool:
    """Return whether a scheduler has tried the pod and found no node for it."""
    return _not_scheduled_because(pod) == "Unschedulable"


def was_tried(pod: JsonMapping) -> bool:
    """Return whether a scheduler has tried the pod: it found no node, or failed to carry out its decision."""
    return _not_scheduled_because(pod) in ("Unschedulable", "SchedulerError")


def _not_scheduled_because(pod: JsonMapping) -> str:
    return str((condition_of(pod, SCHEDULED) or {}).get("reason") or "")


def nominated_node(pod: JsonMapping) -> str:
    """Return the node for which a pod is nominated: room is being made for it there. Empty if there is none."""
    return str((pod.get("status") or {}).get("nominatedNodeName") or "")


def scheduler_says(pod: JsonMapping) -> str | None:
    """Return a scheduler's words on why the pod has no node, None if it has said nothing."""
    condition = condition_of(pod, SCHEDULED) or {}
    return str(condition["message"]) if condition.get("status") == "False" and condition.get("message") else None


def resource_version(pod: JsonMapping) -> str:
    """Return which state of the pod this is."""
    return str((pod.get("metadata") or {}).get("resourceVersion") or "")


def later_version(one: str, other: str) -> str:
    """Return which of two resourceVersions of a pod is the later one; an empty one is the earliest."""
    return max(one, other, key=lambda version: int(version or 0))


def controller_uid(pod: JsonMapping) -> str:
    """Return the UID of the object that has made the pod and replaces it, such as a Job; empty if there is none."""
    maker = controller_of(pod.get("metadata") or {})
    return "" if maker is None else str(maker.get("uid") or "")


DAEMON_SET = "DaemonSet"


def is_of_daemon_set(pod: JsonMapping) -> bool:
    """Return whether a DaemonSet has made a pod."""
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    return any(each.get("kind") == DAEMON_SET and each.get("controller") for each in owners)


class Made(NamedTuple):
    """A Deployment's version of its pods."""

    name: str
    """The Deployment's."""
    template: str
    """A hash of the version's template."""


def deployment_of(pod: JsonMapping) -> Made | None:
    """Return which Deployment has made a pod, and of which version it is; None if none has.

    A ReplicaSet of a Deployment is called after that and the hash, which its pods have as a label.
    """
    metadata = pod.get("metadata") or {}
    template = _template_of(metadata.get("labels") or {})
    sets = (each for each in metadata.get("ownerReferences") or () if each.get("kind") == "ReplicaSet")
    name = next((str(each.get("name") or "") for each in sets if each.get("controller")), "")
    deployment = _deployments_name(name, template)
    return Made(deployment, template) if deployment else None


def is_finished(pod: JsonMapping) -> bool:
    """Return whether all containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_succeeded(pod: JsonMapping) -> bool:
    """Return whether all containers have done what they were to do."""
    return (pod.get("status") or {}).get("phase") == "Succeeded"


def has_ended(pod: JsonMapping) -> bool:
    """Return whether its kubelet has said that all containers of the pod have ended for good: then nothing of it runs.

    Kubernetes' garbage collector writes `Failed` without a word of the kubelet, where the node is gone or out of
    service: its containers may run on. Source: markFailedAndDeletePod in pkg/controller/podgc.
    """
    return is_finished(pod) and not _is_given_up(pod) and not any(map(_runs, _statuses(pod)))


def _runs(status: JsonMapping) -> bool:
    return "running" in (status.get("state") or {})


def _is_given_up(pod: JsonMapping) -> bool:
    """Return whether the garbage collector has written that the pod has failed."""
    return (condition_of(pod, "DisruptionTarget") or {}).get("reason") == "DeletionByPodGC"


def _statuses(pod: JsonMapping) -> Iterator[JsonMapping]:
    """Yield what the kubelet has reported of each container."""
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        yield from status.get(kind) or ()


def is_being_deleted(pod: JsonMapping) -> bool:
    """Return whether the pod is on its way out: the API server binds it to no node any more."""
    return bool(leaves_at(pod))


def may_be_placed(pod: JsonMapping) -> bool:
    """Return whether a pod without a node may still get one: it has not ended, and nobody has deleted it.

    A deleted one can stay for as long as a finalizer of some other program keeps it.
    """
    return not (is_being_deleted(pod) or is_finished(pod))


def has_started(pod: JsonMapping) -> bool:
    """Return whether a kubelet has ever taken the pod up: then processes of it may exist."""
    return bool(started_at(pod))


def is_ready(pod: JsonMapping) -> bool:
    """Return whether the pod serves: it runs, is Ready, and is not on its way out."""
    runs = (pod.get("status") or {}).get("phase") == "Running"
    return runs and is_true(pod, "Ready") and not is_being_deleted(pod)


NOT_ADMITTED = "UnexpectedAdmissionError"
"""The reason of a pod that has failed because its kubelet could not give it its devices (kubelet/lifecycle)."""

LONGEST_MESSAGE = 200


def not_admitted(pod: JsonMapping) -> str:
    """Return why the kubelet has not admitted the pod, and never will, in one line; empty if that was not so."""
    status = pod.get("status") or {}
    if status.get("reason") != NOT_ADMITTED:
        return ""
    said = " ".join(str(status.get("message") or "").split())[:LONGEST_MESSAGE].rstrip(".")
    return f"its kubelet did not admit it: {said or NOT_ADMITTED}"


def bound_at(pod: JsonMapping) -> str:
    """Return when the pod was bound, RFC 3339; empty if its status does not say. No user can write it."""
    condition = condition_of(pod, SCHEDULED) or {}
    return str(condition.get("lastTransitionTime") or "") if condition.get("status") == "True" else ""


def container_names(pod: JsonMapping) -> dict[str, str]:
    """Return the runtime's id of each of the pod's containers -> its name, as far as the kubelet has reported them."""
    found = (each for each in _statuses(pod) if each.get("containerID"))
    return {str(each["containerID"]).rpartition("//")[2]: str(each.get("name", "")) for each in found}


def bound_node(pod: JsonMapping) -> str:
    """Return the node that the pod is bound to, or an empty string."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def started_at(pod: JsonMapping) -> str:
    """Return when a kubelet has taken the pod up, RFC 3339; empty if none has."""
    return str((pod.get("status") or {}).get("startTime") or "")


def leaves_at(pod: JsonMapping) -> str:
    """Return when a pod that is being deleted will be gone, RFC 3339, its time to end included; empty for others."""
    return str((pod.get("metadata") or {}).get("deletionTimestamp") or "")


def grace_s(pod: JsonMapping) -> int:
    """Return how many seconds the pod may take to end once it is deleted."""
    given = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if given is None else int(given)


def leaves_slowly(pod: JsonMapping) -> bool:
    """Return whether it makes no sense to wait until the pod has left: the API server takes 63 bits of seconds."""
    return grace_s(pod) > LONGEST_GRACE_S


def may_preempt(pod: JsonMapping) -> bool:
    """Return whether the pod lets others be evicted for it."""
    return (pod.get("spec") or {}).get("preemptionPolicy") != "Never"


Read = TypeVar("Read")

REMEMBERED = 512
"""Texts, the latest: more than there are templates of which pods come at a time."""

LONGEST_TEXT_BYTES = 8 * 1024
"""Annotations and labels can take 256 KiB. Results for longer texts are not shared between pods."""

OF_POD = ("resources", "overhead", "runtimeClassName")
OF_CONTAINER = ("name", "resources", "restartPolicy")


class PodReader:
    """Reads pods without their ResourceClaims, in the vocabularies that it was given."""

    def __init__(self, dialects: Dialects) -> None:
        self.request = _remembering(lambda pod: pod_request(pod, dialects), _said_by)
        """What its containers ask for, see `pod_request`. Raises BadInput."""
        self.warnings = _remembering(lambda pod: pod_warnings(pod, dialects), _said_by)
        """What it says that has no effect, see `pod_warnings`."""
        self.host = _remembering(lambda pod: host_request(pod, dialects.elsewhere), _asked_by)
        """What it takes of its node beside cards, and how many of those that are only counted."""
        self.counted = _remembering(lambda pod: counted(pod, dialects), _asked_by)
        """What the kubelet asks device plugins for, see `counted`."""


def _remembering(
    read: Callable[[JsonMapping], Read], part_of: Callable[[JsonMapping], JsonMapping]
) -> Callable[[JsonMapping], Read]:
    """Return a reader of a part of a pod that reads it once for all pods in which it is equal."""

    @lru_cache(REMEMBERED)
    def read_text(text: bytes) -> Read:
        return read(orjson.loads(text))

    def remembered(pod: JsonMapping) -> Read:
        try:
            text = orjson.dumps(part_of(pod), option=orjson.OPT_PASSTHROUGH_DATETIME)
        except orjson.JSONEncodeError:  # a pod of a YAML file
            return read(pod)
        return read_text(text) if len(text) <= LONGEST_TEXT_BYTES else read_long(pod, text)

    in_use: WeakValueDictionary[bytes, Any] = WeakValueDictionary()  # hash of a long text -> what it says

    def read_long(pod: JsonMapping, text: bytes) -> Read:
        key = blake2b(text, digest_size=16).digest()
        found: Read | None = in_use.get(key)
        if found is None:
            found = read(pod)
            with suppress(TypeError):  # what is short is not shared
                in_use[key] = found
        return found

    return remembered


def _said_by(pod: JsonMapping) -> JsonMapping:
    """Return all of a pod that matters for what it asks for, and for what of that has no effect."""
    metadata = pod.get("metadata") or {}
    words = {"annotations": metadata.get("annotations"), "labels": metadata.get("labels")}
    return {"metadata": words, **_asked_by(pod)}


def _asked_by(pod: JsonMapping) -> JsonMapping:
    """Return all of a pod that matters for what it takes of its node, whatever is written to it in the meantime."""
    spec = pod.get("spec") or {}
    of_containers = {kind: [picked(each, OF_CONTAINER) for each in spec.get(kind) or ()] for kind in CONTAINERS}
    return {"spec": {**picked(spec, OF_POD), **of_containers}}


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """Names that a container has in its resources; empty where it has none for that."""

    count: str = ""
    memory: str = ""
    memory_percentage: str = ""
    cores: str = ""


OF_CLAIMS = ResourceNames(count="count", memory="capacity.requests.memory", cores="capacity.requests.cores")
"""The names of these amounts in a request of a ResourceClaim."""


def resource_names(pod: JsonMapping, container_name: str, dialects: Dialects) -> ResourceNames:
    """Return the names that a pod's container has, or a request of its claims; none if there is no such container."""
    if "/" in container_name:  # no container's name has one: it is a request of a claim
        return OF_CLAIMS
    found = next((each for each in all_containers(pod) if each.get("name") == container_name), None)
    resources = (found or {}).get("resources") or {}
    names = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}

    def first(kind: str) -> str:
        return next((name for each in dialects.vocabularies if (name := getattr(each, kind)) in names), "")

    return ResourceNames(*(first(kind) for kind in ("count", "memory", "memory_percentage", "cores")))
