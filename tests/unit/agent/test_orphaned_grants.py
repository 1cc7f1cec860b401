"""A pod is gone when the kubelet has not shown it twice, and the API server says so, too."""

from dataclasses import replace

import pytest

from fakes.agent_node import NODE, AgentNode
from fakes.grants import a_grant
from gpuledger.agent.grants.grants import OrphanedGrants
from gpuledger.model.errors import Unreachable


@pytest.fixture
def ended() -> set[str]:
    """Return the UIDs of pods of which nothing is left, as the agent has seen."""
    return set()


@pytest.fixture
def orphaned_grants(node: AgentNode, ended: set[str]) -> OrphanedGrants:
    return OrphanedGrants(NODE, node.grants.all, node, node.api.store, lambda: ended)


async def pods_gone(node: AgentNode, orphaned: OrphanedGrants) -> set[str]:
    """Return the UIDs of pods whose grants are found."""
    found = await orphaned.find()
    return {grant.pod_uid for grant in node.grants.all() if grant.name in found}


async def running(node: AgentNode, name: str, card: int) -> None:
    pod = node.bind(name, {"main": [card]})
    await node.admit(pod)
    await node.start(pod, "main")


async def test_a_pod_that_is_deleted_is_gone_at_the_second_look(
    node: AgentNode, orphaned_grants: OrphanedGrants
) -> None:
    await running(node, "a", 0)
    await running(node, "b", 1)
    assert await pods_gone(node, orphaned_grants) == set()
    node.kubelet.forget("uid-a")
    node.api.delete_pod("a")
    assert await pods_gone(node, orphaned_grants) == set()
    assert await pods_gone(node, orphaned_grants) == {"uid-a"}


async def test_a_pod_whose_name_has_come_to_another_is_gone_though_the_kubelet_shows_the_name(
    node: AgentNode, orphaned_grants: OrphanedGrants
) -> None:
    """What it was given had to stay at first: its container still ran when the other one started."""
    await running(node, "a", 0)
    node.grants.write(replace(a_grant("slot-9-old"), pod_uid="uid-old"))
    assert await pods_gone(node, orphaned_grants) == set()
    assert await pods_gone(node, orphaned_grants) == {"uid-old"}


async def test_a_pod_of_which_nothing_is_left_is_gone_though_another_of_its_name_is_shown_that_has_no_grant(
    node: AgentNode, orphaned_grants: OrphanedGrants, ended: set[str]
) -> None:
    """A kubelet that has lost its record of slots starts the other one without."""
    await running(node, "a", 0)
    await running(node, "b", 1)
    ended |= {"uid-a", "uid-of-a-pod-without-grants"}
    assert await pods_gone(node, orphaned_grants) == {"uid-a"}


async def test_a_kubelet_that_starts_while_the_api_server_is_away_makes_nobody_go(
    node: AgentNode, orphaned_grants: OrphanedGrants
) -> None:
    await running(node, "a", 0)
    node.kubelet.forget("uid-a")
    for _ in range(3):
        assert await pods_gone(node, orphaned_grants) == set()


async def test_a_pod_that_has_ended_is_gone_before_it_is_deleted(
    node: AgentNode, orphaned_grants: OrphanedGrants
) -> None:
    await running(node, "a", 0)
    pod = node.api.pods["default", "a"]
    node.api.put_pod(pod | {"status": pod["status"] | {"phase": "Succeeded"}})
    node.kubelet.forget("uid-a")
    await pods_gone(node, orphaned_grants)
    assert await pods_gone(node, orphaned_grants) == {"uid-a"}


async def test_nobody_is_asked_without_a_reason(node: AgentNode, orphaned_grants: OrphanedGrants) -> None:
    node.list_fails = Unreachable("nobody should ask")
    assert await pods_gone(node, orphaned_grants) == set()
    node.list_fails = None
    await running(node, "a", 0)
    node.api.calls.clear()
    for _ in range(3):
        assert await pods_gone(node, orphaned_grants) == set()
    assert node.api.calls == []


async def test_an_answer_that_does_not_come_counts_for_nothing(
    node: AgentNode, orphaned_grants: OrphanedGrants
) -> None:
    await running(node, "a", 0)
    node.kubelet.forget("uid-a")
    node.api.delete_pod("a")
    await pods_gone(node, orphaned_grants)
    node.list_fails = Unreachable("the kubelet starts")
    with pytest.raises(Unreachable):
        await pods_gone(node, orphaned_grants)
    node.list_fails = None
    assert await pods_gone(node, orphaned_grants) == set()
    assert await pods_gone(node, orphaned_grants) == {"uid-a"}
