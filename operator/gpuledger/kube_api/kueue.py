"""Requests about Kueue's objects. Which version: the newest that Kueue 0.19 has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpuledger.formats.kubernetes.workload import GROUP, OWNER_LABEL
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.writes import MERGE_PATCH
from gpuledger.model.json_object import Json

KUEUE = f"/apis/{GROUP}"
WORKLOADS = f"{KUEUE}/workloads"
ADMISSION_CHECKS = f"{KUEUE}/admissionchecks"
FLAVORS = f"{KUEUE}/resourceflavors"
CLUSTER_QUEUES = f"{KUEUE}/clusterqueues"


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
