"""ResourceQuotas, PodDisruptionBudgets, Events and conditions, the Lease, and tokens, as far as GPUs depend on them.

Kubernetes counts `requests.` of extended resources, and can't multiply the cards of a container by the memory that it
requests of each. Keys that begin with `limits.` it stores and leaves alone: these are HAMi's (`pkg/device/quota.go` of
2.10), and counted by gpuledger only. A dot and a part of a model's name behind such a key restrict it to cards of that
model.

A PodDisruptionBudget (policy/v1) says how many of its pods may be evicted now. Where several cover one pod, each has to
allow its eviction.

Somebody who may work in one namespace, and nothing else, proves that to the operator by a token of one of the
namespace's service accounts, for an audience of our own: only those who have `edit` there, or run there, may create it,
and nobody else takes such a token for anything. It comes in a header of its own, because the API server takes
`Authorization` out of what it passes on to a Service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from gpuledger.formats.annotations import OWN_NAMESPACE
from gpuledger.formats.dialects.vocabulary import Dialects, Vocabulary
from gpuledger.formats.quantity import whole_number
from gpuledger.model.card import ALL_CORES
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import Counted, QuotaLimit, dashed
from gpuledger.model.json_object import Json, JsonMapping
from gpuledger.model.share import Pod

LONGEST_SELECTOR = 16 * 1024
"""Characters: a request with a longer one is near what servers take, and budgets are read by the dozen."""

_OPERATORS = {"In": "in", "NotIn": "notin"}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many more evictions a budget allows, and of which pods of its namespace."""

    namespace: str
    name: str
    allowed: int
    selector: str | None
    """A label selector as a list takes it; empty for all pods, None for none of them."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def budget(found: Mapping[str, Any]) -> Budget:
    """Return a PodDisruptionBudget. One without a status yet allows nothing, as for the API server.

    Raises BadInput for a selector that is too long for a request.
    """
    metadata, status = found["metadata"], found.get("status") or {}
    selector = (found.get("spec") or {}).get("selector")
    words = None if selector is None else label_selector(selector)
    if words is not None and len(words) > LONGEST_SELECTOR:
        raise BadInput(f"the selector of {metadata['name']} has {len(words):,} characters: shorten it")
    return Budget(
        namespace=metadata["namespace"],
        name=metadata["name"],
        allowed=int(status.get("disruptionsAllowed") or 0),
        selector=words,
    )


def label_selector(selector: Mapping[str, Any]) -> str:
    """Return a LabelSelector in the words of a list's `labelSelector`."""
    parts = [f"{name}={value}" for name, value in (selector.get("matchLabels") or {}).items()]
    for wanted in selector.get("matchExpressions") or ():
        name, operator = wanted["key"], wanted["operator"]
        if operator in _OPERATORS:
            parts.append(f"{name} {_OPERATORS[operator]} ({','.join(wanted.get('values') or ())})")
        else:
            parts.append(name if operator == "Exists" else f"!{name}")
    return ",".join(parts)


@dataclass(frozen=True, slots=True)
class AuditRun:
    """An audit that has ended."""

    ended_s: float
    """In Unix seconds."""
    differs: bool | None
    """Whether it found differences; None if it could not compare."""


def audit_run(job: JsonMapping) -> AuditRun | None:
    """Return how the Job of an audit has ended, None if it has not.

    By its podFailurePolicy, it fails at once where the audit exits with 1, for differences. Anything else is retried.
    """
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            ended_s = datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
            if condition["type"] == "Complete":
                return AuditRun(ended_s, differs=False)
            return AuditRun(ended_s, differs=True if condition.get("reason") == "PodFailurePolicy" else None)
    return None


PREFIX = "limits."

MOST_LIMITS = 64
"""Of one ResourceQuota: each is looked at for each pod of its namespace."""

SCOPED = "it has scopes, and shares are counted for all pods of a namespace alike: take them off, or the keys"


class _Key(NamedTuple):
    counted: Counted
    unit: int
    """How many MiB, percent or slots one is."""
    vendor: str
    model: str


def limits_of(quota: JsonMapping, dialects: Dialects) -> tuple[list[QuotaLimit], list[str]]:
    """Return the limits of a ResourceQuota, and sentences on those that can't be used. Other keys are not ours."""
    spec = quota.get("spec") or {}
    name = str((quota.get("metadata") or {}).get("name") or "")
    found: list[QuotaLimit] = []
    problems: list[str] = []
    keys = _keys(dialects)
    for key, said in sorted((spec.get("hard") or {}).items()):
        known = _read(key, keys)
        if known is None:
            continue
        if len(found) + len(problems) >= MOST_LIMITS:
            problems.append(f"{key}: it is one key more than {MOST_LIMITS} that are read")
            break
        if spec.get("scopes") or spec.get("scopeSelector"):
            problems.append(f"{key}: {SCOPED}")
            continue
        try:
            most = whole_number(said) * known.unit
        except BadInput as error:
            problems.append(f"{key}: {error}")
            continue
        found.append(QuotaLimit(name, key, known.counted, most, known.vendor, known.model, known.unit))
    return found, problems


def used_of(quota: JsonMapping, limits: Iterable[QuotaLimit]) -> dict[str, int]:
    """Return the used amounts of these limits in a ResourceQuota's status, by their keys, as far as it has them."""
    said = (quota.get("status") or {}).get("used") or {}
    found: dict[str, int] = {}
    for limit in limits:
        with suppress(BadInput):
            found[limit.key] = whole_number(said.get(limit.key))
    return found


def _read(key: str, keys: Mapping[str, _Key]) -> _Key | None:
    """Return the meaning of a key, None if it is not ours; behind a resource's name, a model can follow."""
    name = key.removeprefix(PREFIX)
    if name == key:
        return None
    if name in keys:
        return keys[name]
    beginnings = (known for known in keys if name.startswith(f"{known}."))
    known = max(beginnings, key=len, default=None)
    if known is None:
        return None
    return keys[known]._replace(model=dashed(name.removeprefix(f"{known}.")))


def _keys(dialects: Dialects) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    for vocabulary in dialects.vocabularies:
        for name, counted, unit in _counted(vocabulary):
            if name:
                found.setdefault(name, _Key(counted, unit, vocabulary.vendor, dashed(vocabulary.model)))
    return found


def _counted(words: Vocabulary) -> Iterator[tuple[str, Counted, int]]:
    """Yield the names of resources whose amounts can be added up, and how much one is."""
    if words.totals:  # memory in bytes, and cores that stand for cards
        return
    if not words.count_is_cores:
        yield words.count, Counted.SLOTS, 1
    if not words.memory_in_bytes:
        yield words.memory, Counted.MEMORY, words.memory_unit_mib
    if words.cores_in_percent or words.cores_of_card == ALL_CORES:
        yield words.cores, Counted.CORES, 1


LEASE_NAMESPACE = OWN_NAMESPACE
LEASE_NAME = "gpuledger-scheduler"

LEASE_DURATION_S = 10
"""How long a kube-scheduler that says nothing keeps the Lease, from when the others have last seen it renewed."""

RENEW_DEADLINE_S = 8
"""After this time without an answer to its renewals a kube-scheduler ends: before another one can begin."""

RETRY_PERIOD_S = 1
"""How often the Lease is renewed, and checked by the candidates: they wait up to 2.2 times as long."""


def holder_host_name(lease: Mapping[str, Any]) -> str:
    """Return the host name of the kube-scheduler that holds the Lease, an empty string if none does.

    Source: kube-scheduler's identity is its host name and a UUID, joined by an underscore. In a pod the host name is
    the pod's name, for all of its containers.
    """
    identity = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return identity.rpartition("_")[0]


AUDIENCE = "gpuledger.dev/explain"
HISTORY_AUDIENCE = "gpuledger.dev/history"
TOKEN_HEADER = "X-Gpuledger-Token"  # noqa: S105 - a name

SERVICE = "gpuledger-explain"
PORT_NAME = "explain"

TOKEN_LIFETIME_S = 600
"""The shortest that the API server gives."""

_ACCOUNT = "system:serviceaccount:"


def token_request() -> Json:
    """Return the body of a TokenRequest for such a token."""
    spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_LIFETIME_S}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def namespace_of_account(username: str) -> str:
    """Return the namespace of the service account with this user name; empty if it is none's."""
    namespace, _, name = username.removeprefix(_ACCOUNT).partition(":")
    return namespace if username.startswith(_ACCOUNT) and name else ""


def in_good_order(pod: Pod) -> Json:
    """Return the options to delete a pod that gets at least a second to end.

    One that asks for no time at all is dropped by the API server at once, and no kubelet confirms its end: its cards
    would have to be kept for a while.
    """
    grace = {} if pod.grace_s else {"gracePeriodSeconds": 1}
    return {**grace, "preconditions": {"uid": pod.uid}}


def eviction(pod: Pod, dry_run: bool = False) -> Json:
    """Return the body of an Eviction, which PodDisruptionBudgets can forbid; a dry run only asks whether they do."""
    options = in_good_order(pod) | ({"dryRun": ["All"]} if dry_run else {})
    named = {"name": pod.name, "namespace": pod.namespace}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named, "deleteOptions": options}


MESSAGE_LENGTH = 1024
"""Kubernetes' limit."""

NAME_LENGTH = 253
DIGEST_LENGTH = 16


def node_event(node_name: str, reason: str, sentence: str, now: datetime) -> Json:
    """Return a warning about a Node. It has no namespace, so its events are in the default one."""
    # The kubelet's convention: a Node's name stands for its UID.
    return _event({"kind": "Node", "name": node_name, "uid": node_name}, "default", "Warning", reason, sentence, now)


def pod_event(pod: Pod, warning: bool, reason: str, sentence: str, now: datetime) -> Json:
    """Return a warning, or good news, about a Pod."""
    about = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    return _event(about, pod.namespace, "Warning" if warning else "Normal", reason, sentence, now)


def node_event_once(node_name: str, reason: str, sentence: str, now: datetime, key: str) -> Json:
    """Return the same under a name that only this node and key have: a second one is refused as existing."""
    event = node_event(node_name, reason, sentence, now)
    return event | {"metadata": {"name": _name(node_name, f"{node_name}/{reason}/{key}"), "namespace": "default"}}


def quota_event_once(namespace: str, quota: str, reason: str, sentence: str, now: datetime, key: str) -> Json:
    """Return a warning about a ResourceQuota, under a name that only this quota and key have."""
    about = {"kind": "ResourceQuota", "namespace": namespace, "name": quota}
    event = _event(about, namespace, "Warning", reason, sentence, now)
    return event | {"metadata": {"name": _name(quota, f"{namespace}/{quota}/{reason}/{key}"), "namespace": namespace}}


def named_once(event: Json, pod: Pod, key: str) -> Json:
    """Return an event under a name that only this pod and key have: a second one is refused as existing."""
    return event | {
        "metadata": {"name": _name(pod.name, f"{pod.uid}/{event['reason']}/{key}"), "namespace": pod.namespace}
    }


def _name(of: str, key: str) -> str:
    digest = sha256(key.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{of[: NAME_LENGTH - DIGEST_LENGTH - 1].rstrip('.-')}.{digest}"


def _event(about: Json, namespace: str, kind: str, reason: str, sentence: str, now: datetime) -> Json:
    moment = rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "gpuledger-", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", **about},
        "type": kind,
        "reason": reason,
        "message": sentence[:MESSAGE_LENGTH],
        "source": {"component": "gpuledger"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


ALLOCATED = "GPUAllocated"


def condition_of(pod: Mapping[str, Any], kind: str) -> Json | None:
    """Return a condition of a pod, None if it has none of this type."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def is_true(found: JsonMapping, kind: str) -> bool:
    """Return whether a condition of an object is true."""
    return (condition_of(found, kind) or {}).get("status") == "True"


def shortened(message: str) -> str:
    """Return a message as it is stored."""
    return message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…"


def disruption_target(message: str, now: str, reason: str) -> Json:
    """Return the condition of a pod that is about to be deleted; `now` is RFC 3339.

    A Job's podFailurePolicy reads it, and kube-scheduler writes the like before its own preemptions. Source:
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    return _condition("DisruptionTarget", "True", reason, message, now)


def allocated_condition(status: str, reason: str, message: str, now: str) -> Json:
    """Return the condition. `reason` is one word; `now` is RFC 3339."""
    return _condition(ALLOCATED, status, reason, message, now)


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": shortened(message),
        "lastTransitionTime": now,
    }


def condition_reason(words: str) -> str:
    """Spell a reason as conditions do: `no-memory` is `NoMemory`."""
    return "".join(word.capitalize() for word in words.split("-"))
