"""Pods that bring claims, as the operator explains them, and enters them again when their shares were lost."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from builders import a_card, a_holder, a_share
from fakes.api_server import ApiServer
from fakes.claims import OUR_CLASS, a_claiming_pod, a_resource_claim, a_template
from fakes.operator_parts import OperatorParts, an_operator
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.model.node import NodeOffer
from gpuledger.model.share import ClaimRef, Holder, Pod, Share
from gpuledger.workflows.repair import SETTLE_S
from gpuledger.workflows.resource_claims.claims import Kind

Json = dict[str, Any]
CARD = a_card(0)
SHARED = ClaimRef("ours", "claim-ours", shared=True)


def by_claim(ref: ClaimRef = SHARED) -> Share:
    """Return 4000 MiB of the card by a claim that the pod calls gpu."""
    share = a_share(CARD, 4_000)
    return replace(share, containers=(replace(share.containers[0], name="gpu/gpu", claim=ref),))


def holding(name: str) -> Holder:
    return replace(a_holder(name, by_claim()), pod=Pod(f"uid-{name}", "default", name))


def know(parts: OperatorParts, kind: Kind, found: Json) -> None:
    """Let the watch of claims show an object."""
    metadata = {"uid": f"{kind} {found['metadata']['name']}", **found["metadata"]}
    parts.workflows.claims.book.observe(kind, {**found, "metadata": metadata}, gone=False)


def operator_of(api: ApiServer) -> OperatorParts:
    """Return an operator that knows our class, and a node whose agent serves claims."""
    parts = an_operator(api)
    parts.ledger.set_offer("node-a", NodeOffer(resources=frozenset({DRIVER})))
    know(parts, Kind.CLASSES, OUR_CLASS)
    return parts


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator with a card that `first` holds a part of, by a claim that others can share."""
    api.put_card(CARD, holding("first"))
    found = operator_of(api)
    know(found, Kind.CLAIMS, a_resource_claim("ours", "node-a", [CARD.uuid], ["first", "second"]))
    return found


async def explained(parts: OperatorParts, pod: Json) -> Json:
    parts.api.put_pod(pod)
    return (await parts.explainer.explain("default", pod["metadata"]["name"])).json()


async def test_a_pod_that_shares_a_claim_is_placed_and_told_who_it_counts_for(parts: OperatorParts) -> None:
    found = await explained(parts, a_claiming_pod("second", named="ours", node_name="node-a", phase="Running"))
    assert (found["state"], found["holds"], found["requests"]) == ("placed", [], [])
    assert found["summary"] == (
        "shares cards of node-a with other pods, by a claim; ResourceClaim ours counts for default/first"
    )
    assert found["sharedClaims"] == [{"claim": "gpu", "resourceClaim": "ours", "node": "node-a"}]


async def test_a_pod_that_will_share_a_claim_fits_where_its_cards_are(parts: OperatorParts) -> None:
    found = await explained(parts, a_claiming_pod("third", named="ours"))
    assert (found["state"], found["summary"]) == (
        "room-found",
        "fits on node-a now: kube-scheduler retries it in its turn",
    )


async def test_a_pod_with_a_claim_of_its_own_is_told_which_request_asks_for_what(parts: OperatorParts) -> None:
    know(parts, Kind.TEMPLATES, a_template("large", memory="15000Mi"))
    found = await explained(parts, a_claiming_pod("waits", template="large"))
    (entry,) = found["requests"]
    assert (entry["name"], entry["memoryMiB"]) == ("gpu/gpu", 15_000)
    assert found["advice"].endswith("(capacity.requests.memory), which would fit now")


async def test_what_is_known_of_claims_keeps_a_pod_waiting_in_a_sentence(parts: OperatorParts) -> None:
    missing = await explained(parts, a_claiming_pod("waits", template="missing"))
    assert missing["summary"] == (
        "can't be placed: claim gpu: there is no ResourceClaimTemplate missing in namespace default"
    )
    know(parts, Kind.CLASSES, {"metadata": {"name": "nic"}, "spec": {"selectors": []}})
    know(parts, Kind.TEMPLATES, a_template("nic", deviceClassName="nic"))
    foreign = await explained(parts, a_claiming_pod("nic", template="nic"))
    assert "claim gpu is of DeviceClass nic, which has no GPUs" in foreign["summary"]
    theirs = await explained(parts, a_claiming_pod("theirs", template="nic", scheduler_name="default-scheduler"))
    assert (theirs["state"], theirs["summary"]) == (
        "not-ours",
        "spec.schedulerName is default-scheduler: its claims are not gpuledger's to serve",
    )


async def test_a_pod_takes_another_of_its_alternatives_where_the_first_has_no_room(parts: OperatorParts) -> None:
    template = a_template("choice")
    sizes = {"large": "15000Mi", "small": "1000Mi"}
    template["spec"]["spec"]["devices"]["requests"][0] = {
        "name": "gpu",
        "firstAvailable": [
            {"name": name, "deviceClassName": DRIVER, "capacity": {"requests": {"memory": size}}}
            for name, size in sizes.items()
        ],
    }
    know(parts, Kind.TEMPLATES, template)
    assert (await explained(parts, a_claiming_pod("waits", template="choice")))["state"] == "room-found"


async def test_a_lost_share_is_entered_again_with_its_claim_as_soon_as_claims_are_known(api: ApiServer) -> None:
    """After a start, the pods can be listed before their claims are."""
    api.put_card(CARD)
    pod = a_claiming_pod("first", named="ours", node_name="node-a", phase="Running", started=True)
    pod["metadata"]["annotations"] = {DEVICES_ANNOTATION: devices_annotation([by_claim()])}
    api.put_pod(pod)
    parts = OperatorParts(api, adopt_pods=True)
    parts.read_cards()
    parts.adopter.observe(pod)
    know(parts, Kind.CLASSES, OUR_CLASS)
    know(parts, Kind.CLAIMS, a_resource_claim("ours", "node-a", [CARD.uuid], ["first"]))
    await asyncio.sleep(SETTLE_S + 0.1)
    await parts.adopter.worker.idle()
    (holder,) = api.card(CARD).holders or ()
    assert (holder.pod.name, holder.share) == ("first", by_claim())
