"""A claim's files go when no pod uses it, by the kubelet's word twice and the API server's, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.agent_node import NODE
from fakes.api_server import Operation
from fakes.grants import a_grant
from gpuledger.agent.grants.grants import OrphanedGrants
from gpuledger.agent.kubelet.slot_owners import ClaimInUse
from gpuledger.formats.runtime.cdi import claim_grant_name
from gpuledger.model.errors import Unreachable
from unit.agent.grants.conftest import ClaimNode, key, part, ref

MADE, SHARED = claim_grant_name("uid-made", "gpu"), claim_grant_name("uid-shared", "gpu")


@pytest.fixture
def orphaned(node: ClaimNode) -> OrphanedGrants:
    return OrphanedGrants(NODE, node.grants.all, node, node.api.store, tuple)


async def both(node: ClaimNode) -> None:
    """Have pod `a` use a claim of its own, and one that it shares with `b`."""
    node.claiming("a", {"main": ["own"], "side": ["mine"]}, mine="shared")
    node.claiming("b", {"main": ["ours"]}, ours="shared")
    node.give("a", {0: [part("own/gpu", ref("made"))], 1: [part("mine/gpu", ref("shared", shared=True))]})
    await node.claims.prepare(key("made"))
    await node.claims.prepare(key("shared"))


def listed(*names: str) -> frozenset[ClaimInUse]:
    return frozenset(ClaimInUse("default", name, frozenset()) for name in names)


async def test_without_claims_nobody_is_asked(node: ClaimNode, orphaned: OrphanedGrants) -> None:
    node.list_fails = AssertionError()
    assert await orphaned.find() == frozenset()


async def test_what_the_kubelet_lists_is_used_and_the_api_server_is_not_asked(
    node: ClaimNode, orphaned: OrphanedGrants
) -> None:
    await both(node)
    node.in_use = listed("made", "shared")
    before = len(node.api.called(Operation.LIST_PODS))
    for _ in range(3):
        assert await orphaned.find() == frozenset()
    assert len(node.api.called(Operation.LIST_PODS)) == before


async def test_what_a_pod_of_the_node_names_is_used_though_its_kubelet_has_just_started(
    node: ClaimNode, orphaned: OrphanedGrants
) -> None:
    await both(node)
    for _ in range(3):
        assert await orphaned.find() == frozenset()


async def test_a_claim_is_over_at_the_second_look_without_its_pods(node: ClaimNode, orphaned: OrphanedGrants) -> None:
    await both(node)
    node.in_use = listed("shared")
    node.api.delete_pod("a")
    assert await orphaned.find() == frozenset()
    assert await orphaned.find() == {MADE}
    node.in_use = frozenset()
    assert await orphaned.find() == {MADE}
    assert await orphaned.find() == {MADE}, "pod b shares the other one"
    node.api.put_pod(node.api.pods["default", "b"] | {"status": {"phase": "Succeeded"}})
    assert await orphaned.find() == {MADE, SHARED}


async def test_one_that_the_kubelet_shows_again_is_missing_for_the_first_time(
    node: ClaimNode, orphaned: OrphanedGrants
) -> None:
    await both(node)
    node.api.delete_pod("a")
    node.api.delete_pod("b")
    for in_use in ((), ("made", "shared"), ()):
        node.in_use = listed(*in_use)
        assert await orphaned.find() == frozenset()
    assert await orphaned.find() == {MADE, SHARED}


async def test_a_pod_that_is_gone_leaves_its_slots_and_not_a_claim_that_is_in_use(
    node: ClaimNode, orphaned: OrphanedGrants
) -> None:
    """Each kind is looked for in its own way, with one question for both."""
    await both(node)
    node.grants.write(replace(a_grant("slot-1-old"), pod_uid="uid-old", pod="old"))
    node.in_use = listed("made", "shared")
    assert await orphaned.find() == frozenset()
    assert await orphaned.find() == {"slot-1-old"}
    node.list_fails = Unreachable("the kubelet starts")
    with pytest.raises(Unreachable):
        await orphaned.find()
    node.list_fails = None
    node.in_use = frozenset()
    assert await orphaned.find() == frozenset(), "an answer that does not come counts for nothing"
