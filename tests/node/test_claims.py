"""Containers get the cards of their pods' ResourceClaims, on a real kubelet: by the ledger, and by nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    claim,
    claims_of,
    create_class,
    request,
    results,
    share,
    template,
)
from cluster.cluster import COUNT, NODES, PODS, Json
from cluster.kubernetes import at_least
from fakes.nvml.fake_nvml import NvmlState, some_cards
from gpuledger.formats.resource_claims.claims import DRIVER, SERVES_CLAIMS_ANNOTATION
from gpuledger.formats.resource_claims.slices import device_name
from gpuledger.formats.runtime.cdi import CLAIM
from installation import USER
from node.gpu_node import GpuNode, gpu_container, gpu_pod, one_card


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
    name: str,
    template: str = "",
    containers: Mapping[str, Sequence[Json]] | None = None,
    named: str = "",
    scheduler: str = "gpuledger",
) -> Json:
    """Return a pod with one claim, `gpu`, and containers that name it; all use it, or the requests that are listed."""
    made = {"resourceClaimName": named} if named else {"resourceClaimTemplateName": template}
    listed = [
        gpu_container(each, {}) | {"resources": {"claims": list(uses)}}
        for each, uses in (containers or {"main": [{"name": "gpu"}]}).items()
    ]
    return gpu_pod(name, *listed, resourceClaims=[{"name": "gpu", **made}], schedulerName=scheduler)


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


def claim_files(gpu: GpuNode) -> dict[str, Json]:
    """Return name -> content of the files of claims; what slots have left goes later."""
    return {name: text for name, text in gpu.grant_files().items() if CLAIM in text["devices"][0]["annotations"]}


@pytest.mark.promise("claims")
def test_pods_get_their_cards_by_claims_and_by_resources_side_by_side(claiming: GpuNode) -> None:
    gpu = claiming
    claimed = gpu.create(*(by_claim(f"claimed-{n}", "small") for n in range(6)), by_claim("two", "two"))
    limited = gpu.create(*(gpu_pod(f"limited-{n}", one_card(1000 + n)) for n in range(6)))
    gpu.wait_running(*claimed, *limited)
    gpu.check(*limited)
    for name in claimed:
        check(gpu, name)
    assert len(shares(gpu, "two", "gpu/gpu")) == 2
    assert len(claim_files(gpu)) == 7
    if at_least(1, 36):  # before, kubelets say so where the gate ResourceHealthStatus is on
        (status,) = gpu.cluster.pod("two")["status"]["containerStatuses"]
        (health,) = status["allocatedResourcesStatus"]
        assert {each["health"] for each in health["resources"]} == {"Healthy"}
        assert len(health["resources"]) == 2
    gpu.remove(*claimed)
    gpu.cluster.wait(lambda: not claim_files(gpu), "no claim's file is left")
    assert len(gpu.grant_files()) >= len(limited)
    gpu.check(*limited)


def test_fifty_pods_of_both_kinds_at_once_get_each_a_card_of_its_own(
    claiming: GpuNode, say: Callable[[str], None]
) -> None:
    gpu, before = claiming, claiming.state
    gpu.show(NvmlState(cards=some_cards(50)))
    gpu.wait_ready()
    gpu.cluster.request("POST", TEMPLATES, template("whole", request()))
    claimed = [by_claim(f"claimed-{n}", "whole") for n in range(25)]
    limited = [gpu_pod(f"limited-{n}", {COUNT: 1}) for n in range(25)]
    begin_s = time.monotonic()
    names = gpu.create(*(pod for pair in zip(claimed, limited, strict=True) for pod in pair))
    gpu.wait_running(*names, timeout_s=240)
    say(f"50 pods at once, half of them by claims: all of them ran after {time.monotonic() - begin_s:.1f} s")
    gpu.check(*(name for name in names if name.startswith("limited")))
    for name in names:
        if name.startswith("claimed"):
            check(gpu, name)
    cards = [uuid for name in names for uuid, _, _ in gpu.told(name)]
    assert sorted(cards) == sorted(card.uuid for card in gpu.state.cards)
    gpu.remove(*names)
    gpu.kill_agent()  # the next one does not miss the cards that go
    gpu.show(before)
    gpu.start_agent()
    gpu.cluster.wait(lambda: len(gpu.cluster.cards()) == len(before.cards), "the cards are as before")


def test_containers_get_the_requests_that_they_name_and_share_those_that_several_name(claiming: GpuNode) -> None:
    gpu = claiming
    names = gpu.create(
        by_claim("whole", "mixed", {"main": [{"name": "gpu"}], "side": [{"name": "gpu"}]}),
        by_claim(
            "each", "mixed", {"main": [{"name": "gpu", "request": "a"}], "side": [{"name": "gpu", "request": "b"}]}
        ),
        by_claim("over", "mixed", {"main": [{"name": "gpu"}], "side": [{"name": "gpu", "request": "b"}]}),
    )
    gpu.wait_running("whole", "each")
    both = shares(gpu, "whole", "gpu/a", "gpu/b")
    for container in ("main", "side"):
        told = gpu.told("whole", container)
        assert {uuid for uuid, _, _ in told} == {uuid for uuid, _, _ in both}
        assert sum(memory_mib for _, memory_mib, _ in told) == 3072 + 4096
        assert sum(cores for _, _, cores in told) == 10 + 20
    check(gpu, "each", "main", "gpu/a")
    check(gpu, "each", "side", "gpu/b")
    gpu.cluster.wait(
        lambda: any("of which other containers use only some" in text for text in gpu.cluster.messages("over")),
        "the events say why the pod is placed nowhere",
    )
    assert gpu.phase("over") == "Pending"
    gpu.remove(*names)
    gpu.cluster.wait(lambda: not claim_files(gpu), "no claim's file is left")


def test_pods_that_share_a_claim_have_the_same_cards_as_long_as_one_of_them_runs(claiming: GpuNode) -> None:
    gpu = claiming
    gpu.cluster.request("POST", CLAIMS, claim("together", share("5Gi", 20)))
    for name in ("first", "second"):
        gpu.create(by_claim(name, named="together"))
        gpu.wait_running(name)
    told = gpu.told("first")
    assert told == gpu.told("second") == shares(gpu, "first", "gpu/gpu")
    files = claim_files(gpu)
    assert len(files) == 1
    gpu.cluster.request("DELETE", f"{PODS}/first")
    gpu.cluster.wait(lambda: "first" not in gpu.cluster.pods(), "the first is gone")
    gpu.restart("second")
    assert gpu.told("second") == told
    assert claim_files(gpu) == files
    gpu.remove("second")
    gpu.cluster.wait(lambda: not claim_files(gpu), "no claim's file is left")


def test_a_claim_that_is_not_in_the_ledger_gets_nothing_and_its_pod_is_told_why(claiming: GpuNode) -> None:
    """Even if its allocation was written by our operator's account, and its pod was bound around every scheduler."""
    gpu = claiming
    gpu.cluster.request("POST", CLAIMS, claim("forged", share("1Gi")))
    gpu.create(by_claim("forger", named="forged", scheduler="nobody"))
    pod = gpu.cluster.pod("forger")
    node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [gpu.node.name]}]}
    device = {"driver": DRIVER, "pool": gpu.node.name, "device": device_name(gpu.state.cards[0].uuid), "request": "gpu"}
    status = {
        "allocation": {"devices": {"results": [device]}, "nodeSelector": {"nodeSelectorTerms": [node]}},
        "reservedFor": [{"resource": "pods", "name": "forger", "uid": pod["metadata"]["uid"]}],
    }
    forged = json.dumps(gpu.cluster.request("GET", f"{CLAIMS}/forged") | {"status": status})
    gpu.plane.kubectl("replace", "--subresource=status", "-f", "-", "--as", USER, stdin=forged)
    target = {"apiVersion": "v1", "kind": "Node", "name": gpu.node.name}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "forger"}, "target": target}
    gpu.cluster.request("POST", f"{PODS}/forger/binding", binding)
    (honest,) = gpu.create(by_claim("honest", "small"))
    gpu.wait_running(honest)
    check(gpu, honest)
    gpu.cluster.wait(
        lambda: any("has no GPU of node" in text for text in gpu.cluster.messages("forger")), "the events say why"
    )
    assert not any("running" in each["state"] for each in gpu.cluster.pod("forger")["status"]["containerStatuses"])
    assert len(claim_files(gpu)) == 1
    assert "forger" not in gpu.holding()


def test_what_restarts_on_the_node_touches_no_container_and_each_that_starts_anew_gets_the_same(
    claiming: GpuNode,
) -> None:
    gpu = claiming
    gpu.cluster.request("POST", CLAIMS, claim("kept", share("5Gi", 20)))
    names = gpu.create(by_claim("own", "small"), by_claim("several", "two"), by_claim("shared", named="kept"))
    gpu.wait_running(*names)
    told, before, files = {name: gpu.told(name) for name in names}, gpu.identities(*names), claim_files(gpu)
    gpu.node.restart_kubelet()
    gpu.node.restart_containerd()
    gpu.kill_agent()
    for file in files:
        (gpu.node.path("/var/run/cdi") / file).unlink()
    gpu.start_agent()
    gpu.wait_ready()
    gpu.cluster.wait(lambda: claim_files(gpu) == files, "the files are as before")
    assert gpu.identities(*names) == before
    (later,) = gpu.create(by_claim("later", "small"))
    gpu.wait_running(later)
    check(gpu, later)
    for name in names:
        gpu.restart(name)
        assert gpu.told(name) == told[name]
    gpu.remove(*names, later)
    gpu.cluster.wait(lambda: not claim_files(gpu), "no claim's file is left")


def test_a_node_that_is_to_serve_no_claims_says_so_and_its_pods_with_resources_start(claiming: GpuNode) -> None:
    gpu = claiming
    with gpu.agent_with(resource_claims=False):
        gpu.cluster.wait(lambda: serves_claims(gpu) is None, "it serves no claims")
        (name,) = gpu.create(gpu_pod("by-resources", one_card()))
        gpu.wait_running(name)
        gpu.check(name)
    gpu.cluster.wait(lambda: serves_claims(gpu) == "true", "it serves claims again")
