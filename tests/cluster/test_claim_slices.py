"""ResourceSlices on a real API server: what is in them, what they cost, and that no other scheduler has our cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.claim_scene import (
    AGENT,
    CLAIMS,
    OURS,
    SLICES,
    Publisher,
    Scene,
    a_slice,
    allocated,
    new_claim,
    refusal,
    some_cards,
    wait_until_in_force,
)
from cluster.cluster import MERGE_PATCH, NODES, PODS, Connection
from cluster.dry_runs import as_user
from cluster.kubernetes import MINOR, at_least
from control_plane import ControlPlane
from gpuledger.formats.resource_claims.slices import NodeOwner, slices_of
from installation import MANIFESTS, NAMESPACE

pytestmark = pytest.mark.promise("claims")

Json = dict[str, Any]

POLICIES = ("gpuledger-claims", "gpuledger-slices")

KEEPS_ALL = at_least(1, 36)
"""Whether the API server keeps taints and policies of amounts: before 1.36 these are off, and left out."""

keeps_all = pytest.mark.skipif(not KEEPS_ALL, reason=f"Kubernetes {MINOR} leaves out device taints")


@pytest.fixture(scope="module")
def scene(ledger: ControlPlane) -> Iterator[Scene]:
    """Yield the scene, once the policies are in force; take them away in the end."""
    admin = Connection(ledger)
    for file in ("namespace.yaml", "agent/service_account.yaml", "agent/rbac.yaml", "agent/policy.yaml"):
        ledger.kubectl("apply", "-f", str(MANIFESTS / file))
    ledger.kubectl("apply", "-f", str(MANIFESTS / "service_account.yaml"))
    ledger.kubectl("apply", "-f", str(MANIFESTS / "rbac.yaml"))
    ledger.kubectl("apply", "-k", str(MANIFESTS / "claims"))
    policies = ledger.directory / "claim-policies.yaml"
    every = yaml.safe_load_all((MANIFESTS / "admission" / "validating.yaml").read_text())
    policies.write_text(yaml.safe_dump_all([each for each in every if each["metadata"]["name"] in POLICIES]))
    ledger.kubectl("apply", "-f", str(policies))
    found = Scene(ledger, admin)
    wait_until_in_force(found)
    yield found
    found.clear()
    ledger.kubectl("delete", "-f", str(policies), "-f", str(MANIFESTS / "agent" / "policy.yaml"))
    admin.close()


# What is in them, and what they cost.


def test_a_node_shows_its_cards_as_the_api_server_stores_them(scene: Scene) -> None:
    node = scene.node()
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    with scene.publishing(2, node):
        (stored,) = scene.slices(name)
        (wanted,) = slices_of(NodeOwner(name, uid), some_cards(node, 2), 1).values()
        assert stored["metadata"]["ownerReferences"] == wanted["metadata"]["ownerReferences"]
        if not KEEPS_ALL:
            for device in wanted["spec"]["devices"]:
                for field in ("taints", "allowMultipleAllocations"):
                    device.pop(field)
                for amount in device["capacity"].values():
                    amount.pop("requestPolicy")
        for device in stored["spec"]["devices"]:
            for taint in device.get("taints", ()):
                assert taint.pop("timeAdded")  # is the API server's
        assert stored["spec"] == wanted["spec"]


def test_slices_are_written_when_something_differs_and_at_no_other_time(scene: Scene) -> None:
    node = scene.node()
    name, cards = node["metadata"]["name"], some_cards(node, 2)
    since = scene.plane.audit_offset()
    with scene.publishing(2, node) as publisher:
        publisher.show([replace(cards[0], links={cards[1].uuid: 100}), cards[1]])  # no part of a slice
        publisher.show([replace(cards[0], healthy=False, fault="Xid 79"), cards[1]])
        scene.wait(lambda: pool(scene, name)["generation"] == 2, "a change is shown")
        publisher.show([replace(cards[0], healthy=False, fault="Xid 48"), cards[1]])
        scene.admin.request("DELETE", f"{SLICES}?fieldSelector=spec.nodeName={name},spec.driver={OURS}")
        scene.wait(lambda: len(scene.slices(name)) == 1, "what a kubelet deletes is shown again")
        scene.wait(lambda: publisher.writes == 3, "its answer is read")
    second = Publisher(scene.plane, name, [replace(cards[0], healthy=False), cards[1]])
    second.start(node)
    if KEEPS_ALL:  # else it can't tell that what is stored is what was sent, and writes that
        second.show([replace(cards[0], healthy=False), replace(cards[1], index=7)])
    scene.wait(lambda: second.writes == 1, "the next agent writes what differs")
    second.end()
    by_agent = [each.verb for each in scene.writes(name, since) if each.user == AGENT]
    assert by_agent == ["create", "update", "create", "update"]


def pool(scene: Scene, name: str) -> Json:
    (found,) = scene.slices(name)
    return dict(found["spec"]["pool"])


def test_a_node_with_many_cards_has_several_slices_of_one_pool(scene: Scene) -> None:
    node = scene.node()
    with scene.publishing(70, node) as publisher:
        assert [len(each) for each in scene.devices(publisher.name)] == [64, 6]
        publisher.show(some_cards(node, 64))
        scene.wait(lambda: [len(each) for each in scene.devices(publisher.name)] == [64], "one slice is enough")
        assert pool(scene, publisher.name) == {"name": publisher.name, "generation": 2, "resourceSliceCount": 1}


def test_the_slices_of_a_node_that_is_gone_are_deleted(scene: Scene) -> None:
    with scene.publishing() as publisher:
        name = publisher.name
    scene.admin.request("DELETE", f"{NODES}/{name}")
    scene.wait(lambda: scene.slices(name) == [], "the garbage collector deletes them")


# Other schedulers.


@pytest.fixture(scope="module")
def stock(scene: Scene) -> Iterator[Scene]:
    """Yield the scene with a scheduler as any cluster has it."""
    scheduler = scene.plane.start_default_scheduler()
    yield scene
    scheduler.terminate()


EVERYTHING = [{"operator": "Exists"}]


@contextmanager
def pod_with_claim(scene: Scene, node: str, tolerations: Sequence[Json] = ()) -> Iterator[tuple[str, str]]:
    """Have a pod of the default scheduler that asks for a card of a node; yield its path and its claim's."""
    claim = new_claim(scene, "stock", tolerations)
    body = {
        "metadata": {"name": claim},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
    label = {"metadata": {"labels": {"kubernetes.io/hostname": node}}}
    scene.admin.request("PATCH", f"{NODES}/{node}", label, MERGE_PATCH)
    scene.admin.request("POST", PODS, body)
    try:
        yield f"{PODS}/{claim}", f"{CLAIMS}/{claim}"
    finally:
        scene.admin.request("DELETE", f"{PODS}/{claim}", {"gracePeriodSeconds": 0})


def why_pending(scene: Scene, path: str) -> str:
    """Return what the scheduler says of a pod."""
    conditions = scene.admin.request("GET", path)["status"].get("conditions") or ()
    return " ".join(str(each.get("message")) for each in conditions if each["type"] == "PodScheduled")


@keeps_all
def test_a_stock_scheduler_leaves_our_cards_alone(stock: Scene) -> None:
    with stock.publishing() as publisher, pod_with_claim(stock, publisher.name) as (pod, claim):
        stock.wait(lambda: "cannot allocate all claims" in why_pending(stock, pod), "the scheduler finds no device")
        assert "allocation" not in stock.admin.request("GET", claim).get("status", {})


def test_a_stock_scheduler_that_tolerates_everything_can_not_give_one_to_a_claim(stock: Scene) -> None:
    with stock.publishing() as publisher:
        since = stock.plane.audit_offset()
        with pod_with_claim(stock, publisher.name, EVERYTHING if KEEPS_ALL else ()) as (pod, claim):
            stock.wait(lambda: "gpuledger-claims" in why_pending(stock, pod), "the policy refuses the allocation")
            assert "allocation" not in stock.admin.request("GET", claim).get("status", {})
            assert "nodeName" not in stock.admin.request("GET", pod)["spec"]
        tried = [each for each in stock.plane.api_writes(since) if each.subresource == "status"]
        assert {each.code for each in tried if each.resource == "resourceclaims"} == {403}


# Who may write what.


@pytest.fixture
def operator(scene: Scene) -> Iterator[Connection]:
    """Yield a connection with the operator's own token, and no more rights than it has."""
    config = scene.plane.kubeconfig_of_service_account(NAMESPACE, "gpuledger")
    opened = Connection(scene.plane, identity={"Authorization": f"Bearer {token_of(config)}"})
    yield opened
    opened.close()


def token_of(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])


def test_only_the_operator_gives_cards_of_ours_to_a_claim(scene: Scene, operator: Connection) -> None:
    claim = new_claim(scene, "ours")
    path, ours = f"{CLAIMS}/{claim}/status", allocated(scene, claim)
    said = refusal(lambda: scene.admin.request("PUT", path, ours))
    assert f"only gpuledger gives out devices of {OURS}" in said
    assert refusal(lambda: scene.admin.request("PUT", path, allocated(scene, claim, "other.example.com", OURS)))
    stored = operator.request("PATCH", path, {"status": ours["status"]}, MERGE_PATCH)
    assert stored["status"]["allocation"]["devices"]["results"][0]["driver"] == OURS
    # Others write the rest of the status, and end the allocation: the claims' controller does, and drivers.
    who: Json = {"resource": "pods", "name": "some", "uid": "0"}
    scene.admin.request("PATCH", path, {"status": {"reservedFor": [who]}}, MERGE_PATCH)
    scene.admin.request("PATCH", path, {"status": {"reservedFor": None, "allocation": None}}, MERGE_PATCH)
    assert "allocation" not in scene.admin.request("GET", f"{CLAIMS}/{claim}").get("status", {})


def test_claims_of_other_drivers_are_nobodys_business(scene: Scene) -> None:
    claim = new_claim(scene, "others")
    stored = scene.admin.request("PUT", f"{CLAIMS}/{claim}/status", allocated(scene, claim, "other.example.com"))
    assert stored["status"]["allocation"]["devices"]["results"][0]["driver"] == "other.example.com"


def test_only_agents_list_our_cards_and_everybody_those_of_other_drivers(scene: Scene) -> None:
    said = refusal(lambda: scene.admin.request("POST", SLICES, a_slice("any")))
    assert f"only gpuledger's node agents write ResourceSlices of the driver {OURS}" in said
    scene.admin.request("POST", f"{SLICES}?dryRun=All", a_slice("any", "other.example.com"))
    with scene.publishing() as publisher:
        path = f"{SLICES}/{publisher.name}-{OURS}"
        assert refusal(lambda: scene.admin.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (a_slice("own"), ""),
        (a_slice("own", "other.example.com"), f"a node agent writes ResourceSlices of the driver {OURS} only"),
        (a_slice("other"), "its token is for node own, not for other"),
        (a_slice("own", pool="other"), "its token is for node own"),
        (
            {**a_slice("own"), "spec": {**a_slice("own")["spec"], "nodeName": None, "allNodes": True}},
            "not for all nodes",
        ),
    ],
    ids=["its own", "another driver", "another node", "another pool", "no node"],
)
def test_an_agent_lists_the_cards_of_its_own_node(scene: Scene, body: Mapping[str, Any], said: str) -> None:
    with agent_of(scene, "own") as agent:
        found = refusal(lambda: agent.request("POST", f"{SLICES}?dryRun=All", body))
        assert said in found
        assert bool(said) == bool(found)


def test_an_agent_deletes_no_slices_of_other_nodes_and_one_without_a_node_writes_none(scene: Scene) -> None:
    with scene.publishing() as publisher, agent_of(scene, "own") as agent:
        path = f"{SLICES}/{publisher.name}-{OURS}"
        assert f"not for {publisher.name}" in refusal(lambda: agent.request("DELETE", path))
    with agent_of(scene, "") as nowhere:
        body = a_slice("own")
        assert "its token is for no node" in refusal(lambda: nowhere.request("POST", f"{SLICES}?dryRun=All", body))


@contextmanager
def agent_of(scene: Scene, node: str) -> Iterator[Connection]:
    """Yield a connection of the agents' account, with more rights than it has: only the policies limit it."""
    extra = {"authentication.kubernetes.io%2Fnode-name": node} if node else {}
    opened = as_user(scene.plane, AGENT, **extra)
    yield opened
    opened.close()
