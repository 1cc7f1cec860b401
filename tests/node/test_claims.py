"""Containers get the cards of their pods' ResourceClaims, on a real kubelet: by the ledger, and by nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from cluster.claims import (
    API,
    CLAIMS,
    TEMPLATES,
    claim,
    claims,
    claims_of,
    create_class,
    results,
    share,
    template,
)
from cluster.cluster import NODES, PODS, Json
from gpuledger.formats.resource_claims.device import device_name
from gpuledger.formats.resource_claims.names import DRIVER, SERVES_CLAIMS_ANNOTATION
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card

NAMED = ("together",)


@pytest.fixture
def claiming(gpu: GpuNode) -> Iterator[GpuNode]:
    """Yield the node with templates for claims, when its kubelet has taken up our driver."""
    create_class(gpu.cluster)
    gpu.cluster.request("POST", TEMPLATES, template("small", share("1Gi", 10)))
    gpu.cluster.request("POST", TEMPLATES, template("two", share("2Gi", 20, count=2)))
    gpu.cluster.request("POST", TEMPLATES, template("mixed", share("3Gi", 10, "a"), share("4Gi", 20, "b")))
    gpu.cluster.wait(lambda: serves_claims(gpu) == "true", "the kubelet has taken up our driver")
    yield gpu
    gpu.remove_all()
    for path in (CLAIMS, TEMPLATES):
        for each in gpu.cluster.request("GET", path)["items"]:
            gpu.cluster.request("DELETE", f"{path}/{each['metadata']['name']}")


def serves_claims(gpu: GpuNode) -> str | None:
    """Return what the node says of itself."""
    found = gpu.cluster.request("GET", f"{NODES}/{gpu.node.name}")["metadata"].get("annotations") or {}
    text: str | None = found.get(SERVES_CLAIMS_ANNOTATION)
    return text


def by_claim(
    name: str, template: str = "", containers: Mapping[str, Sequence[Json]] | None = None, named: str = ""
) -> Json:
    """Return a pod with one claim, `gpu`, and containers that name it; all use it, or the requests that are listed."""
    made = {"resourceClaimName": named} if named else {"resourceClaimTemplateName": template}
    listed = [
        gpu_container(each, {}) | {"resources": {"claims": list(uses)}}
        for each, uses in (containers or {"main": [{"name": "gpu"}]}).items()
    ]
    return gpu_pod(name, *listed, resourceClaims=[{"name": "gpu", **made}])


def shares(gpu: GpuNode, pod: str, *entries: str) -> list[tuple[str, int, int]]:
    """Return UUID, MiB and cores of what a pod has by requests of its claims, by the ledger."""
    return [each for entry in entries for each in gpu.entered(gpu.cluster.pod(pod), entry)]


def check(gpu: GpuNode, pod: str, container: str = "main", *entries: str) -> None:
    """Compare what a container was told with the ledger, and the ledger with the claim."""
    entered = shares(gpu, pod, *(entries or ("gpu/gpu",)))
    assert entered
    assert gpu.told(pod, container) == entered
    (stored,) = claims_of(gpu.cluster, pod)
    given = {(each["pool"], each["device"]) for each in results(stored)}
    assert {(gpu.node.name, device_name(uuid)) for uuid, _, _ in entered} <= given


def claim_files(gpu: GpuNode) -> set[str]:
    """Return the names of claims' files."""
    return {name for name in gpu.grant_files() if ".claim." in f".{name.removeprefix('gpuledger.dev-share-')}"}


def test_pods_get_their_cards_by_claims_and_by_resources_side_by_side(claiming: GpuNode) -> None:
    gpu = claiming
    claimed = gpu.create(*(by_claim(f"claimed-{n}", "small") for n in range(8)), by_claim("two", "two"))
    limited = gpu.create(*(gpu_pod(f"limited-{n}", one_card(1000 + n)) for n in range(8)))
    gpu.wait_running(*claimed, *limited)
    gpu.check(*limited)
    for name in claimed:
        check(gpu, name)
    assert len(shares(gpu, "two", "gpu/gpu")) == 2
    assert len(claim_files(gpu)) == 9
    (status,) = gpu.cluster.pod("two")["status"]["containerStatuses"]
    (health,) = status["allocatedResourcesStatus"]
    assert {each["health"] for each in health["resources"]} == {"Healthy"}
    assert len(health["resources"]) == 2
    gpu.remove(*claimed)
    gpu.cluster.wait(lambda: not claim_files(gpu), "no claim's file is left")
    assert len(gpu.grant_files()) >= len(limited)
    gpu.check(*limited)
