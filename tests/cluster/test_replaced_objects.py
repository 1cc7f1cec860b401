"""A write that is meant for an object which is gone never changes the one that has its name by now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cluster.cluster import Connection
from control_plane import ControlPlane
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.writes import KubeletWrites, KubeStore
from gpuledger.model.errors import ApiError, Conflict, Replaced

Json = dict[str, Any]
Write = Callable[[KubeClient, Json], Awaitable[object]]

POD = {"kind": "Pod", "spec": {"containers": [{"name": "main", "image": "none"}]}}
QUOTA = {"kind": "ResourceQuota", "spec": {"hard": {"limits.nvidia.com/gpu": "4"}}}
CLAIM = {
    "kind": "ResourceClaim",
    "apiVersion": "resource.k8s.io/v1",
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
}
CONDITION = {"type": "gpuledger.dev/Allocated", "status": "False", "reason": "Test", "message": ""}

REPLACED: dict[str, tuple[Json, Write]] = {
    "annotate_pod": (POD, lambda client, pod: KubeStore(client).annotate_pod(pod_identity(pod), "example.com/a", "b")),
    "set_pod_condition": (POD, lambda client, pod: KubeStore(client).set_pod_condition(pod_identity(pod), CONDITION)),
    "nominate_pod": (POD, lambda client, pod: KubeStore(client).nominate_pod(pod_identity(pod), "node-1")),
    "set_pod_status": (POD, lambda client, pod: KubeletWrites(client).set_pod_status(pod, {"phase": "Running"})),
    "set_quota_used": (QUOTA, lambda client, quota: used_of(client, quota["metadata"])),
}
CONFLICT: dict[str, tuple[Json, Write]] = {
    "bind_pod": (POD, lambda client, pod: bound(client, pod)),
    "evict_pod": (POD, lambda client, pod: KubeStore(client).evict_pod(pod_identity(pod))),
    "delete_pod": (POD, lambda client, pod: KubeStore(client).delete_pod(pod_identity(pod))),
    "remove_pod": (POD, lambda client, pod: KubeletWrites(client).remove_pod(pod)),
    "set_claim_status": (CLAIM, lambda client, claim: KubeStore(client).set_claim_status(claim, {"reservedFor": []})),
    "protect_claim": (CLAIM, lambda client, claim: KubeStore(client).protect_claim(claim, "example.com/kept")),
}
WRITES = {
    name: (kind, write, error)
    for writes, error in ((REPLACED, Replaced), (CONFLICT, Conflict))
    for name, (kind, write) in writes.items()
}


async def used_of(client: KubeClient, metadata: Json) -> None:
    used = {"limits.nvidia.com/gpu": "1"}
    await KubeStore(client).set_quota_used(metadata["namespace"], metadata["name"], metadata["uid"], used)


async def bound(client: KubeClient, pod: Json) -> None:
    await KubeStore(client).bind_pod(pod_identity(pod), pod["metadata"]["resourceVersion"], "node-1", {}, 5.0)


@pytest.fixture
async def client(ledger: ControlPlane) -> AsyncIterator[KubeClient]:
    connected = await KubeClient.connect(ledger.kubeconfig)
    yield connected
    await connected.close()


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.long] if each == "evict_pod" else []) for each in WRITES]
)
async def test_a_write_for_an_object_that_is_gone_says_so_and_leaves_its_successor_as_it_is(
    connection: Connection, client: KubeClient, name: str
) -> None:
    kind, write, error = WRITES[name]
    path, body = path_of(kind), {**kind, "metadata": {"name": name.replace("_", "-"), "namespace": "default"}}
    gone = connection.request("POST", path, body)
    own_path = f"{path}/{gone['metadata']['name']}"
    connection.request("DELETE", f"{own_path}?gracePeriodSeconds=0")
    successor = connection.request("POST", path, body)
    with pytest.raises(ApiError) as refused:
        await write(client, gone)
    assert type(refused.value) is error
    assert connection.request("GET", own_path)["metadata"] == successor["metadata"]


def path_of(kind: Json) -> str:
    version = kind.get("apiVersion", "v1")
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/default/{kind['kind'].lower()}s"
