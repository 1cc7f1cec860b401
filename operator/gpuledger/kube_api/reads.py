"""Every read from the API server, apart from the watches.

Among them are reviews of tokens and accounts: whose a token is, and what that account may do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import TypeVar

from gpuledger.formats.custom_resource.stored_card import API_VERSION, LABEL_LENGTH, NODE_LABEL, PLURAL
from gpuledger.formats.resource_claims.slices import API_VERSION as RESOURCE_API
from gpuledger.kube_api.client import KubeClient, Page
from gpuledger.model.errors import NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod

Picked = TypeVar("Picked")

ALLOCATIONS = f"/apis/{API_VERSION}/{PLURAL}"

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
RESOURCE_QUOTAS = "/api/v1/resourcequotas"
RESOURCE_SLICES = f"/apis/{RESOURCE_API}/resourceslices"


def config_maps_in(namespace: str) -> str:
    """Return the path of a namespace's ConfigMaps."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


CLUSTERS_OWN = "default-scheduler"
"""It tells no device plugin of another system which cards a pod gets: its pods get none from these."""

NOT_THE_CLUSTERS_OWN = f"spec.schedulerName!={CLUSTERS_OWN}"


def followed_pods(of_all: bool) -> str:
    """Return the field selector for the pods that the operator follows, bound or not: `pods_of` says why those.

    `of_all`: those of the cluster's own scheduler, too, as they count on nodes whose plugin only counts its cards.
    """
    return "" if of_all else NOT_THE_CLUSTERS_OWN


def pods_of(scheduler_names: Sequence[str], bound: bool) -> str:
    """Return the field selector for pods of these scheduler profiles, with a node or without.

    On fields that can't be edited. A selector has no "or": with several names, pods of other schedulers come, too,
    though not those of the cluster's own. With a node, they come in any case: other systems may give cards to them.
    """
    if bound:
        every = CLUSTERS_OWN in scheduler_names
        return "spec.nodeName!=" if every else f"{NOT_THE_CLUSTERS_OWN},spec.nodeName!="
    only = f"spec.schedulerName={scheduler_names[0]}" if len(scheduler_names) == 1 else NOT_THE_CLUSTERS_OWN
    return f"{only},spec.nodeName="


def quotas_in(namespace: str) -> str:
    """Return the path of a namespace's ResourceQuotas."""
    return f"/api/v1/namespaces/{namespace}/resourcequotas"


CLAIMS_API = "/apis/resource.k8s.io/v1"


def claim_objects_of(kind: str) -> str:
    """Return the path of all ResourceClaims, their templates or DeviceClasses, by the plural of their kind."""
    return f"{CLAIMS_API}/{kind}"


def claims_in(namespace: str) -> str:
    """Return the path of a namespace's ResourceClaims."""
    return f"{CLAIMS_API}/namespaces/{namespace}/resourceclaims"


def pods_in(namespace: str) -> str:
    """Return the path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def groups_of(api_group: str, version: str, plural: str) -> str:
    """Return the path of objects that say how large a gang is, which the API server may not have."""
    return f"/apis/{api_group}/{version}/{plural}"


def jobs_in(namespace: str) -> str:
    """Return the path of a namespace's Jobs."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def leases_in(namespace: str) -> str:
    """Return the path of a namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


class KubeReads:
    """Typed names for the requests that read."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def server_now(self) -> datetime | None:
        """Return the time of day by the API server's clock; None before its first answer."""
        return self._client.server_clock.now()

    def nodes(self) -> AsyncIterator[list[Json]]:
        """Yield all Nodes, page by page."""
        return self._client.pages(NODES)

    async def number_of_nodes(self) -> int:
        """Return how many Nodes there are."""
        page = await self._client.request("GET", NODES, parameters={"limit": "1"})
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    def allocations(self) -> AsyncIterator[Page]:
        """Yield all GPUAllocations, page by page."""
        return self._client.pages(ALLOCATIONS)

    def bound_pods(self, scheduler_names: Sequence[str]) -> AsyncIterator[Page]:
        """Yield the pods that have a node of all schedulers but the cluster's own, page by page."""
        return self._client.pages(PODS, {"fieldSelector": pods_of(scheduler_names, bound=True)})

    def all_bound_pods(self) -> AsyncIterator[Page]:
        """Yield the pods that have a node of all schedulers, those that have ended too, page by page."""
        return self._client.pages(PODS, {"fieldSelector": "spec.nodeName!="})

    def pending_pods(self, scheduler_names: Sequence[str]) -> AsyncIterator[list[Json]]:
        """Yield the pods of these scheduler profiles that have no node, page by page; others may be among them."""
        return self._client.pages(PODS, {"fieldSelector": pods_of(scheduler_names, bound=False)})

    def running_pods(self) -> AsyncIterator[list[Json]]:
        """Yield the pods of all schedulers that have a node and have not ended, page by page."""
        selector = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        return self._client.pages(PODS, {"fieldSelector": selector})

    def resource_quotas(self) -> AsyncIterator[list[Json]]:
        """Yield the ResourceQuotas of all namespaces, page by page."""
        return self._client.pages(RESOURCE_QUOTAS)

    async def groups(self, api_group: str, versions: Sequence[str], plural: str) -> AsyncIterator[list[Json]]:
        """Yield the PodGroups of an API, page by page, in the first of these versions that there is; maybe none."""
        for version in versions:
            try:
                async for page in self._client.pages(groups_of(api_group, version, plural)):
                    yield page
            except NotFound:
                continue
            return

    async def deployment(self, namespace: str, name: str) -> Json:
        """Return a Deployment."""
        return await self._client.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")

    async def config_map(self, namespace: str, name: str) -> dict[str, str]:
        """Return the texts of a ConfigMap, by key."""
        found = await self._client.request("GET", f"{config_maps_in(namespace)}/{name}")
        return found.get("data") or {}

    def budgets(self, namespace: str) -> AsyncIterator[list[Json]]:
        """Yield the PodDisruptionBudgets of a namespace, page by page."""
        return self._client.pages(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")

    def selected_pods(self, namespace: str, label_selector: str) -> AsyncIterator[list[Json]]:
        """Yield the pods of a namespace with these labels, page by page; an empty selector stands for all."""
        selector = {"labelSelector": label_selector} if label_selector else {}
        return self._client.pages(pods_in(namespace), selector)

    async def server_version(self) -> tuple[int, int]:
        """Return the API server's version, major and minor."""
        found = await self._client.request("GET", "/version")
        return int(found["major"]), int(found["minor"].rstrip("+"))

    async def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as it is now, not as a cache has it. Raises NotFound."""
        return await self._client.request("GET", f"{pods_in(namespace)}/{name}")

    async def pod_now(self, pod: Pod) -> Json | None:
        """Return a pod as `pod` does; None if it is gone, or another one has its name."""
        try:
            found = await self.pod(pod.namespace, pod.name)
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == pod.uid else None

    def claim_objects(self, kind: str) -> AsyncIterator[list[Json]]:
        """Yield all ResourceClaims, templates or DeviceClasses, by the plural of their kind, page by page."""
        return self._client.pages(claim_objects_of(kind))

    async def resource_claim(self, namespace: str, name: str) -> Json:
        """Return a ResourceClaim as it is now. Raises NotFound."""
        return await self.claim_object("resourceclaims", namespace, name)

    async def claim_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return a ResourceClaim or a template as it is now, by the plural of its kind. Raises NotFound."""
        return await self._client.request("GET", f"{CLAIMS_API}/namespaces/{namespace}/{kind}/{name}")

    async def pods_of_node(self, node_name: str, pick: Callable[[Json], Picked]) -> list[Picked]:
        """Return the picked part of each pod that is bound to a node, as they are now.

        A hundred pods can be half a gigabyte: no more than a page of them is in memory at a time.
        """
        pages = self._client.pages(PODS, {"fieldSelector": f"spec.nodeName={node_name}"})
        return [pick(pod) async for page in pages for pod in page]

    async def node(self, name: str) -> Json:
        """Return a node as it is now. Raises NotFound."""
        return await self._client.request("GET", f"{NODES}/{name}")

    async def allocations_of_node(self, node_name: str) -> list[Json]:
        """Return the GPUAllocations of a node's cards as they are now; some of other nodes may be among them."""
        # A name that is too long for a label is on none of its cards.
        selector = {"labelSelector": f"{NODE_LABEL}={node_name}"} if len(node_name) <= LABEL_LENGTH else {}
        return [item async for page in self._client.pages(ALLOCATIONS, selector) for item in page]

    async def allocation(self, name: str) -> Json:
        """Return a card's GPUAllocation as it is now. Raises NotFound."""
        return await self._client.request("GET", f"{ALLOCATIONS}/{name}")


TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class KubeReviews:
    """Questions that change nothing, though they are sent by POST. The role system:auth-delegator allows them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def user_of(self, token: str, audience: str = "") -> Json | None:
        """Return the user of a token: username, uid, groups, extra. Raises ApiError.

        None: unknown, expired, or for another audience; without one, the API server's own is meant.
        """
        spec = {"token": token, **({"audiences": [audience]} if audience else {})}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._client.request("POST", TOKEN_REVIEWS, review)).get("status") or {}
        is_meant = not audience or audience in (status.get("audiences") or ())
        user: Json | None = status.get("user") if status.get("authenticated") is True and is_meant else None
        return user

    async def may_list(self, user: Json, group: str, resource: str) -> bool:
        """Return whether a user may list the objects of a resource in all namespaces. Raises ApiError."""
        who = {key: user[name] for key, name in _SUBJECT.items() if user.get(name)}
        what = {"verb": "list", "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**who, "resourceAttributes": what},
        }
        status = (await self._client.request("POST", ACCESS_REVIEWS, review)).get("status") or {}
        return status.get("allowed") is True


_SUBJECT = {"user": "username", "uid": "uid", "groups": "groups", "extra": "extra"}
"""Key of a SubjectAccessReview -> that of a TokenReview's user."""
