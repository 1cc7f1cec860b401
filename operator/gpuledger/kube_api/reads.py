"""Every read from the API server, apart from Kopf's watches."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gpuledger.formats.gpu_allocation import API_VERSION, PLURAL
from gpuledger.kube_api.client import Json, KubeClient

ALLOCATIONS = f"/apis/{API_VERSION}/{PLURAL}"


PODS = "/api/v1/pods"


def pending_selector(scheduler_name: str) -> dict[str, str]:
    """Return the query for the pods of a scheduler profile that have no node."""
    return {"fieldSelector": f"spec.schedulerName={scheduler_name},spec.nodeName="}


class KubeReads:
    """Typed names for the requests that read."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def nodes(self) -> AsyncIterator[list[Json]]:
        """Yield all Nodes, page by page."""
        return self._client.pages("/api/v1/nodes")

    def allocations(self) -> AsyncIterator[list[Json]]:
        """Yield all GPUAllocations, page by page."""
        return self._client.pages(ALLOCATIONS)

    def bound_pods(self, scheduler_name: str) -> AsyncIterator[list[Json]]:
        """Yield the pods of one scheduler profile that have a node, page by page."""
        selector = f"spec.schedulerName={scheduler_name},spec.nodeName!="
        return self._client.pages(PODS, {"fieldSelector": selector})

    def pending_pods(self, scheduler_name: str) -> AsyncIterator[list[Json]]:
        """Yield the pods of one scheduler profile that have no node, page by page."""
        return self._client.pages(PODS, pending_selector(scheduler_name))

    async def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as it is now, not as a cache has it. Raises NotFound."""
        return await self._client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def allocation(self, name: str) -> Json:
        """Return a card's GPUAllocation as it is now. Raises NotFound."""
        return await self._client.request("GET", f"{ALLOCATIONS}/{name}")
