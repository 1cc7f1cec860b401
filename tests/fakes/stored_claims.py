"""ResourceClaims, templates and DeviceClasses as the API server stores them, and pods that bring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger.formats.resource_claims.listed import ListedClaims
from gpuledger.formats.resource_claims.names import DEVICE_CLASS, DRIVER

Json = dict[str, Any]

OUR_CLASS: Json = {
    "metadata": {"name": DEVICE_CLASS, "uid": "class"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
FOREIGN_CLASS: Json = {
    "metadata": {"name": "nic", "uid": "nic"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}]},
}


def exactly(name: str = "gpu", memory: str = "", cores: str = "", **fields: Any) -> Json:
    """Return a request, of our class unless the fields say otherwise."""
    amounts = {key: value for key, value in (("memory", memory), ("cores", cores)) if value}
    capacity = {"capacity": {"requests": amounts}} if amounts else {}
    return {"name": name, "exactly": {"deviceClassName": DEVICE_CLASS, **capacity, **fields}}


def parameters(requests: Sequence[str] = (), **fields: Any) -> Json:
    """Return a configuration of our driver."""
    share = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "Share", **fields}
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": share}}


def a_template(name: str, *requests: Json, **devices: Any) -> Json:
    """Return a ResourceClaimTemplate in the default namespace."""
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"template-{name}"}, "spec": {"spec": spec}}


def a_claim(name: str, *requests: Json, owner: str = "", status: Json | None = None, **metadata: Any) -> Json:
    """Return a ResourceClaim in the default namespace; `owner` is the UID of the pod that it was made for."""
    owners = [{"kind": "Pod", "controller": True, "uid": owner, "name": "its-pod"}] if owner else []
    body = {"name": name, "namespace": "default", "uid": f"claim-{name}", "resourceVersion": "1", **metadata}
    spec = {"devices": {"requests": list(requests)}}
    return {"metadata": {**body, "ownerReferences": owners}, "spec": spec, "status": status or {}}


def allocated(node_name: str, *consumers: str, driver: str = DRIVER) -> Json:
    """Return the status of a claim that has a card of a node, and may be used by these pods."""
    result = {"request": "gpu", "driver": driver, "pool": node_name, "device": "gpu-0"}
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in consumers]
    return {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}


def claiming(*claims: Json, uid: str = "pod", made: dict[str, str] | None = None, **spec: Any) -> Json:
    """Return a pod whose only container uses all of these claims; `made` are the claims of its templates, by name."""
    used = [{"name": each["name"]} for each in claims]
    containers = [{"name": "main", "image": "none", "resources": {"claims": used}}]
    statuses = [{"name": name, "resourceClaimName": object_name} for name, object_name in (made or {}).items()]
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"schedulerName": "gpuledger", "resourceClaims": list(claims), "containers": containers, **spec},
        "status": {"resourceClaimStatuses": statuses},
    }


def by_template(name: str, template: str) -> Json:
    """Return a claim of a pod that is to be made from a template."""
    return {"name": name, "resourceClaimTemplateName": template}


def by_name(name: str, claim: str) -> Json:
    """Return a claim of a pod that exists by itself."""
    return {"name": name, "resourceClaimName": claim}


def known(*objects: Json, holders: dict[str, str] | None = None) -> ListedClaims:
    """Return what is known: our class and that of others, and these objects."""
    claims = [each for each in objects if str(each["metadata"]["uid"]).startswith("claim-")]
    templates = [each for each in objects if str(each["metadata"]["uid"]).startswith("template-")]
    classes = [each for each in objects if each not in claims and each not in templates]
    return ListedClaims(claims, templates, [OUR_CLASS, FOREIGN_CLASS, *classes], holders)
