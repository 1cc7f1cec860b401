"""Workloads whose pods bring ResourceClaims: counted by what their templates ask for."""

from __future__ import annotations

import asyncio

import pytest

from fakes.claims import OUR_CLASS, a_template
from fakes.queue_objects import a_pod_set
from fakes.queue_scene import QueueScene
from fakes.queue_server import QueueServer
from gpuledger.formats.resource_claims.claims import DRIVER
from gpuledger.model.node import NodeOffer
from gpuledger.workflows.namespace_allowances import MOST_STEPS, STEPS_PER_S
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind

CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "whole"}]


@pytest.fixture
def book(scene: QueueScene) -> ClaimBook:
    """Return what is known of claims: our class, on a node whose agent serves claims."""
    for node in scene.nodes:
        scene.ledger.set_offer(node, NodeOffer(resources=frozenset({DRIVER})))
    book = scene.parts.workflows.claims.book
    book.observe(Kind.CLASSES, {**OUR_CLASS, "metadata": {**OUR_CLASS["metadata"], "uid": "class"}}, gone=False)
    for kind in Kind:
        book.subscriptions[kind].begin_list()({"class"})
    return book


def know_template(book: ClaimBook, memory: str = "16000Mi") -> None:
    template = a_template("whole", memory=memory)
    book.observe(Kind.TEMPLATES, {**template, "metadata": {**template["metadata"], "uid": "template"}}, gone=False)


async def test_pods_by_claim_of_a_workload_have_room_reserved_for_them(
    api: QueueServer, scene: QueueScene, book: ClaimBook
) -> None:
    know_template(book)
    scene.submit("job", pod_sets=[a_pod_set("main", 4, {}, resourceClaims=CLAIMS)])
    scene.submit("more", pod_sets=[a_pod_set("main", 1, {}, resourceClaims=CLAIMS)])
    await scene.work()
    assert book.wanted.is_set()
    assert (api.state("job"), api.state("more")) == ("Ready", "Pending")
    assert scene.reserved("job") == ["node-a"] * 4


async def test_a_workload_waits_for_its_template_and_is_tried_when_that_is_there(
    api: QueueServer, scene: QueueScene, book: ClaimBook
) -> None:
    scene.submit("job", pod_sets=[a_pod_set("main", 2, {}, resourceClaims=CLAIMS)])
    await scene.work()
    state, message = api.said("job")
    assert (state, "there is no ResourceClaimTemplate whole in namespace default" in message) == ("Pending", True)
    know_template(book)
    await scene.work()
    assert api.state("job") == "Ready"


async def test_a_workload_waits_for_its_selectors_if_its_namespace_has_used_up_what_they_may_cost(
    api: QueueServer, scene: QueueScene, book: ClaimBook
) -> None:
    chosen = [{"cel": {"expression": f'device.attributes["{DRIVER}"].uuid != "of no card"'}}]
    template = a_template("whole", selectors=chosen)
    book.observe(Kind.TEMPLATES, {**template, "metadata": {**template["metadata"], "uid": "template"}}, gone=False)
    account = book.payer("default")
    assert account is not None
    account.pay(2 * MOST_STEPS)
    scene.submit("job", pod_sets=[a_pod_set("main", 2, {}, resourceClaims=CLAIMS)])
    await scene.work()
    state, message = api.said("job")
    assert (state, "the selectors of namespace default take long to evaluate" in message) == ("Pending", True)
    await asyncio.sleep(2 * MOST_STEPS / STEPS_PER_S)
    await scene.work()
    assert api.state("job") == "Ready"
