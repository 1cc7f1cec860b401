"""To which nodes a pod can go, cards aside, by those of kube-scheduler's rules that are evaluated here.

These are `unschedulable`, taints and tolerations, `nodeSelector`, required node affinity, CPU and memory. Not evaluated
are preferences, affinity between pods, spread constraints, volumes, host ports, other resources, the number of pods.
For people, the reason why a node is not one of them is a sentence with numbers.

Pods with the same constraints share their answers. Source: kube-scheduler's filter plugins. Left out, because they
can't differ between pods of one profile: taints of nodes, `unschedulable`, what the profile adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import orjson
from pydantic import BaseModel, ValidationError

from gpuledger.formats.kubernetes.pod import is_finished
from gpuledger.formats.quantity import counted_cards, host_capacity, host_request
from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import CONTAINERS, JsonMapping, picked
from gpuledger.model.request import NO_HOST, HostAmounts

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""The taint that an unschedulable node counts as having."""


class Taint(BaseModel):
    """A node's taint, which keeps pods off it that do not tolerate it."""

    key: str
    value: str | None = None
    effect: str

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


class Toleration(BaseModel):
    """A pod's toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None

    def covers(self, taint: Taint) -> bool:
        """Return whether a pod with this tolerates the taint."""
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and (self.value or "") == (taint.value or "")


class Expression(BaseModel):
    """A condition on a label, or on the node's name."""

    key: str
    operator: str
    values: list[str] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it."""
        value, wanted = labels.get(self.key), self.values or []
        match self.operator:
            case "In":
                return value in wanted
            case "NotIn":
                return value not in wanted
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value, wanted)
        return False

    def _compares(self, value: str | None, wanted: Sequence[str]) -> bool:
        try:
            number, limit = int(value or ""), int(wanted[0])
        except (ValueError, IndexError):
            return False
        return number > limit if self.operator == "Gt" else number < limit


class Term(BaseModel):
    """Conditions that all must hold. Without any, none is met."""

    matchExpressions: list[Expression] | None = None  # noqa: N815 - Kubernetes' spelling
    matchFields: list[Expression] | None = None  # noqa: N815

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node meets it."""
        expressions, fields = self.matchExpressions or [], self.matchFields or []
        return bool(expressions or fields) and (
            all(each.holds(labels) for each in expressions)
            and all(each.holds({"metadata.name": name}) for each in fields)
        )


class _Required(BaseModel):
    nodeSelectorTerms: list[Term]  # noqa: N815


class _NodeAffinity(BaseModel):
    requiredDuringSchedulingIgnoredDuringExecution: _Required | None = None  # noqa: N815


class _Affinity(BaseModel):
    nodeAffinity: _NodeAffinity | None = None  # noqa: N815


class _PodSpec(BaseModel):
    nodeSelector: dict[str, str] | None = None  # noqa: N815
    affinity: _Affinity | None = None
    tolerations: list[Toleration] | None = None


class _NodeSpec(BaseModel):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class _Labels(BaseModel):
    labels: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PodRules:
    """A pod's demands on a node beside cards."""

    selector: Mapping[str, str]
    terms: tuple[Term, ...] | None
    """One of these must hold; None if the pod names none."""
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class NodeRules:
    """A node's properties that count for schedulers."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]


def pod_rules(pod: JsonMapping) -> PodRules:
    """Read a pod's demands. Raises BadInput."""
    try:
        spec = _PodSpec.model_validate(pod.get("spec") or {})
    except ValidationError as error:
        raise BadInput(_first(error, "spec")) from None
    affinity = spec.affinity.nodeAffinity if spec.affinity else None
    required = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity else None
    terms = None if required is None else tuple(required.nodeSelectorTerms)
    return PodRules(spec.nodeSelector or {}, terms, tuple(spec.tolerations or ()))


def node_rules(node: JsonMapping) -> NodeRules:
    """Read what a node says. Raises BadInput."""
    try:
        spec = _NodeSpec.model_validate(node.get("spec") or {})
        labels = _Labels.model_validate(node["metadata"]).labels or {}
    except ValidationError as error:
        raise BadInput(_first(error, "node")) from None
    taints = [taint for taint in spec.taints or () if taint.effect in ("NoSchedule", "NoExecute")]
    if spec.unschedulable and all(taint.key != UNSCHEDULABLE for taint in taints):
        taints.append(Taint(key=UNSCHEDULABLE, effect="NoSchedule"))
    return NodeRules(node["metadata"]["name"], labels, tuple(taints))


def refused_by_rules(pod: PodRules, node: NodeRules) -> tuple[str, str] | None:
    """Return a code and a sentence on why kube-scheduler would not take the node, or None.

    The sentence is the same for all nodes of which the same is true.
    """
    for taint in node.taints:
        if not any(toleration.covers(taint) for toleration in pod.tolerations):
            if taint.key == UNSCHEDULABLE:
                return "unschedulable", "the node is cordoned"
            return "taint", f"the pod does not tolerate the taint {taint}"
    for key, value in pod.selector.items():
        if node.labels.get(key) != value:
            return "node-selector", f"the node lacks the label {key}={value} of the pod's nodeSelector"
    if pod.terms is not None and not any(term.holds(node.name, node.labels) for term in pod.terms):
        return "node-affinity", "the node does not meet the pod's required node affinity"
    return None


def refused_by_host(asked: HostAmounts, free: HostAmounts | None) -> tuple[str, str] | None:
    """Return why a node's CPU and memory are not enough, or None; what is not known is enough."""
    if free is None:
        return None
    if asked.cpu_milli > free.cpu_milli:
        return "host-cpu", "not enough CPU on the node"
    if asked.memory_mib > free.memory_mib:
        return "host-memory", "not enough memory on the node"
    return None


def _first(error: ValidationError, where: str) -> str:
    found = error.errors(include_url=False)[0]
    return f"{'.'.join([where, *(str(part) for part in found['loc'])])}: {found['msg']}"


RESOURCES_LOOKED_AT = 8
"""Of those that kube-scheduler names."""

_HOSTS_OWN = ("cpu", "memory")


def against_rules(pod: JsonMapping, node: JsonMapping) -> tuple[str, str] | None:
    """Return a code and a sentence where taints, cordon, selector or affinity keep a pod off a node, else None."""
    try:
        return refused_by_rules(pod_rules(pod), node_rules(node))
    except BadInput:
        return None


Taken = tuple[HostAmounts, ...]
"""The amounts that a pod takes of its node: of CPU and memory, and after that, as cards, of each resource in
question."""


def taken_of(pod: JsonMapping, short_of: Sequence[str]) -> Taken | None:
    """Return the amounts that a pod takes of its node, None if it has ended; `short_of` as in `lacking`."""
    names = ("", *short_of[:RESOURCES_LOOKED_AT])
    return None if is_finished(pod) else tuple(host_request(pod, name) for name in names)


def lacking(
    pod: JsonMapping, node: JsonMapping, others: Sequence[Taken], short_of: Sequence[str]
) -> tuple[str, str] | None:
    """Return a code and a sentence on the first resource of which a node has too little for a pod, else None.

    `others` are the pods that are bound to it, and live; `short_of` are the resources that kube-scheduler has named.
    """
    names = short_of[:RESOURCES_LOOKED_AT]
    of_host, *of_names = (sum((each[place] for each in others), NO_HOST) for place in range(1 + len(names)))
    return (
        _host_lacks(pod, node, of_host)
        or next(filter(None, (_lacks(pod, node, *each) for each in zip(names, of_names, strict=True))), None)
        or _full(node, len(others))
    )


def _host_lacks(pod: JsonMapping, node: JsonMapping, taken: HostAmounts) -> tuple[str, str] | None:
    capacity = host_capacity(node)
    if capacity is None:
        return None
    asked, free = host_request(pod), capacity - taken
    if asked.cpu_milli > free.cpu_milli:
        free_text, all_text = _cpus(free.cpu_milli), _cpus(capacity.cpu_milli)
        return "host-cpu", f"asks for {_cpus(asked.cpu_milli)} CPUs, and {free_text} of {all_text} are free"
    if asked.memory_mib > free.memory_mib:
        free_text = f"{max(free.memory_mib, 0):,} of {capacity.memory_mib:,} MiB"
        return "host-memory", f"asks for {asked.memory_mib:,} MiB of the node's memory, and {free_text} are free"
    return None


def _lacks(pod: JsonMapping, node: JsonMapping, name: str, taken: HostAmounts) -> tuple[str, str] | None:
    asked, offered = host_request(pod, name).cards, counted_cards(node, name)
    if name in _HOSTS_OWN or not asked:
        return None
    if not offered:
        return "resource", f"asks for {name}, of which the node offers none"
    free = offered - taken.cards
    if asked > free:
        return "resource", f"asks for {asked:,} {name}, and {max(free, 0):,} of {offered:,} are free"
    return None


def _full(node: JsonMapping, pods: int) -> tuple[str, str] | None:
    most = counted_cards(node, "pods")
    return ("pods", f"has as many pods as it may: {most}") if most and pods >= most else None


def _cpus(milli: int) -> str:
    return f"{max(milli, 0) / 1000:,g}"


OF_POD = (
    "affinity",
    "hostNetwork",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
)
OF_CONTAINERS = ("ports", "resources", "restartPolicy")
ANYWHERE = frozenset(("configMap", "downwardAPI", "emptyDir", "hostPath", "image", "projected", "secret"))
"""Volumes that any node can mount. The API server adds one to each pod, with a name of its own."""


def where_it_can_go(pod: JsonMapping) -> str:
    """Return a key that is equal only for pods that can go to the same nodes. It may differ for others that can.

    32 characters, as users choose how much decides it.
    """
    spec = pod.get("spec") or {}
    found = picked(spec, OF_POD)
    for kind in CONTAINERS:
        found[kind] = [{name: each.get(name) for name in OF_CONTAINERS} for each in spec.get(kind) or ()]
    found["volumes"] = [each for each in spec.get("volumes") or () if not ANYWHERE.intersection(each)]
    return blake2b(orjson.dumps(found, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


MOST_BYTES = 8 * 1024
"""As JSON; users choose how long they are."""

POD_CONSTRAINTS = ("schedulerName", "nodeSelector", "affinity", "tolerations", "resources", "overhead", "hostNetwork")
OF_CONTAINER = ("resources", "restartPolicy", "ports")
DEPENDS_ON_OTHERS = ("topologySpreadConstraints", "resourceClaims", "schedulingGates")


def demands_on_nodes(pod: JsonMapping) -> bytes | None:
    """Return 16 bytes that are the same for pods to which kube-scheduler would allow the same nodes.

    None where that depends on more than the node, such as other pods, volumes or claims, and for very long demands.
    """
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity") or any(map(spec.get, DEPENDS_ON_OTHERS)):
        return None
    if not all(volume.keys() <= {"name", *ANYWHERE} for volume in spec.get("volumes") or ()):
        return None
    containers = [[_stated(each, OF_CONTAINER) for each in spec.get(kind) or ()] for kind in CONTAINERS]
    text = orjson.dumps([_stated(spec, POD_CONSTRAINTS), containers], option=orjson.OPT_SORT_KEYS)
    return blake2b(text, digest_size=16).digest() if len(text) <= MOST_BYTES else None


def _stated(found: JsonMapping, names: tuple[str, ...]) -> JsonMapping:
    return {name: found[name] for name in names if found.get(name)}
