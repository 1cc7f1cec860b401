"""What a kubelet writes to the API server: of this program, only simulated nodes do."""

from __future__ import annotations

from gpuledger.kube_api.client import Json, KubeClient
from gpuledger.kube_api.reads import NODES, pods_in
from gpuledger.kube_api.writes import MERGE_PATCH, STRATEGIC_PATCH
from gpuledger.model.errors import Conflict


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
        """Change a pod's status; other conditions stay. Raises NotFound, Conflict: it is another pod now."""
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._client.request("PATCH", f"{_path(pod)}/status", change, content_type=STRATEGIC_PATCH)

    async def remove_pod(self, pod: Json) -> None:
        """Have a pod go at once: it has ended. Raises NotFound, Conflict: it is another pod now."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._client.request("DELETE", _path(pod), options)


def _path(pod: Json) -> str:
    return f"{pods_in(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
