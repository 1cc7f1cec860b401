"""Every write to the API server. All are idempotent, or refused by a precondition when repeated.

The writes of a kubelet are for simulated nodes alone. Kueue's objects are of the newest version that Kueue 0.19 has.
`KubeStore` is reads and writes together, as the workflows use them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from gpuledger.formats.custom_resource.reservation import PLURAL
from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.formats.custom_resource.usage import PLURAL as USAGE_PLURAL
from gpuledger.formats.custom_resource.usage import records_of
from gpuledger.formats.kubernetes.gang import VOLCANO
from gpuledger.formats.kubernetes.other import eviction, in_good_order
from gpuledger.formats.kubernetes.workload import GROUP, OWNER_LABEL
from gpuledger.kube_api.client import KubeClient, Page
from gpuledger.kube_api.reads import (
    ALLOCATIONS,
    NODES,
    RESOURCE_SLICES,
    KubeReads,
    claims_in,
    groups_of,
    pods_in,
    quotas_in,
)
from gpuledger.model.errors import ApiError, Conflict, EvictionForbidden, Unreachable
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod

logger = logging.getLogger(__name__)

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

NO_MANAGERS = {"op": "add", "path": "/metadata/managedFields", "value": [{}]}
"""Has the API server forget who wrote which field, and not note it again until a client applies the object. It would
cost a sixth of every later write of the card, and two fifths of its size.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields"""


EVICTION_TIMEOUT_S = 20.0
"""For 10 s the API server itself tries to evict a pod whose name another one has by now, before it says so."""


class KubeWrites:
    """Typed names for the requests that change something."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def create_allocation(self, allocation: Json) -> Json:
        """Create a card. Raises Conflict if it exists."""
        return await self._client.request("POST", ALLOCATIONS, allocation)

    async def forget_managers(self, name: str) -> Json | None:
        """Have a card's writes cost less; its creation notes a manager, which no request can prevent.

        Returns None if the API server does not: they cost a little more then.
        """
        path = f"{ALLOCATIONS}/{name}"
        try:
            return await self._client.request("PATCH", path, [NO_MANAGERS], content_type=JSON_PATCH)
        except ApiError as error:
            logger.info("%s: %s; its writes cost a little more", path, error)
            return None

    async def replace_allocation_spec(self, name: str, allocation: Json) -> Json:
        """Change what a card is. Raises Invalid if a rule of the ledger refuses it."""
        operations = [
            {"op": "add", "path": "/spec", "value": allocation["spec"]},
            {"op": "add", "path": "/metadata/labels", "value": allocation["metadata"]["labels"]},
            NO_MANAGERS,
        ]
        return await self._client.request("PATCH", f"{ALLOCATIONS}/{name}", operations, content_type=JSON_PATCH)

    async def patch_allocation_status(self, name: str, operations: Sequence[Json], timeout_s: float) -> Json:
        """Change who holds a card, by JSON patch. Raises Invalid if a rule of the ledger refuses it."""
        path = f"{ALLOCATIONS}/{name}/status"
        return await self._client.request("PATCH", path, operations, content_type=JSON_PATCH, timeout_s=timeout_s)

    async def delete_allocation(self, name: str, resource_version: int) -> None:
        """Delete a card if it is unchanged. Raises Conflict if it is not."""
        preconditions = {"preconditions": {"resourceVersion": str(resource_version)}}
        await self._client.request("DELETE", f"{ALLOCATIONS}/{name}", preconditions)

    async def bind_pod(
        self, pod: Pod, resource_version: str, node_name: str, annotations: dict[str, str], timeout_s: float
    ) -> None:
        """Bind a pod to a node and annotate it, in one write.

        Raises Conflict if the pod is bound already, is being deleted, has another UID by now, or has changed since
        that resourceVersion.
        """
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "resourceVersion": resource_version,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        path = f"{pods_in(pod.namespace)}/{pod.name}/binding"
        await self._client.request("POST", path, binding, timeout_s=timeout_s)

    async def create_pod(self, body: Json) -> Json:
        """Create a pod, in the namespace that it names; return it as it is stored. Raises Conflict if it exists."""
        return await self._client.request("POST", pods_in(body["metadata"]["namespace"]), body)

    async def evict_pod(self, pod: Pod, dry_run: bool = False) -> None:
        """Have a pod leave in good order, if its PodDisruptionBudgets allow that; a dry run only asks whether they do.

        The API server writes the condition DisruptionTarget before it deletes the pod. Raises NotFound if the pod is
        gone, Conflict if another pod has its name, and EvictionForbidden if a budget forbids the eviction.
        """
        try:
            path = f"{pods_in(pod.namespace)}/{pod.name}/eviction"
            await self._client.request("POST", path, eviction(pod, dry_run), timeout_s=EVICTION_TIMEOUT_S)
        except Unreachable as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            raise EvictionForbidden(str(error), error.status, error.retry_after_s) from error

    async def delete_pod(self, pod: Pod) -> None:
        """Have a pod leave in good order, whatever its PodDisruptionBudgets say.

        Raises NotFound if it is gone, Conflict if another pod has its name.
        """
        await self._client.request("DELETE", f"{pods_in(pod.namespace)}/{pod.name}", in_good_order(pod))

    async def annotate_pod(self, pod: Pod, name: str, value: str) -> Json:
        """Set one annotation of a pod; return the pod as it is then.

        Raises NotFound if there is no such pod, and Replaced, which is one, if another pod has its name.
        """
        change = {"metadata": {"uid": pod.uid, "annotations": {name: value}}}
        path = f"{pods_in(pod.namespace)}/{pod.name}"
        return await self._client.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def set_pod_condition(self, pod: Pod, condition: Json) -> None:
        """Set one condition of a pod, leaving the others.

        Raises NotFound if there is no such pod, and Replaced, which is one, if another pod has its name.
        """
        change = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        path = f"{pods_in(pod.namespace)}/{pod.name}/status"
        await self._client.request("PATCH", path, change, content_type=STRATEGIC_PATCH)

    async def set_claim_status(self, claim: Json, fields: Json) -> Json:
        """Set some fields of a ResourceClaim's status, None removes one; return the claim as it is then.

        `claim` is as it was read: raises Conflict if it has changed since, and NotFound.
        """
        path = f"{claims_in(claim['metadata']['namespace'])}/{claim['metadata']['name']}/status"
        change = {"metadata": _as_read(claim), "status": fields}
        return await self._client.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def protect_claim(self, claim: Json, finalizer: str) -> Json:
        """Add a finalizer to a ResourceClaim; return the claim as it is then. Raises Conflict and NotFound likewise."""
        path = f"{claims_in(claim['metadata']['namespace'])}/{claim['metadata']['name']}"
        finalizers = [*(claim["metadata"].get("finalizers") or ()), finalizer]
        change = {"metadata": {**_as_read(claim), "finalizers": finalizers}}
        return await self._client.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def nominate_pod(self, pod: Pod, node_name: str, resource_version: str = "") -> Json:
        """Nominate a pod for a node, or for none if it is empty; return the pod as it is then.

        Raises NotFound if there is no such pod, Replaced, which is one, if another pod has its name, and Conflict if it
        has changed since that version, where one is given.
        """
        metadata = {"uid": pod.uid, **({"resourceVersion": resource_version} if resource_version else {})}
        change = {"metadata": metadata, "status": {"nominatedNodeName": node_name or None}}
        path = f"{pods_in(pod.namespace)}/{pod.name}/status"
        return await self._client.request("PATCH", path, change, content_type=STRATEGIC_PATCH)

    async def annotate_node(self, name: str, values: Mapping[str, str | None], resource_version: str) -> None:
        """Set annotations of a node, None removes one, if it has not changed since that version.

        Raises Conflict if it has, and NotFound.
        """
        change = {"metadata": {"resourceVersion": resource_version, "annotations": dict(values)}}
        await self._client.request("PATCH", f"{NODES}/{name}", change, content_type=MERGE_PATCH)

    async def annotate_own_node(self, name: str, annotation: str, value: str) -> None:
        """Set one annotation of a node that no other client should write, or remove it for an empty value.

        Raises NotFound.
        """
        change = {"metadata": {"annotations": {annotation: value or None}}}
        await self._client.request("PATCH", f"{NODES}/{name}", change, content_type=MERGE_PATCH)

    async def set_own_capacity(self, name: str, amounts: Mapping[str, str]) -> None:
        """Set some amounts of a node's capacity that no other client should write. Raises NotFound."""
        change = {"status": {"capacity": dict(amounts), "allocatable": dict(amounts)}}
        await self._client.request("PATCH", f"{NODES}/{name}/status", change, content_type=MERGE_PATCH)

    async def set_group_status(self, namespace: str, name: str, uid: str, status: Json) -> Json:
        """Write fields of the status of Volcano's PodGroup. Raises Conflict if it is another one by now.

        In the definition of Volcano 1.15 the status is a part of the object like others, and has no path of its own.
        """
        path = groups_of(VOLCANO.api_group, VOLCANO.versions[0], f"namespaces/{namespace}/{VOLCANO.plural}/{name}")
        change = {"metadata": {"uid": uid}, "status": status}
        return await self._client.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def set_quota_used(self, namespace: str, name: str, uid: str, used: Mapping[str, str]) -> None:
        """Set what the status of a ResourceQuota says is used of some keys, leaving those of others.

        Raises NotFound if there is none, and Replaced, which is one, if another quota has its name.
        """
        change = {"metadata": {"uid": uid}, "status": {"used": dict(used)}}
        path = f"{quotas_in(namespace)}/{name}/status"
        await self._client.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def create_slice(self, body: Json) -> Json:
        """Create a ResourceSlice; return it as it is stored. Raises Conflict if it exists."""
        return await self._client.request("POST", RESOURCE_SLICES, body)

    async def replace_slice(self, body: Json) -> Json:
        """Replace a ResourceSlice that has not changed; return it as it is stored. Raises Conflict if it has."""
        return await self._client.request("PUT", f"{RESOURCE_SLICES}/{body['metadata']['name']}", body)

    async def delete_slice(self, name: str) -> None:
        """Delete a ResourceSlice. Raises NotFound."""
        await self._client.request("DELETE", f"{RESOURCE_SLICES}/{name}")

    async def create_event(self, event: Json) -> None:
        """Create an Event, in the namespace that it names."""
        await self._client.request("POST", f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)


def _as_read(found: Json) -> Json:
    """Return fields that make a patch fail if the object has changed since it was read, or is another one."""
    return {"uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]}


class KubeletWrites:
    """Typed names for a kubelet's requests. All are idempotent."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def put_node(self, node: Json, status: Json) -> None:
        """Create a Node, or change the one of its name."""
        path = f"{NODES}/{node['metadata']['name']}"
        try:
            # With its status at once, as a kubelet creates its node: kube-scheduler may refuse a pod in between, and
            # does not try it again when the slots come (docs/limits.md).
            await self._client.request("POST", NODES, {**node, "status": status})
        except Conflict:
            await self._client.request("PATCH", path, node, content_type=MERGE_PATCH)
            await self._client.request("PATCH", f"{path}/status", {"status": status}, content_type=MERGE_PATCH)

    async def set_pod_status(self, pod: Json, status: Json) -> None:
        """Change a pod's status; other conditions stay. Raises NotFound; Replaced, which is one: it is another pod."""
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._client.request("PATCH", f"{_path(pod)}/status", change, content_type=STRATEGIC_PATCH)

    async def remove_pod(self, pod: Json) -> None:
        """Have a pod go at once: it has ended. Raises NotFound, Conflict: it is another pod now."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._client.request("DELETE", _path(pod), options)


def _path(pod: Json) -> str:
    return f"{pods_in(pod['metadata']['namespace'])}/{pod['metadata']['name']}"


KUEUE = f"/apis/{GROUP}"
WORKLOADS = f"{KUEUE}/workloads"
ADMISSION_CHECKS = f"{KUEUE}/admissionchecks"
FLAVORS = f"{KUEUE}/resourceflavors"
CLUSTER_QUEUES = f"{KUEUE}/clusterqueues"
COHORTS = f"{KUEUE}/cohorts"


class KueueRequests:
    """Typed names for them."""

    _client: KubeClient

    async def workload(self, namespace: str, name: str) -> Json:
        """Return a workload."""
        return await self._client.request("GET", f"{KUEUE}/namespaces/{namespace}/workloads/{name}")

    def workloads(self, namespace: str, owner_uid: str = "") -> AsyncIterator[list[Json]]:
        """Yield the workloads of a namespace, or of one job or pod in it, page by page."""
        selected = {"labelSelector": f"{OWNER_LABEL}={owner_uid}"} if owner_uid else {}
        return self._client.pages(f"{KUEUE}/namespaces/{namespace}/workloads", selected)

    async def patch_workload_status(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Json:
        """Change a workload's status by a merge patch; return the workload. Raises Conflict for an older version."""
        path = f"{KUEUE}/namespaces/{namespace}/workloads/{name}/status"
        return await self._client.request("PATCH", path, dict(patch), content_type=MERGE_PATCH)

    async def patch_admission_check_status(self, name: str, patch: Mapping[str, Any]) -> None:
        """Change an AdmissionCheck's status by a merge patch. Raises Conflict if it names an older version."""
        await self._client.request("PATCH", f"{ADMISSION_CHECKS}/{name}/status", dict(patch), content_type=MERGE_PATCH)


RESERVATIONS = f"/apis/{API_VERSION}/{PLURAL}"


def _reservation_path(namespace: str, name: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}"


class ReservationRequests:
    """Requests about GPUReservations."""

    _client: KubeClient

    async def reservation(self, namespace: str, name: str) -> Json:
        """Return a GPUReservation."""
        return await self._client.request("GET", _reservation_path(namespace, name))

    async def patch_reservation_status(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Json:
        """Change a reservation's status by a merge patch; return it. Raises Conflict for an older version."""
        path = f"{_reservation_path(namespace, name)}/status"
        return await self._client.request("PATCH", path, dict(patch), content_type=MERGE_PATCH)

    async def priority_class(self, name: str) -> Json:
        """Return a PriorityClass; its name has to be one that an object can have."""
        return await self._client.request("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


class NamespaceRequests:
    """Requests about namespaces themselves."""

    _client: KubeClient

    async def namespace(self, name: str) -> Json:
        """Return a namespace. Raises NotFound."""
        return await self._client.request("GET", f"/api/v1/namespaces/{name}")


USAGES = f"/apis/{API_VERSION}/{USAGE_PLURAL}"


class UsageRequests:
    """Requests about GPUUsages, the records of what namespaces' pods have held."""

    _client: KubeClient

    async def usage(self, name: str) -> Json:
        """Return a record."""
        return await self._client.request("GET", f"{USAGES}/{name}")

    def usages(self, dates: Sequence[str], namespaces: Sequence[str] = ()) -> AsyncIterator[Page]:
        """Yield the records of some days, page by page; of all namespaces without a name of one."""
        return self._client.pages(USAGES, records_of(dates, namespaces))

    async def create_usage(self, body: Json) -> Json:
        """Create a record. Raises Conflict if it exists."""
        return await self._client.request("POST", USAGES, body)

    async def patch_usage_status(self, name: str, patch: Mapping[str, Any]) -> Json:
        """Change a record's status by a merge patch; return it. Raises Conflict for an older version."""
        return await self._client.request("PATCH", f"{USAGES}/{name}/status", dict(patch), content_type=MERGE_PATCH)

    async def delete_usages(self, dates: Sequence[str]) -> None:
        """Delete the records of some days."""
        await self._client.request("DELETE", USAGES, parameters=records_of(dates))


class KubeStore(KubeReads, KubeWrites, KueueRequests, ReservationRequests, NamespaceRequests, UsageRequests):
    """All requests to the API server behind the protocols of the workflows."""
