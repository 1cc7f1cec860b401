"""What the Node says of claims, and what becomes of their files while the agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from prometheus_client.core import Metric

from fakes.agent_node import NODE
from fakes.api_server import Operation
from fakes.objects import a_node_object
from fakes.virtual_time import settle
from gpuledger.agent.grants.grants import OrphanedGrants
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.formats.runtime.cdi import claim_grant_name
from unit.agent.grants.conftest import ClaimNode, key, part, ref

MADE = claim_grant_name("uid-made", "gpu")


def values(metrics: Iterable[Metric]) -> dict[str, float]:
    return {f"{each.name}{[*each.labels.values()]}": each.value for metric in metrics for each in metric.samples}


@pytest.mark.parametrize("before", [None, "true"])
@pytest.mark.parametrize(
    ("served", "told", "after"),
    [
        (True, [], "before"),
        (True, [True], "true"),
        (True, [True, True], "true"),
        (True, [False], None),
        (False, [], None),
    ],
    ids=["not asked yet", "taken up", "taken up again", "not taken up", "not served"],
)
async def test_the_node_says_that_it_serves_claims_when_its_kubelet_has_taken_up_the_driver(
    node: ClaimNode, before: str | None, served: bool, told: list[bool], after: str | None
) -> None:
    shown = a_node_object(NODE, node.cards)
    shown["metadata"]["annotations"] |= {SERVES_CLAIMS_ANNOTATION: before} if before else {}
    service = node.claim_service(served)
    node.serves_claims.observe(node.api.put_node(shown), False)
    writing = asyncio.create_task(node.serves_claims.run())
    for registered in told:
        service._observe_registration(registered)
        await settle()
    await settle()
    writing.cancel()
    found = node.api.nodes[NODE]["metadata"]["annotations"].get(SERVES_CLAIMS_ANNOTATION)
    wanted = before if after == "before" else after
    assert found == wanted
    assert len(node.api.called(Operation.ANNOTATE_NODE)) == (before != wanted)


async def test_a_service_that_is_not_wanted_ends_at_once(node: ClaimNode) -> None:
    await node.claim_service(served=False).run()


async def test_claims_that_no_pod_uses_lose_their_files_and_others_do_not(node: ClaimNode) -> None:
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    await node.claims.prepare(key("made"))
    orphaned = OrphanedGrants(NODE, node.grants.all, node, node.api.store, tuple)
    for _ in range(3):
        node.claims.give_up(await orphaned.find())
    assert list(node.granted()) == [MADE]
    orphaned = OrphanedGrants(NODE, node.grants.all, node, node.api.store, tuple)
    node.api.delete_pod("a")
    for left in ([MADE], []):
        node.claims.give_up(await orphaned.find())
        assert [grant.name for grant in node.grants.all()] == left


async def test_a_pod_that_shares_a_claim_may_use_its_cards(node: ClaimNode) -> None:
    service = node.claim_service(served=True)
    node.claiming("a", {"main": ["mine"]}, mine="shared")
    node.claiming("b", {"main": ["ours"]}, ours="shared")
    node.claiming("c", {"main": ["mine"]}, mine="another")
    assert not await service.shares("uid-b", node.cards[0].uuid)
    assert not node.api.called(Operation.LIST_PODS)
    node.give("a", {0: [part("mine/gpu", ref("shared", shared=True))]})
    await service.prepare(key("shared"))
    found = {
        (name, card.index): await service.shares(f"uid-{name}", card.uuid) for name in "abc" for card in node.cards
    }
    assert {each for each, may in found.items() if may} == {("a", 0), ("b", 0)}


async def test_it_is_counted_what_became_of_claims(node: ClaimNode) -> None:
    service = node.claim_service(served=True)
    assert values(service.metrics()) == {"gpuledger_agent_serves_claims[]": 0.0}
    service._observe_registration(True)
    node.claiming("a", {"main": ["c0"]})
    node.give("a", {0: [part("c0/gpu", ref("made"))]})
    await service.prepare(key("made"))
    assert values(service.metrics()) == {
        "gpuledger_agent_serves_claims[]": 1.0,
        "gpuledger_agent_claim_preparations_total['prepared']": 1.0,
    }
