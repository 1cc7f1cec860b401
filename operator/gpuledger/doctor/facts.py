"""The facts of a cluster, what of it could not be read, and the permissions that our accounts need.

Pure data, so that a check can be tried with any. A test compares the permissions with the roles in manifests/.
`differences` compares two objects that should be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from gpuledger.formats.custom_resource.reservation import PLURAL as RESERVATIONS
from gpuledger.formats.custom_resource.stored_card import GROUP, PLURAL
from gpuledger.formats.custom_resource.usage import PLURAL as USAGES
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.gang import PODGROUPS, VOLCANO
from gpuledger.formats.kubernetes.other import LEASE_NAME, LEASE_NAMESPACE
from gpuledger.formats.kubernetes.pod import scheduler_says
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeConfigs


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource."""

    verb: str
    resource: str
    """With its subresource: pods/binding."""
    group: str = ""
    namespace: str = ""
    """Empty: in all of them."""
    name: str = ""
    """Of the one object; empty: of any."""
    role: str = ""
    """The role of Kubernetes' own that grants it; empty: a role of our manifests."""

    def attributes(self) -> dict[str, Any]:
        """Return it as `resourceAttributes` of an access review."""
        resource, _, subresource = self.resource.partition("/")
        found = {"verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource}
        found |= {"namespace": self.namespace, "name": self.name}
        return {key: value for key, value in found.items() if value}

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{name}{where}"


def _each(verbs: str, resource: str, group: str = "", **fields: str) -> tuple[Permission, ...]:
    return tuple(Permission(verb, resource, group, **fields) for verb in verbs.split())


LEASES = "coordination.k8s.io"
KUEUE = "kueue.x-k8s.io"
KUEUES = ("workloads", "admissionchecks", "resourceflavors", "clusterqueues", "cohorts")

RESOURCE = "resource.k8s.io"
CLAIMS = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")

OPERATOR = (
    *_each("get list watch patch delete", "pods"),
    *_each("get list watch", "nodes"),
    *_each("get", "namespaces"),
    *_each("patch", "pods/status"),
    *_each("create", "pods/binding"),
    *_each("create", "pods/eviction"),
    *_each("list", "poddisruptionbudgets", "policy"),
    *_each("create", "events"),
    *_each("list watch", "resourcequotas"),
    *_each("patch", "resourcequotas/status"),
    *(each for words in PODGROUPS for each in _each("list watch", words.plural, words.api_group)),
    *_each("patch", VOLCANO.plural, VOLCANO.api_group),
    *(each for kind in KUEUES for each in _each("get list watch", kind, KUEUE)),
    *_each("patch", "workloads/status", KUEUE),
    *_each("patch", "admissionchecks/status", KUEUE),
    *(each for kind in CLAIMS for each in _each("get list watch", kind, RESOURCE)),
    *_each("patch", "resourceclaims", RESOURCE),
    *_each("patch", "resourceclaims/status", RESOURCE),
    *_each("patch", "resourceclaims/binding", RESOURCE),
    *_each("get list watch create patch delete", PLURAL, GROUP),
    *_each("patch", f"{PLURAL}/status", GROUP),
    *_each("get list watch", RESERVATIONS, GROUP),
    *_each("patch", f"{RESERVATIONS}/status", GROUP),
    *_each("get list create deletecollection", USAGES, GROUP),
    *_each("patch", f"{USAGES}/status", GROUP),
    *_each("get", "priorityclasses", "scheduling.k8s.io"),
    *_each("create", "leases", LEASES, namespace=LEASE_NAMESPACE),
    *_each("get list watch update", "leases", LEASES, namespace=LEASE_NAMESPACE, name=LEASE_NAME),
    *_each("list watch", "jobs", "batch", namespace=LEASE_NAMESPACE),
)
"""Permissions that the operator's own role has to grant."""

BESIDE = (
    Permission("list", "csinodes", "storage.k8s.io", role="system:kube-scheduler"),
    Permission("patch", "persistentvolumes", role="system:volume-scheduler"),
    Permission("create", "tokenreviews", "authentication.k8s.io", role="system:auth-delegator"),
    Permission(
        "get",
        "configmaps",
        namespace="kube-system",
        name="extension-apiserver-authentication",
        role="extension-apiserver-authentication-reader",
    ),
)
"""One permission of each role of Kubernetes' own that the same account has, for kube-scheduler."""

AGENT = (
    *_each("get list watch patch", "nodes"),
    *_each("get list watch", "pods"),
    *_each("get list", PLURAL, GROUP),
    *_each("get list watch create update delete", "resourceslices", RESOURCE),
    *_each("create", "events", namespace="default"),
)
"""Permissions that the node agents' roles have to grant."""

OVER_HAMI = Permission("patch", "nodes")
"""Permissions that the operator also needs where nodes run HAMi's device plugin, or with keep_nodes_in_use."""

GROWTH = Permission("create", "pods", namespace=LEASE_NAMESPACE)
"""Permission that the operator also needs where it asks for nodes by stand-ins."""

BY_SETTING = (OVER_HAMI, GROWTH)

AS_INIT = (Permission("get", "customresourcedefinitions", "apiextensions.k8s.io", name=f"{PLURAL}.{GROUP}"),)
"""Permissions that the doctor itself also needs in the operator's pod."""


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read."""

    what: str
    """Such as "the Nodes"."""
    why: str
    needs: str
    """The permission or option that would make it readable."""


class NotCheckedError(Exception):
    """A check asked for what could not be read."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread.what)
        self.unread = unread


def known(value: Value | Unread) -> Value:
    """Return the value. Raises NotCheckedError if it could not be read."""
    if isinstance(value, Unread):
        raise NotCheckedError(value)
    return value


@dataclass(frozen=True, slots=True)
class Release:
    """The objects that this release would install in a cluster with these settings."""

    dialects: Dialects
    scheduler_names: tuple[str, ...]
    version: str
    """Of the doctor itself."""
    policies: Sequence[Json]
    """Policies and their bindings, of all kinds."""
    webhooks: Sequence[Json]
    """The webhook's configurations, with no address."""
    scheduler_config: Json
    preemption: str = "auto"
    topology: bool = False
    """Whether nodes or cards are chosen by how cards are connected."""
    with_cdi: bool = True
    native_gangs: bool = False
    resource_claims: bool = False
    webhook_port: int = 0
    isolation: str = "auto"
    """How nodes of our agent keep shares apart, unless their own configuration says."""
    hides_pods: bool = True
    """Whether autoscalers are to leave alone pods with cards."""
    keep_nodes: bool = False
    has_stand_ins: bool = False
    """Whether nodes are asked for by pods."""
    """Whether they are told to keep nodes whose cards are held."""
    only_labelled: bool = False
    """Whether admission is for labelled namespaces alone."""
    nodes: NodeConfigs | None = None
    """What single nodes have of their own; None where that can't be read."""


@dataclass(frozen=True, slots=True)
class AccountAccess:
    """The permissions that were checked for an account, and those that it lacks."""

    account: str
    denied: tuple[Permission, ...]


_NOT_ASKED = Unread("", "it was not requested", "")


@dataclass(frozen=True, slots=True)
class Facts:
    """A cluster, as far as it was read. `None` is what is certainly not there."""

    local_time: datetime
    """When the API server's clock was read, by ours."""
    server_time: datetime | Unread = _NOT_ASKED
    release: Release | Unread = _NOT_ASKED
    version: tuple[int, int] | Unread = _NOT_ASKED
    """Of the API server: major, minor."""
    crd: Json | Unread | None = _NOT_ASKED
    policies: Mapping[tuple[str, str], Json] | Unread = _NOT_ASKED
    """(Kind, name) -> policy or binding whose name begins like ours."""
    webhooks: Sequence[Json] | Unread = _NOT_ASKED
    """Webhook configurations named gpuledger."""
    settings: Mapping[str, Mapping[str, object]] | Unread = _NOT_ASKED
    """Whose settings these are -> option -> value, with the defaults."""
    operator_access: AccountAccess | Unread = _NOT_ASKED
    agent_access: AccountAccess | Unread = _NOT_ASKED
    lease: Json | Unread | None = _NOT_ASKED
    """The schedulers' Lease."""
    deployment: Json | Unread | None = _NOT_ASKED
    """Of operator and kube-scheduler."""
    operator_elsewhere: str = ""
    """Address of an operator that answers there and is no pod of the Deployment; empty if none is known."""
    daemon_set: Json | Unread | None = _NOT_ASKED
    """Of the node agents."""
    scheduler_configs: Mapping[str, Json] | Unread = field(default_factory=dict)
    """Where it was found -> a kube-scheduler's configuration that was not rendered where it is used."""
    our_pods: Sequence[Json] | Unread = _NOT_ASKED
    """Pods of our namespace."""
    last_words: Mapping[str, str] = field(default_factory=dict)
    """Name of a pod of ours that is not Ready -> the end of its log, or why it can't be read."""
    nodes: Sequence[Json] | Unread = _NOT_ASKED
    cards: Mapping[str, str] | Unread = _NOT_ASKED
    """Name of a GPUAllocation, the card's UUID in lower case -> its phase."""
    claims: Sequence[Json] | Unread | None = _NOT_ASKED
    """ResourceClaims of all namespaces; None where the API server has no resource.k8s.io/v1."""
    claims_held: frozenset[str] | Unread = _NOT_ASKED
    """UIDs of the claims that the ledger has cards for."""
    pods_held: frozenset[str] | Unread = _NOT_ASKED
    """UIDs of the pods that the ledger has cards for."""
    device_class: Json | Unread | None = _NOT_ASKED
    """Ours, for claims."""
    pods: Sequence[Json] | Unread = _NOT_ASKED
    """Pods of all namespaces that have not ended."""
    namespaces: Sequence[Json] | Unread = _NOT_ASKED
    karpenter: Json | Unread | None = _NOT_ASKED
    """The CRD of its NodePools."""
    cluster_autoscaler: Json | Unread | None = _NOT_ASKED
    """Its Lease."""
    node_leases: Sequence[Json] | Unread = _NOT_ASKED
    """Leases by which kubelets say that they live."""


NAME_LABEL = "app.kubernetes.io/name"
OPERATOR_APP = "gpuledger"
AGENT_APP = "gpuledger-agent"

LONGEST_WORDS = 300
"""How many characters of a program's message are shown."""


def name_of(found: Json) -> str:
    """Return an object's name."""
    return str((found.get("metadata") or {}).get("name") or "")


def labels_of(found: Json) -> Mapping[str, str]:
    """Return an object's labels."""
    return (found.get("metadata") or {}).get("labels") or {}


def pods_of_app(pods: Sequence[Json], app: str) -> list[Json]:
    """Return our pods of one kind; those that are on their way out do not count."""
    return [
        pod
        for pod in pods
        if labels_of(pod).get(NAME_LABEL) == app
        and pod["metadata"].get("namespace") == LEASE_NAMESPACE
        and not pod["metadata"].get("deletionTimestamp")
    ]


def why_not_ready(pod: Json, last_words: Mapping[str, str]) -> str:
    """Return the reason why a pod is not Ready, by its status and by its log. `last_words`: pod -> end of its log."""
    if not (pod.get("spec") or {}).get("nodeName"):
        return f"it has no node: {scheduler_says(pod) or 'no scheduler has reported why'}"
    container = failing_container(pod)
    if container is None:
        return f"its phase is {(pod.get('status') or {}).get('phase', 'unknown')}"
    problem = _problem(container)
    described = f": {problem}" if problem else " runs, but reports that it is not ready"
    log = f"; its log: {last_words[name_of(pod)]}" if name_of(pod) in last_words else ""
    return f"container {container.get('name')}{described}{log}"


def failing_container(pod: Json) -> Json | None:
    """Return the status of the container that keeps a pod from being Ready, None if its status names none."""
    status = pod.get("status") or {}
    main = status.get("containerStatuses") or ()
    failed = [each for each in (*(status.get("initContainerStatuses") or ()), *main) if _problem(each)]
    return next(iter([*failed, *(each for each in main if not each.get("ready"))]), None)


def last_complaint(log: Sequence[str]) -> str:
    """Return the last line of a log that is an error, else a warning, else its last one; without its time."""
    lines = [line.strip() for line in log if line.strip()]
    for level in (" ERROR ", " WARNING "):
        if found := [line for line in lines if level in line]:
            return found[-1].partition(level)[2].strip()[:LONGEST_WORDS]
    return lines[-1][:LONGEST_WORDS] if lines else "it is empty"


def _problem(container: Json) -> str:
    state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    if ended and ended.get("exitCode"):
        return f"ended with {ended['exitCode']}" + _message(ended)
    if waiting.get("reason") and waiting["reason"] not in ("PodInitializing", "ContainerCreating"):
        before = f", after it exited with {last['exitCode']}{_message(last)}" if last.get("exitCode") else ""
        return f"{waiting['reason']}{_message(waiting)}{before}"
    return ""


def _message(state: Json) -> str:
    text = " ".join(str(state.get("message") or "").split())
    return f": {text[:LONGEST_WORDS]}" if text else ""


def version_in(text: str) -> tuple[int, int] | None:
    """Return major and minor version in a text such as "v1.36.3" or "containerd://1.7.2", None if it has none."""
    found = re.search(r"(?:^|[:/v])(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def time_of(text: object) -> datetime | None:
    """Return a time that Kubernetes has written, None if there is none."""
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


def claims_held(statuses: Iterable[Json]) -> frozenset[str]:
    """Return the UIDs of the ResourceClaims by which pods hold cards, by the statuses of GPUAllocations."""
    holders = (holder for status in statuses for holder in status.get("holders") or ())
    parts = (part for holder in holders for part in holder.get("containers") or ())
    return frozenset(str(part["claim"]["uid"]) for part in parts if part.get("claim"))


def pods_held(statuses: Iterable[Json]) -> frozenset[str]:
    """Return the UIDs of the pods that hold cards, by the statuses of GPUAllocations."""
    return frozenset(str(holder["podUID"]) for status in statuses for holder in status.get("holders") or ())


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


DEFAULTS = {"matchPolicy": "Equivalent", "scope": "*", "priority": 0}
"""Key -> what the API server fills in. Empty lists and mappings, which it adds too, never count."""


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which an object is not as wanted. Fields that the API server fills in by itself are none."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in wanted | found:
            inner = f"{path}.{key}" if path else str(key)
            if key not in found:
                if not _is_filled_in(key, wanted[key]):
                    yield inner
            elif key not in wanted:
                if not _is_filled_in(key, found[key]):
                    yield inner
            else:
                yield from differences(wanted[key], found[key], inner)
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield path
        else:
            for position, (one, other) in enumerate(zip(wanted, found, strict=True)):
                yield from differences(one, other, f"{path}[{position}]")
    elif _spaced_alike(wanted) != _spaced_alike(found):
        yield path


_TOKEN = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\s*([^\w\s])\s*|\s+""")


def _spaced_alike(value: Any) -> Any:
    """Return a text with one space between its words and none elsewhere: Helm writes a policy's lists without any."""
    if not isinstance(value, str):
        return value
    return _TOKEN.sub(lambda token: token[1] or token[2] or " ", value).strip()


def _is_filled_in(key: str, value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_filled_in(*item) for item in value.items())
    return value in (None, []) or (key in DEFAULTS and DEFAULTS[key] == value)
