"""ResourceClaims in tests: objects, and nodes that serve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.cluster import NODES, Cluster, pod
from gpuledger.agent.fake_nodes import FakeNode
from gpuledger.formats.resource_claims.names import DEVICE_CLASS, DRIVER, SERVES_CLAIMS_ANNOTATION

Json = dict[str, Any]

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
CLASSES = f"{API}/deviceclasses"

OUR_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DEVICE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def request(name: str = "gpu", **exactly: object) -> Json:
    """Return a request of a claim, by default for one whole card."""
    return {"name": name, "exactly": {"deviceClassName": DEVICE_CLASS, **exactly}}


def share(memory: str = "", cores: int | None = None, name: str = "gpu", **exactly: object) -> Json:
    """Return a request for a share of a card."""
    amounts = {"memory": memory} if memory else {}
    if cores is not None:
        amounts["cores"] = str(cores)
    return request(name, capacity={"requests": amounts}, **exactly)


def opaque(**parameters: object) -> Json:
    """Return a configuration with parameters of our driver."""
    share = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "Share", **parameters}
    return {"opaque": {"driver": DRIVER, "parameters": share}}


def claim_spec(*requests: Json, **devices: object) -> Json:
    """Return the spec of a claim."""
    return {"devices": {"requests": list(requests), **devices}}


def claim(name: str, *requests: Json, **devices: object) -> Json:
    """Return a ResourceClaim that pods can name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": claim_spec(*requests, **devices),
    }


def template(name: str, *requests: Json, **devices: object) -> Json:
    """Return a ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim_spec(*requests, **devices)},
    }


def claiming(
    name: str,
    templates: Sequence[str] = (),
    named: Sequence[str] = (),
    limits: Mapping[str, object] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod of our profile whose container uses claims: `c0`, `c1`, in this order."""
    claims = [{"resourceClaimTemplateName": each} for each in templates] + [
        {"resourceClaimName": each} for each in named
    ]
    listed = [{"name": f"c{number}", **each} for number, each in enumerate(claims)]
    body = pod(name, dict(limits or {}), resourceClaims=listed, **spec)
    body["spec"]["containers"][0]["resources"]["claims"] = [{"name": each["name"]} for each in listed]
    return body


def create_class(cluster: Cluster) -> None:
    """Create our DeviceClass, if it is not there."""
    if not any(each["metadata"]["name"] == DEVICE_CLASS for each in cluster.request("GET", CLASSES)["items"]):
        cluster.request("POST", CLASSES, OUR_CLASS)


def serve_claims(cluster: Cluster, *nodes: FakeNode) -> None:
    """Say of simulated nodes that they serve claims, as their agents do."""
    for node in nodes:
        change = {"metadata": {"annotations": {SERVES_CLAIMS_ANNOTATION: "true"}}}
        cluster.patch(f"{NODES}/{node.name}", change)


def claims(cluster: Cluster) -> dict[str, Json]:
    """Return name -> ResourceClaim, in the default namespace."""
    return {each["metadata"]["name"]: each for each in cluster.request("GET", CLAIMS)["items"]}


def claims_of(cluster: Cluster, pod_name: str) -> list[Json]:
    """Return the claims of a pod, in its order."""
    found = cluster.pod(pod_name)
    made = {each["name"]: each["resourceClaimName"] for each in found["status"].get("resourceClaimStatuses", [])}
    names = [made.get(each["name"]) or each["resourceClaimName"] for each in found["spec"]["resourceClaims"]]
    stored = claims(cluster)
    return [stored[name] for name in names]


def results(claim: Json) -> list[Json]:
    """Return what a claim was given, in the order of its requests."""
    return list(((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", []))
