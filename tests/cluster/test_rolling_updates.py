"""A Deployment is updated where no card is left for one pod more: docs/operations.md says what it needs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import COUNT
from cluster.preempting import LOW, PreemptingCluster

Json = dict[str, Any]
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/llm"
ONE_LESS = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@pytest.fixture
def cluster(preempting: PreemptingCluster) -> Iterator[PreemptingCluster]:
    yield preempting
    preempting.undeploy("llm")
    preempting.clear()


def update(cluster: PreemptingCluster, version: str) -> None:
    """Have the Deployment's pods replaced by those of another version."""
    cluster.patch(DEPLOYMENT, {"spec": {"template": {"metadata": {"labels": {"app": "llm", "version": version}}}}})


def placed_of(cluster: PreemptingCluster, version: str) -> int:
    return sum(each["metadata"]["labels"].get("version") == version for each in cluster.placed("llm"))


@pytest.mark.parametrize("limit", ["the cards", "a quota"])
def test_an_update_needs_a_card_to_spare_or_no_surge(cluster: PreemptingCluster, limit: str) -> None:
    cluster.add_nodes(1, gpus=2 if limit == "the cards" else 4)
    quota: Json = {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpu": "2"}}}
    if limit == "a quota":
        cluster.request("POST", QUOTAS, quota)
    try:
        cluster.deploy("llm", {COUNT: 1}, 2, LOW)
        cluster.wait_placed("llm", 2)
        update(cluster, "second")
        (surplus,) = surplus_pods(cluster)
        said = "no card entirely free" if limit == "the cards" else "the quota of the pod's namespace does not allow it"
        cluster.wait_refused(surplus, said)
        assert placed_of(cluster, "second") == 0
        url = f"{cluster.installation.view_url}/v1/explain?pod=default/{surplus}"
        with urllib.request.urlopen(url) as answer:  # noqa: S310
            summary = json.load(answer)["summary"]
        assert "another version of its own Deployment llm hold cards" in summary
        assert "set maxSurge: 0 and maxUnavailable: 1" in summary
        cluster.patch(DEPLOYMENT, {"spec": {"strategy": ONE_LESS}})
        cluster.wait(lambda: placed_of(cluster, "second") == 2, "both pods are replaced, one after the other", 60)
    finally:
        if limit == "a quota":
            cluster.request("DELETE", f"{QUOTAS}/gpus")


def surplus_pods(cluster: PreemptingCluster) -> list[str]:
    """Return the names of the pods that the update adds, once there are some."""
    found: list[str] = []

    def are_there() -> bool:
        pods = cluster.all_pods()
        found[:] = [each["metadata"]["name"] for each in pods if not each["spec"].get("nodeName")]
        return bool(found)

    cluster.wait(are_there, "the update adds a pod")
    return found
