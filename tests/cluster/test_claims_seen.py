"""What people see of pods that bring ResourceClaims, on a real control plane: audit, explain, doctor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.claims import (
    CLAIMS,
    TEMPLATES,
    claim,
    claiming,
    claims,
    claims_of,
    create_class,
    results,
    serve_claims,
    share,
    template,
)
from cluster.cluster import ALLOCATIONS, NODES, Cluster, uuids
from cluster.test_audit import audit, stop_operator
from cluster.test_kubectl_gpuledger import Plugin
from gpuledger.agent.simulated import FakeNode
from gpuledger.doctor.examination import examine
from gpuledger.doctor.kinds import Finding
from gpuledger.doctor.reading import Reading
from gpuledger.formats.resource_claims.claims import DRIVER, SERVES_CLAIMS_ANNOTATION
from gpuledger.kube_api.client import KubeClient

Json = dict[str, Any]

CHECKS = ("claim-class", "claims-served", "claims-made", "claims")


@pytest.fixture(autouse=True)
def tidy(installed_cluster: Cluster) -> Iterator[None]:
    """Leave no claims and templates behind, once their pods are gone."""
    yield
    for path in (TEMPLATES, CLAIMS):
        installed_cluster.request("DELETE", path)
    installed_cluster.wait(lambda: not claims(installed_cluster), "no claims are left")


@pytest.fixture
def nodes(cluster: Cluster) -> list[FakeNode]:
    create_class(cluster)
    found = cluster.add_nodes(1, gpus=2)
    serve_claims(cluster, *found)
    return found


@pytest.fixture
def claimed(cluster: Cluster, nodes: list[FakeNode]) -> Iterator[Cluster]:
    """Yield a cluster with a pod that has a claim of its own, and two that share one; a test may stop its operator."""
    cluster.request("POST", TEMPLATES, template("quarter", share("10Gi", 30)))
    cluster.request("POST", CLAIMS, claim("ours", share("5Gi")))
    for each in (claiming("own", ["quarter"]), claiming("first", named=["ours"]), claiming("second", named=["ours"])):
        cluster.create(each)
        cluster.wait_bound(each["metadata"]["name"])
    yield cluster
    cluster.installation.kill_operator()
    cluster.installation.start_operator()
    cluster.settle()


def set_status(cluster: Cluster, name: str, status: Json) -> None:
    """Write a claim's status as an administrator."""
    cluster.patch(f"{CLAIMS}/{name}/status", {"status": status})


def doctor(cluster: Cluster) -> list[Finding]:
    """Return what the doctor finds of claims."""

    async def look() -> list[Finding]:
        client = await KubeClient.connect(cluster.plane.kubeconfig)
        try:
            return list(examine(await Reading(client).all(), CHECKS).findings)
        finally:
            await client.close()

    return [each for each in asyncio.run(look()) if "claim" in each.kind.value]


def test_the_audit_compares_claims_with_the_ledger_and_mends_them(claimed: Cluster) -> None:
    cluster = claimed
    assert audit(cluster).rows == []
    stop_operator(cluster)
    (own,) = claims_of(cluster, "own")
    given, name = results(own), own["metadata"]["name"]
    set_status(cluster, name, {"allocation": None, "reservedFor": None})
    (differs,) = audit(cluster).rows
    assert (differs["kind"], differs["pod"]) == ("claim-differs", "default/own")
    assert differs["detail"].startswith(f"ResourceClaim {name} is not allocated; the ledger has card ")
    assert audit(cluster, "--fix").kinds(mended=True) == ["claim-differs"]
    assert results(claims(cluster)[name]) == given
    assert [each["name"] for each in claims(cluster)[name]["status"]["reservedFor"]] == ["own"]
    assert audit(cluster).rows == []


def test_what_another_scheduler_has_given_a_claim_is_found_and_taken_back_if_no_pod_uses_it(claimed: Cluster) -> None:
    cluster = claimed
    stop_operator(cluster)
    cluster.request("POST", CLAIMS, claim("theirs", share("1Gi")))
    (taken,) = results(claims(cluster)["ours"])
    set_status(cluster, "theirs", {"allocation": {"devices": {"results": [taken]}}})
    (unknown,) = audit(cluster).rows
    assert (unknown["kind"], unknown["detail"].partition(" is ")[0]) == (
        "claim-unknown",
        "ResourceClaim default/theirs",
    )
    assert [(each.kind.value, each.where) for each in doctor(cluster)] == [
        ("claims-unaccounted", f"node {taken['pool']}")
    ]
    assert audit(cluster, "--fix").kinds(mended=True) == ["claim-unknown"]
    assert results(claims(cluster)["theirs"]) == []
    assert (audit(cluster).rows, doctor(cluster)) == ([], [])


def test_pods_whose_cards_were_lost_are_entered_again_with_their_claims(claimed: Cluster) -> None:
    cluster = claimed
    before = refs(cluster)
    stop_operator(cluster)
    for uuid in cluster.cards():
        cluster.request("DELETE", f"{ALLOCATIONS}/{uuid.lower()}")
    cluster.installation.start_operator()
    cluster.wait(lambda: len(cluster.cards()) == 2, "the cards are there again")
    cluster.settle()
    found = audit(cluster)
    assert {(row["kind"], row["pod"]) for row in found.rows} == {
        ("not-entered", "default/own"),
        ("not-entered", "default/first"),
        ("not-adoptable", "default/second"),
    }
    assert set(audit(cluster, "--fix", "--adopt").kinds(mended=True)) == {"not-entered"}
    cluster.wait(lambda: refs(cluster) == before, "both claims have their cards in the ledger")
    assert audit(cluster).rows == []


def refs(cluster: Cluster) -> set[tuple[str, str, str, bool]]:
    """Return the ledger's holders by claim: pod, entry, claim, and whether that is shared."""
    holders = [holder for holders in cluster.holders().values() for holder in holders]
    return {
        (holder["pod"], part["name"], part["claim"]["uid"], part["claim"].get("shared", False))
        for holder in holders
        for part in holder["containers"]
    }


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return Plugin(cluster, tmp_path)


def explained(cluster: Cluster, plugin: Plugin, name: str) -> Json:
    process = plugin.start(
        "explain", name, "-n", "default", "-o", "json", "--operator-url", cluster.installation.view_url
    )
    output, complaint = process.communicate(timeout=60)
    assert process.returncode in (0, 1), complaint
    return dict(json.loads(output))


def test_explain_says_what_pods_have_by_claims(claimed: Cluster, plugin: Plugin) -> None:
    found = explained(claimed, plugin, "own")
    (entry,) = found["requests"]
    assert (found["state"], entry["name"]) == ("placed", "c0/gpu")
    shared = explained(claimed, plugin, "second")
    assert shared["state"] == "placed"
    assert shared["summary"].endswith("; ResourceClaim ours counts for default/first")
    assert [each["resourceClaim"] for each in shared["sharedClaims"]] == ["ours"]


def test_explain_says_why_a_pod_waits_with_its_claim(cluster: Cluster, nodes: list[FakeNode], plugin: Plugin) -> None:
    cluster.create(claiming("early", ["late"]))
    cluster.wait_refused("early", "there is no ResourceClaimTemplate late")
    found = explained(cluster, plugin, "early")
    assert found["summary"] == "can't be placed: claim c0: there is no ResourceClaimTemplate late in namespace default"
    nowhere = {"cel": {"expression": f'device.attributes["{DRIVER}"].model == "H100"'}}
    broken = {"cel": {"expression": f'device.attributes["{DRIVER}"].color == "red"'}}
    cluster.request("POST", TEMPLATES, template("nowhere", share("1Gi", selectors=[nowhere])))
    cluster.request("POST", TEMPLATES, template("broken", share("1Gi", selectors=[broken])))
    cluster.request("POST", TEMPLATES, template("large", share("1Ti")))
    for name in ("nowhere", "broken", "large"):
        cluster.create(claiming(name, [name]))
        cluster.wait_refused(name, "0/1 nodes are available")
    texts = {name: explained(cluster, plugin, name)["advice"] for name in ("nowhere", "broken", "large")}
    assert texts["nowhere"].startswith("A selector of the claim chooses no card")
    assert "does not hold" in texts["nowhere"]
    assert "fails: " in texts["broken"]
    assert texts["large"].endswith("(capacity.requests.memory)")


def test_a_node_whose_agent_serves_no_claims_is_named(cluster: Cluster, plugin: Plugin) -> None:
    create_class(cluster)
    (node,) = cluster.add_nodes(1, gpus=1)
    cluster.patch(f"{NODES}/{node.name}", {"metadata": {"annotations": {SERVES_CLAIMS_ANNOTATION: None}}})
    cluster.request("POST", TEMPLATES, template("quarter", share("10Gi")))
    cluster.create(claiming("waits", ["quarter"]))
    cluster.wait_refused("waits", "the node's agent serves no ResourceClaims")
    assert [(each.kind.value, each.where) for each in doctor(cluster)] == [("claims-not-served", f"node {node.name}")]
    (reason,) = explained(cluster, plugin, "waits")["nodes"]
    assert (reason["reason"], reason["text"]) == ("other-resource", "the node's agent serves no ResourceClaims")
    serve_claims(cluster, node)
    (bound,) = cluster.wait_bound("waits")
    assert len(uuids(bound)) == 1
    assert doctor(cluster) == []
