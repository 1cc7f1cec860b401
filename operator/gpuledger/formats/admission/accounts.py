"""Rules on writes: annotations that steer device plugins, our own account, and the node agents."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.formats.custom_resource.cel import literal
from gpuledger.formats.dialects.assignments import (
    CLASSIC_INDEX,
    HAMI_ALLOCATED,
    HAMI_BIND_TIME,
    HAMI_NODE,
    HAMI_TIME,
    HAMI_TO_ALLOCATE,
    VOLCANO_ALLOCATED,
    VOLCANO_BIND_TIME,
    VOLCANO_NODE,
    VOLCANO_PHASE,
    VOLCANO_TIME,
    VOLCANO_TO_ALLOCATE,
)
from gpuledger.formats.dialects.vendors import vendor_rows
from gpuledger.formats.dialects.vocabulary import HAMI_PHASE
from gpuledger.formats.objects.devices import DEVICES_ANNOTATION
from gpuledger.formats.objects.lease import LEASE_NAMESPACE
from gpuledger.formats.objects.resource_quota import PREFIX as QUOTA_PREFIX

Json = dict[str, Any]

OPERATOR = f"system:serviceaccount:{LEASE_NAMESPACE}:gpuledger"
"""The account of operator and kube-scheduler."""

AGENT = f"system:serviceaccount:{LEASE_NAMESPACE}:gpuledger-agent"
"""The account of the node agents, one token for each node."""

OUR_PREFIX = "gpuledger.dev/"
NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"  # noqa: S105 - the name of a claim
"""The claim by which the API server names the node of a token's pod."""

FOREIGN_ANNOTATIONS = (
    HAMI_NODE,
    HAMI_TIME,
    HAMI_TO_ALLOCATE,
    HAMI_ALLOCATED,
    HAMI_BIND_TIME,
    HAMI_PHASE,
    VOLCANO_NODE,
    VOLCANO_TIME,
    VOLCANO_ALLOCATED,
    VOLCANO_TO_ALLOCATE,
    VOLCANO_BIND_TIME,
    VOLCANO_PHASE,
    CLASSIC_INDEX,
)
"""Annotations of schedulers for HAMi's and Volcano's device plugins. Users' wishes have other names."""


@functools.cache
def vendors_annotations() -> tuple[str, ...]:
    """Return the annotations by which the table tells other vendors' own device plugins of a pod's cards."""
    every = (each for row in vendor_rows() if (each := row.assignment_annotations()) is not None)
    return tuple(sorted({name for each in every for name in each.others}))


FOREIGN_PREFIX = "hami.io/"
FOREIGN_ENDINGS = ("-to-allocate", "-allocated")
"""Beginning and end of HAMi's annotations for other vendors' cards."""


ONLY_OURS = (
    f"the annotation {DEVICES_ANNOTATION} says which GPUs a pod got, and only gpuledger writes it: "
    "leave it out of what you create, and as it is in what you change"
)
ONLY_SCHEDULERS = "only schedulers tell device plugins which GPUs a pod got: leave out the annotation "


def not_from(account: str) -> Json:
    """Return the condition that a request is from anybody else."""
    return {"name": "from-others", "expression": f"request.userInfo.username != {literal(account)}"}


def only_from(account: str) -> Json:
    """Return the condition that a request is from this account."""
    return {"name": "from-this-account", "expression": f"request.userInfo.username == {literal(account)}"}


def changes_our_annotation() -> Json:
    """Return the condition by which requests that leave our annotation as it is are let go at once.

    The API server converts a pod once for the conditions of a policy, and three times more if all of them hold.
    """
    return {"name": "changes-its-cards", "expression": f"object.{_OUR_VALUE} != {_OLD_VALUE}"}


def devices_validations() -> list[Json]:
    """Return the rule that our annotation stays as it is: on new pods, changed ones, and on Bindings."""
    return [{"expression": f"object.{_OUR_VALUE} == {_OLD_VALUE}", "message": ONLY_OURS}]


_OUR_VALUE = f"metadata.?annotations[?{literal(DEVICES_ANNOTATION)}]"
_OLD_VALUE = f"(oldObject == null ? optional.none() : oldObject.{_OUR_VALUE})"


def foreign_variables() -> list[Json]:
    """Return the variable of the rule below: what a request says that only schedulers may say."""
    return [
        {"name": "found", "expression": f"object.metadata.?annotations.orValue({{}}).filter(k,\n  {_is_foreign()})"}
    ]


def with_our_annotation() -> Json:
    """Return the condition that a new pod says itself which cards it got."""
    expression = f"{literal(DEVICES_ANNOTATION)} in object.metadata.?annotations.orValue({{}})"
    return {"name": "says-its-cards", "expression": expression}


def with_foreign_annotations() -> Json:
    """Return the condition that a new pod, or a Binding, steers device plugins itself."""
    expression = f"object.metadata.?annotations.orValue({{}}).exists(k,\n  {_is_foreign()})"
    return {"name": "steers-device-plugins", "expression": expression}


def forged(annotations: Mapping[str, object]) -> str:
    """Return what to say of the annotations of a new pod that is not from us, an empty string for nothing."""
    if DEVICES_ANNOTATION in annotations:
        return ONLY_OURS
    foreign = {*FOREIGN_ANNOTATIONS, *vendors_annotations()}
    found = sorted(
        name
        for name in annotations
        if name in foreign or (name.startswith(FOREIGN_PREFIX) and name.endswith(FOREIGN_ENDINGS))
    )
    return ONLY_SCHEDULERS + ", ".join(found) if found else ""


def _is_foreign() -> str:
    """Return the expression that an annotation `k` is one that only schedulers write."""
    endings = " || ".join(f"k.endsWith({literal(ending)})" for ending in FOREIGN_ENDINGS)
    names = literal((*FOREIGN_ANNOTATIONS, *vendors_annotations()))
    return f"k in {names} ||\n  k.startsWith('{FOREIGN_PREFIX}') && ({endings})"


def foreign_validations() -> list[Json]:
    """Return the rule that only schedulers steer device plugins, at creation: later on, the plugins write there too."""
    return [
        {
            "expression": "variables.found.size() == 0",
            "messageExpression": f"'{ONLY_SCHEDULERS}' + variables.found.join(', ')",
        }
    ]


def own_validations(annotations: Sequence[str]) -> list[Json]:
    """Return the rules on what our own account changes of a pod: these annotations, and the status."""
    same = "object.{0} == oldObject.{0}".format
    kept = ("labels", "finalizers", "ownerReferences")
    return [
        {"expression": same("spec"), "message": "gpuledger does not change what pods are: spec is the user's"},
        {
            "expression": " &&\n".join(same(f"metadata.?{field}") for field in kept),
            "message": f"gpuledger does not change {', '.join(kept)} of pods",
        },
        {
            "expression": unchanged(f"k in {literal(annotations)}"),
            "message": f"of a pod's annotations, gpuledger changes only {', '.join(annotations)}",
        },
    ]


def own_quota_validations() -> list[Json]:
    """Return the rules on what our own account changes of a ResourceQuota: what is used of the keys that we count."""
    kept = ("spec", "status.?hard", "metadata.?labels", "metadata.?annotations", "metadata.?finalizers")
    ours = f"k.startsWith({literal(QUOTA_PREFIX)}) && k.contains('/')"
    return [
        {
            "expression": " &&\n".join(f"object.{field} == oldObject.{field}" for field in kept),
            "message": "gpuledger changes nothing of a ResourceQuota but what is used",
        },
        {
            "expression": unchanged(ours, "status.?used", "status.used"),
            "message": f"of a ResourceQuota's keys, gpuledger shows only what is used of {QUOTA_PREFIX}DOMAIN/NAME",
        },
    ]


NODE_STATUS = (
    "?conditions",
    "?addresses",
    "?nodeInfo",
    "?images",
    "?daemonEndpoints",
    "?phase",
    "?volumesInUse",
    "?volumesAttached",
)
"""The parts of a Node's status beside its amounts that all supported versions of Kubernetes know."""


def agent_validations(capacity: Sequence[str] = ()) -> list[Json]:
    """Return the rules on what a node agent changes: annotations of ours, on the node that its token is for.

    `capacity` are the amounts that it shows there, too.
    """
    node = f"request.userInfo.?extra[?{literal(NODE_OF_TOKEN)}][?0].orValue('')"
    status = tuple(f"status.{part}" for part in NODE_STATUS) if capacity else ("?status",)
    kept = ("?spec", *status, "metadata.?labels", "metadata.?finalizers", "metadata.?ownerReferences")
    ours = f"k in [{', '.join(map(literal, capacity))}]"
    amounts = [
        {
            "expression": unchanged(ours, f"status.?{amount}", f"status.{amount}"),
            "message": f"of its node's {amount}, a node agent changes only {' and '.join(capacity)}",
        }
        for amount in (("capacity", "allocatable") if capacity else ())
    ]
    return [
        {
            "expression": f"object.metadata.name == {node}",
            "messageExpression": f"'a node agent changes its own node: its token is for ' +\n"
            f"  ({node} == '' ? 'no node' : 'node ' + {node}) + ', not for ' + object.metadata.name",
        },
        {
            "expression": " &&\n".join(f"object.{field} == oldObject.{field}" for field in kept),
            "message": f"a node agent changes annotations under {OUR_PREFIX}, and nothing else of its node",
        },
        {
            "expression": unchanged(f"k.startsWith({literal(OUR_PREFIX)})"),
            "message": f"of its node's annotations, a node agent changes only those under {OUR_PREFIX}",
        },
        *amounts,
    ]


def unchanged(except_for: str, where: str = "metadata.?annotations", there: str = "metadata.annotations") -> str:
    """Return the expression that no key `k` of a map has come, gone or changed but those of which something holds."""
    return (
        f"object.{where}.orValue({{}}).all(k, {except_for} ||\n"
        f"  oldObject.{where}[?k] == optional.of(object.{there}[k])) &&\n"
        f"oldObject.{where}.orValue({{}}).all(k, {except_for} ||\n"
        f"  k in object.{where}.orValue({{}}))"
    )
