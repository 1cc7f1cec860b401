"""Requests about Kueue's objects. Which version: the newest that Kueue 0.19 has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.kube_api.client import Json, KubeClient

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{KUEUE}/workloads"
ADMISSION_CHECKS = f"{KUEUE}/admissionchecks"
FLAVORS = f"{KUEUE}/resourceflavors"
CLUSTER_QUEUES = f"{KUEUE}/clusterqueues"

MERGE_PATCH = "application/merge-patch+json"


class KueueRequests:
    """Typed names for them."""

    _client: KubeClient

    async def workload(self, namespace: str, name: str) -> Json:
        """Return a workload."""
        return await self._client.request("GET", f"{KUEUE}/namespaces/{namespace}/workloads/{name}")

    async def patch_workload_status(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Json:
        """Change a workload's status by a merge patch; return the workload. Raises Conflict for an older version."""
        path = f"{KUEUE}/namespaces/{namespace}/workloads/{name}/status"
        return await self._client.request("PATCH", path, dict(patch), content_type=MERGE_PATCH)

    async def patch_admission_check_status(self, name: str, patch: Mapping[str, Any]) -> None:
        """Change an AdmissionCheck's status by a merge patch. Raises Conflict if it names an older version."""
        await self._client.request("PATCH", f"{ADMISSION_CHECKS}/{name}/status", dict(patch), content_type=MERGE_PATCH)
