"""Gangs, as pods declare them by labels or by naming a PodGroup, and the PodGroups of each API.

Of a PodGroup is read how many of its pods have to be bound at once, and whether they leave together. Sources:
scheduler-plugins' Coscheduling, Koordinator 1.8 (and Coscheduling before 0.23), Volcano 1.15, Kubernetes 1.36 and 1.37
(pkg/apis/scheduling). A JobSet (jobset.x-k8s.io/v1alpha2, jobset 0.10) says it of its own pods, if they have our label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from gpuledger.formats.quantity import whole_number
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import MOST_MEMBERS, Gang, GangName, GangWay, PodGroup
from gpuledger.model.json_object import Json, JsonMapping, Path, at, controller_of

GANG_LABEL = "gpuledger.dev/gang"
"""On pods: the name of their gang, which is one of their namespace."""

MINIMUM_LABEL = "gpuledger.dev/gang-minimum"
"""On pods of a gang: how many of its members have to be bound at once."""

LABEL_PAIRS = {  # way -> label with the name, label with the minimum
    GangWay.LABELS: (GANG_LABEL, MINIMUM_LABEL),
    # Coscheduling's first ones, which Koordinator and Alibaba Cloud's ACK still read.
    GangWay.LIGHTWEIGHT: (
        "pod-group.scheduling.sigs.k8s.io/name",
        "pod-group.scheduling.sigs.k8s.io/min-available",
    ),
}

JOB_SET_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""Of JobSet, on all its pods: the JobSet's name."""

GROUP_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
GROUP_SIZE_ANNOTATION = "leaderworkerset.sigs.k8s.io/size"
"""Of LeaderWorkerSet (lws 0.7), on all its pods: the number of the pod's group, and how many pods that has."""

LABELS: Path = ("metadata", "labels")
ANNOTATIONS: Path = ("metadata", "annotations")

_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SIZE_DIGITS = 9
SHOWN = 64
"""How much of a name is repeated that can be none."""


def _started_together(job_set: JsonMapping) -> int:
    """Return how many pods of a JobSet have our label: of all its jobs, or of some. Raises BadInput for odd numbers."""
    jobs, pods = at(job_set, ("spec", "replicatedJobs")), 0
    for each in jobs if isinstance(jobs, list) else ():
        if at(each, ("template", "spec", "template", "metadata", "labels", GANG_LABEL)):
            pods += _number(at(each, ("replicas",))) * _pods_at_once(at(each, ("template", "spec")))
    return pods


def _pods_at_once(job: object) -> int:
    """Return how many pods a Job has at a time. Raises BadInput."""
    completions, parallelism = at(job, ("completions",)), _number(at(job, ("parallelism",)))
    return parallelism if completions is None else min(parallelism, _number(completions))


def _number(said: object) -> int:
    if said is None:
        return 1
    if type(said) is not int:
        raise BadInput(f"{str(said)[:SHOWN]!r} is no number of jobs or pods")
    return said


@dataclass(frozen=True, slots=True)
class GroupWords:
    """One way to name a PodGroup: where the pod does, and which object it is."""

    way: GangWay
    system: str
    """Whose way it is."""
    named_at: tuple[Path, ...]
    """The places in the pod, the first of which counts."""
    api_group: str
    versions: tuple[str, ...]
    """The newest first."""
    minimum_at: Path
    """The place in the PodGroup. Absent: its pods are no gang."""
    minimum: Callable[[JsonMapping], object] | None = None
    """Returns it, where the object has other numbers there."""
    kind: str = "PodGroup"
    plural: str = "podgroups"

    @property
    def makes_pods(self) -> bool:
        """Return whether its object makes the pods, too."""
        return self.minimum is not None

    def said(self, group: JsonMapping) -> object:
        """Return what a PodGroup says of how many of its pods start together. Raises BadInput for odd numbers."""
        return at(group, self.minimum_at) if self.minimum is None else self.minimum(group)


PODGROUPS = (
    GroupWords(
        GangWay.KUBERNETES,
        "Kubernetes",
        (("spec", "schedulingGroup", "podGroupName"),),
        "scheduling.k8s.io",
        ("v1beta1", "v1alpha3", "v1alpha2"),
        ("spec", "schedulingPolicy", "gang", "minCount"),
    ),
    GroupWords(
        GangWay.COSCHEDULING,
        "Coscheduling",
        ((*LABELS, "scheduling.x-k8s.io/pod-group"),),
        "scheduling.x-k8s.io",
        ("v1alpha1",),
        ("spec", "minMember"),
    ),
    GroupWords(
        GangWay.KOORDINATOR,
        "Koordinator",
        ((*LABELS, "pod-group.scheduling.sigs.k8s.io"),),
        "scheduling.sigs.k8s.io",
        ("v1alpha1",),
        ("spec", "minMember"),
    ),
    GroupWords(
        GangWay.VOLCANO,
        "Volcano",
        ((*ANNOTATIONS, "scheduling.k8s.io/group-name"), (*ANNOTATIONS, "scheduling.volcano.sh/group-name")),
        "scheduling.volcano.sh",
        ("v1beta1",),
        ("spec", "minMember"),
    ),
    GroupWords(
        GangWay.JOB_SET,
        "JobSet",
        (),  # it takes our label, too
        "jobset.x-k8s.io",
        ("v1alpha2",),
        ("spec", "replicatedJobs"),
        _started_together,
        "JobSet",
        "jobsets",
    ),
)

OF_WAY = {words.way: words for words in PODGROUPS}

VOLCANO = OF_WAY[GangWay.VOLCANO]

NAMING_LABELS = (GANG_LABEL, *(place[-1] for words in PODGROUPS for place in words.named_at if place[:-1] == LABELS))
"""All labels that name a gang."""

_PLACES = tuple(place for words in PODGROUPS for place in words.named_at)
_KEYS = frozenset(label for pair in LABEL_PAIRS.values() for label in pair) | {place[-1] for place in _PLACES}
_ELSEWHERE = tuple(place for place in _PLACES if place[:-1] not in (LABELS, ANNOTATIONS))


def gang_name_of(pod: JsonMapping) -> GangName | None:
    """Return the name of a pod's gang, None if it has none. A minimum that can't be had does not matter."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    name = labels.get(GANG_LABEL)
    if not name or _is_of_job_set(pod):
        return next(iter(pod_groups_named(pod)), None)
    minimum = 0
    with suppress(BadInput):
        minimum = whole_number(labels.get(MINIMUM_LABEL, 0))
    return _named_by_label(pod, str(name), minimum, GangWay.LABELS)


def _named_by_label(pod: JsonMapping, name: str, minimum: int, way: GangWay) -> GangName:
    """Return the gang of a label's value. All groups of a LeaderWorkerSet have the same value: each is a gang.

    Unless more are to start together than a group has: then all groups are one gang.
    """
    index, size = (at(pod, LABELS) or {}).get(GROUP_INDEX_LABEL), group_size(pod)
    of_group = index is not None and size is not None and minimum <= size
    return GangName(_namespace(pod), f"{name}-{index}" if of_group else name, way)


def group_size(pod: JsonMapping) -> int | None:
    """Return how many pods the pod's group of a LeaderWorkerSet has; None if it is of none."""
    said = (at(pod, ANNOTATIONS) or {}).get(GROUP_SIZE_ANNOTATION)
    return (
        int(said) if isinstance(said, str) and said.isascii() and said.isdecimal() and len(said) < SIZE_DIGITS else None
    )


def gang_of(pod: JsonMapping) -> Gang | None:
    """Return the gang of a pod, None if it has none. Our labels win over what others call a gang.

    Raises BadInput for a minimum that can't be had, a name that can be none, and gangs named in two ways of others.
    """
    if _names_nothing(pod):
        return None
    own = _by_labels(pod, GangWay.LABELS)
    if own is not None:
        return own
    gang = _by_labels(pod, GangWay.LIGHTWEIGHT)
    named = [(words, place, name) for words in PODGROUPS for place, name in _names(pod, words)[:1]]
    if not named:
        return gang
    if gang or len(named) > 1:
        places = [
            *([f"label {LABEL_PAIRS[gang.name.way][0]}"] if gang else []),
            *(_place(place) for _, place, _ in named),
        ]
        raise BadInput(f"{' and '.join(places)} name two gangs: keep one of them, or say which by label {GANG_LABEL}")
    words, place, name = named[0]
    if not _OBJECT_NAME.fullmatch(name):
        raise BadInput(f"{_place(place)}: {name[:SHOWN]!r} can't be the name of a PodGroup")
    return Gang(GangName(_namespace(pod), name, words.way), 0)


def has_failed_alone(pod: JsonMapping) -> bool:
    """Return whether a member has failed, for which what has made its gang may make all of it anew.

    So do JobSet, LeaderWorkerSet and controllers of trainings; no Job by itself, which fails with its last try. A pod
    that is being deleted was told to end. LeaderWorkerSet does it as soon as a container was started again.
    """
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    maker = controller_of(metadata)
    labels = metadata.get("labels") or {}
    if maker is None or metadata.get("deletionTimestamp"):
        return False
    if maker.get("kind") == "Job" and JOB_SET_LABEL not in labels:
        return False
    started_again = any(each.get("restartCount") for each in status.get("containerStatuses") or ())
    return status.get("phase") == "Failed" or (GROUP_INDEX_LABEL in labels and started_again)


def _names_nothing(pod: JsonMapping) -> bool:
    """Return whether a pod has none of these words, as most have: each is asked several times."""
    metadata = pod.get("metadata") or {}
    given = (metadata.get("labels") or (), metadata.get("annotations") or ())
    return all(map(_KEYS.isdisjoint, given)) and not any(at(pod, place) for place in _ELSEWHERE)


def pod_groups_named(pod: JsonMapping) -> list[GangName]:
    """Return all PodGroups that a pod names, whether that counts or not."""
    return [
        GangName(_namespace(pod), name[:SHOWN], words.way) for words in PODGROUPS for _, name in _names(pod, words)[:1]
    ]


def described(name: GangName) -> str:
    """Return the source of a gang's name, for people: our label, or an object."""
    words = OF_WAY.get(name.way)
    if words is None:
        return f"label {LABEL_PAIRS[name.way][0]}={name.name}"
    if words.kind == words.system:
        return f"{words.kind} {name.name}"
    return f"{words.kind} {name.name} of {words.api_group} ({words.system})"


def _by_labels(pod: JsonMapping, way: GangWay) -> Gang | None:
    labels, (name_label, minimum_label) = at(pod, LABELS) or {}, LABEL_PAIRS[way]
    name, said = labels.get(name_label), labels.get(minimum_label)
    if not name:
        if said is not None:
            raise BadInput(f"label {minimum_label} says how many members a gang needs: name it by {name_label}")
        return None
    where = f"label {minimum_label}"
    if _is_of_job_set(pod) and way is GangWay.LABELS:
        return Gang(GangName(_namespace(pod), str(labels[JOB_SET_LABEL]), GangWay.JOB_SET), 0)
    if said is None:
        said, where = group_size(pod), f"annotation {GROUP_SIZE_ANNOTATION}"
    if said is None:
        raise BadInput(f"label {name_label} needs {minimum_label} beside it: how many members have to start together")
    try:
        minimum = whole_number(said)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if not 1 <= minimum <= MOST_MEMBERS:
        raise BadInput(f"{where}: {minimum} is not between 1 and {MOST_MEMBERS}")
    return Gang(_named_by_label(pod, str(name), minimum, way), minimum)


def _is_of_job_set(pod: JsonMapping) -> bool:
    """Return whether a pod leaves it to its JobSet how many start together."""
    labels = at(pod, LABELS) or {}
    has_both = labels.get(GANG_LABEL) and labels.get(JOB_SET_LABEL)
    return bool(has_both) and labels.get(MINIMUM_LABEL) is None and group_size(pod) is None


def _names(pod: JsonMapping, words: GroupWords) -> list[tuple[Path, str]]:
    if words.way is GangWay.JOB_SET:
        place = (*LABELS, JOB_SET_LABEL)
        return [(place, str(at(pod, place)))] if _is_of_job_set(pod) else []
    found = ((place, at(pod, place)) for place in words.named_at)
    return [(place, name) for place, name in found if name and isinstance(name, str)]


def _place(place: Path) -> str:
    kinds = {LABELS: "label", ANNOTATIONS: "annotation"}
    return f"{kinds[place[:-1]]} {place[-1]}" if place[:-1] in kinds else ".".join(place)


def _namespace(pod: JsonMapping) -> str:
    return str((pod.get("metadata") or {}).get("namespace") or "")


DISRUPTION = ("spec", "disruptionMode")
NAME_LENGTH = 253
"""Characters of a PriorityClass's name, at most."""

TOGETHER = "PodGroup"
"""Kubernetes 1.36's word for what is a key, `all`, from 1.37 on."""


class GroupPhase(StrEnum):
    """Of a PodGroup of Volcano, those that are written here.

    Source: https://github.com/volcano-sh/apis/blob/master/pkg/apis/scheduling/v1beta1/types.go
    """

    INQUEUE = "Inqueue"
    """Its pods may be made. Volcano's controller makes none of a Job before."""
    RUNNING = "Running"
    """As many pods have a node as start together."""
    COMPLETED = "Completed"
    """All of these have done their work."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What a PodGroup of Volcano says of its pods."""

    phase: str = ""
    running: int = 0
    succeeded: int = 0

    @classmethod
    def of(cls, group: JsonMapping) -> GroupStatus:
        """Read it; what can't be read is as if it were absent."""
        status = group.get("status")
        said = status if isinstance(status, Mapping) else {}
        running, succeeded = (n if type(n) is int else 0 for n in (said.get("running"), said.get("succeeded")))
        return cls(str(said.get("phase") or ""), running, succeeded)

    @classmethod
    def by_pods(cls, minimum: int, running: int, succeeded: int) -> GroupStatus:
        """Return what a group should say of which so many pods have a node, or have done their work."""
        phase = GroupPhase.INQUEUE
        if running + succeeded >= max(1, minimum):
            phase = GroupPhase.RUNNING if running else GroupPhase.COMPLETED
        return cls(phase.value, running, succeeded)

    def as_json(self) -> Json:
        """Return the fields of `status`; the conditions are Volcano's."""
        return {"phase": self.phase, "running": self.running, "succeeded": self.succeeded}


def name_of(group: JsonMapping, words: GroupWords) -> GangName:
    """Return which gang a PodGroup is about."""
    metadata = group.get("metadata") or {}
    return GangName(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""), words.way)


def pod_group(group: JsonMapping, words: GroupWords) -> PodGroup:
    """Return a PodGroup. Raises BadInput for an invalid minimum.

    Without one, or with 1, no pod has to wait for another: they are no gang.
    """
    place = f"{words.kind} {name_of(group, words)}: {'.'.join(words.minimum_at)}"
    try:
        said = words.said(group)
        minimum = 0 if said is None else whole_number(said)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None
    if minimum > MOST_MEMBERS:
        raise BadInput(f"{place}: {minimum} pods are more than {MOST_MEMBERS}")
    disruption, priority = at(group, DISRUPTION), at(group, ("spec", "priorityClassName"))
    return PodGroup(
        minimum=minimum if minimum > 1 else 0,
        leaves_whole=disruption == TOGETHER or (isinstance(disruption, Mapping) and "all" in disruption),
        priority_class=priority[:NAME_LENGTH] if isinstance(priority, str) else "",
    )
