"""The permissions that our accounts need, in one place. A test compares it with the roles in manifests/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuledger.formats.custom_resource.resource import GROUP, PLURAL
from gpuledger.formats.objects.gang import PODGROUPS
from gpuledger.formats.objects.lease import LEASE_NAME, LEASE_NAMESPACE


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
KUEUES = ("workloads", "admissionchecks", "resourceflavors", "clusterqueues")

RESOURCE = "resource.k8s.io"
CLAIMS = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")

OPERATOR = (
    *_each("get list watch patch delete", "pods"),
    *_each("get list watch", "nodes"),
    *_each("patch", "pods/status"),
    *_each("create", "pods/binding"),
    *_each("create", "pods/eviction"),
    *_each("list", "poddisruptionbudgets", "policy"),
    *_each("create", "events"),
    *_each("list watch", "resourcequotas"),
    *_each("patch", "resourcequotas/status"),
    *(each for words in PODGROUPS for each in _each("list watch", "podgroups", words.api_group)),
    *(each for kind in KUEUES for each in _each("get list watch", kind, KUEUE)),
    *_each("patch", "workloads/status", KUEUE),
    *_each("patch", "admissionchecks/status", KUEUE),
    *(each for kind in CLAIMS for each in _each("get list watch", kind, RESOURCE)),
    *_each("patch", "resourceclaims", RESOURCE),
    *_each("patch", "resourceclaims/status", RESOURCE),
    *_each("patch", "resourceclaims/binding", RESOURCE),
    *_each("get list watch create patch delete", PLURAL, GROUP),
    *_each("patch", f"{PLURAL}/status", GROUP),
    *_each("create", "leases", LEASES, namespace=LEASE_NAMESPACE),
    *_each("get list watch update", "leases", LEASES, namespace=LEASE_NAMESPACE, name=LEASE_NAME),
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
"""Permissions that the operator also needs where nodes run HAMi's device plugin."""

AS_INIT = (Permission("get", "customresourcedefinitions", "apiextensions.k8s.io", name=f"{PLURAL}.{GROUP}"),)
"""Permissions that the doctor itself also needs in the operator's pod."""
