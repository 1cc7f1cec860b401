"""ResourceClaims as the API server shows them."""

from collections.abc import Sequence
from typing import Any

from fakes.objects import a_pod_object
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, DRIVER
from gpuledger.formats.resource_claims.slices import device_name

Json = dict[str, Any]

OUR_CLASS: Json = {"metadata": {"name": DEVICE_CLASS}, "spec": {}}


def a_claim_spec(memory: str = "4000Mi", **exactly: Any) -> Json:
    """Return what a claim asks for: memory of one card, unless told otherwise."""
    wish = {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": {"memory": memory}}, **exactly}
    return {"devices": {"requests": [{"name": "gpu", "exactly": wish}]}}


def a_template(name: str = "quarter", **spec: Any) -> Json:
    """Return a ResourceClaimTemplate."""
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": a_claim_spec(**spec)}}


def a_resource_claim(
    name: str = "ours",
    node_name: str = "",
    cards: Sequence[str] = (),
    pods: Sequence[str] = (),
    owner: str = "",
    **spec: Any,
) -> Json:
    """Return a ResourceClaim with the UID `claim-NAME`, allocated to cards by UUID, and for pods by name."""
    metadata: Json = {"name": name, "namespace": "default", "uid": f"claim-{name}", "resourceVersion": "1"}
    if owner:
        metadata["ownerReferences"] = [{"kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}]
    results = [{"request": "gpu", "driver": DRIVER, "pool": node_name, "device": device_name(uuid)} for uuid in cards]
    status: Json = {"allocation": {"devices": {"results": results}}} if results else {}
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in pods]
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": a_claim_spec(**spec), "status": status}


def a_claiming_pod(name: str, template: str = "", named: str = "", made: str = "", **fields: Any) -> Json:
    """Return a pod with one claim, `gpu`: from a template, as which ResourceClaim it was made; or one that it names."""
    pod = a_pod_object(name, {}, **fields)
    given = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": named}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **given}]
    if made:
        pod["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": made}]
    return pod
