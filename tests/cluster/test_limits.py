"""What docs/limits.md says of Kubernetes' own quotas."""

from __future__ import annotations

import pytest

from cluster.cluster import COUNT, MEMORY, Cluster, Connection, RequestFailed, pod

pytestmark = pytest.mark.promise("quotas")

QUOTAS = "/api/v1/namespaces/{}/resourcequotas"


def test_a_resource_quota_counts_the_memory_of_one_card_however_many_a_container_gets(
    cluster: Cluster, namespace: str
) -> None:
    """The quota controller, which nobody runs here, would copy `spec.hard` into the status."""
    hard = {"requests.nvidia.com/gpumem": "10000"}
    path = QUOTAS.format(namespace)
    cluster.request("POST", path, {"metadata": {"name": "memory"}, "spec": {"hard": hard}})
    cluster.patch(f"{path}/memory/status", {"status": {"hard": hard, "used": {"requests.nvidia.com/gpumem": "0"}}})

    def create(name: str, count: int, memory_mib: int) -> None:
        body = pod(name, {COUNT: count, MEMORY: memory_mib})
        body["metadata"]["namespace"] = namespace
        connection = Connection(cluster.plane)
        try:
            connection.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        finally:
            connection.close()

    def used() -> str:
        return str(cluster.request("GET", f"{path}/memory")["status"]["used"]["requests.nvidia.com/gpumem"])

    cluster.wait(lambda: bool(cluster.request("GET", f"{path}/memory").get("status")), "the quota is in force")
    create("two-cards", 2, 8000)
    assert used() in ("8k", "8000")
    with pytest.raises(RequestFailed, match="exceeded quota"):
        create("one-more", 1, 4000)
    # Before the next test has a node for it.
    cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
