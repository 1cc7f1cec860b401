"""Pods that bring ResourceClaims, in what-if questions: from files, and from a cluster."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.allocations import an_allocation
from fakes.claims import OUR_CLASS, a_claiming_pod, a_resource_claim, a_template
from fakes.scenes import NODE_A, FakeReads, answered, shown
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.model.share import ClaimRef, Holder, Pod
from gpuledger.what_if.scene import PodStatus

Json = dict[str, Any]

FIRST, SECOND = a_card(0), a_card(1)
CLAIMS = {"deviceclasses": [OUR_CLASS], "resourceclaimtemplates": [a_template()]}


def serving(node: Json = NODE_A) -> Json:
    """Return the node with an agent that serves claims."""
    found = deepcopy(node)
    found["metadata"]["annotations"][SERVES_CLAIMS_ANNOTATION] = "true"
    return {"kind": "Node", **found}


def pods_of(*documents: Json) -> list[tuple[str, str]]:
    return [(each["status"], each["node"] or "") for each in shown(*documents)["pods"]]


def holding(name: str, claim: str, shared: bool) -> Holder:
    """Return a pod that holds 4000 MiB of the first card by a claim."""
    share = a_share(FIRST, 4_000)
    part = replace(share.containers[0], name="gpu/gpu", claim=ClaimRef(claim, f"claim-{claim}", shared))
    return replace(a_holder(name, replace(share, containers=(part,))), pod=Pod(f"uid-{name}", "default", name))


def test_pods_that_bring_claims_from_files_find_cards_like_others() -> None:
    pods = [{"kind": "Pod", **a_claiming_pod(f"pod-{number}", template="half")} for number in range(5)]
    found = pods_of(serving(), a_template("half", memory="8000Mi"), *pods)
    assert found == [("placed", "node-a")] * 4 + [("no-room", "")]


def test_a_node_whose_agent_serves_no_claims_takes_none_of_them() -> None:
    (pod,) = shown({"kind": "Node", **NODE_A}, a_template(), a_claiming_pod("pod", template="quarter"))["pods"]
    assert [each["text"] for each in pod["reasons"]] == ["the node's agent serves no ResourceClaims"]


def test_pods_that_share_a_claim_have_one_share() -> None:
    names = ("first", "second", "third")
    pods = [a_claiming_pod(name, named="ours") for name in names]
    whole = a_claiming_pod("whole", template="whole")
    documents = (serving(), a_resource_claim("ours", memory="16000Mi"), a_template("whole", memory="16000Mi"))
    found = shown(*documents, *pods, whole)["pods"]
    assert [(each["status"], each["node"], sum(map(len, each["containers"].values()))) for each in found] == [
        ("placed", "node-a", 1),
        ("placed", "node-a", 0),
        ("placed", "node-a", 0),
        ("placed", "node-a", 1),
    ]


def test_what_is_wrong_with_a_claim_is_said() -> None:
    found = shown(serving(), a_claiming_pod("pod", template="missing"))
    assert [each["problem"] for each in found["problems"]] == [
        "claim gpu: there is no ResourceClaimTemplate missing in namespace default"
    ]


@pytest.mark.parametrize("spec", [{"devices": {"requests": [{}]}}, {"devices": 3}])
def test_a_claim_that_is_none_is_a_problem_of_its_file(spec: Json) -> None:
    broken = {**a_resource_claim("broken"), "spec": spec}
    (problem,) = shown(serving(), broken)["problems"]
    assert problem["problem"].startswith("it is no ResourceClaim of resource.k8s.io/v1")


async def test_a_cluster_is_asked_what_its_pods_claims_ask_for() -> None:
    waiting = [a_claiming_pod("waits", template="quarter"), a_claiming_pod("joins", named="ours")]
    running = a_claiming_pod("runs", named="ours", node_name="node-a", phase="Running")
    ours = a_resource_claim("ours", "node-a", [FIRST.uuid], ["runs"])
    cards = [an_allocation(FIRST, holding("runs", "ours", shared=True)), an_allocation(SECOND)]
    reads = FakeReads([serving()], cards, [running], waiting, claims={**CLAIMS, "resourceclaims": [ours]})
    found = await answered(reads)
    assert [(each.pod, each.status, each.node_name) for each in found.pods] == [
        ("default/waits", PodStatus.PLACED, "node-a"),
        ("default/joins", PodStatus.PLACED, "node-a"),
    ]
    assert found.problems == ()


async def test_a_cluster_without_claims_says_so_of_pods_that_bring_some() -> None:
    reads = FakeReads([serving()], [], [], [a_claiming_pod("waits", template="quarter")])
    found = await answered(reads)
    assert [each.text for each in found.problems] == [
        "claim gpu: there is no ResourceClaimTemplate quarter in namespace default"
    ]
