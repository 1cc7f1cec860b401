"""A node whose agent's pod is not Ready takes no pods; of a node without one, nothing is concluded."""

import asyncio
from typing import Any

import pytest

from builders import cards_of
from fakes.api_server import ApiServer, Operation
from fakes.context import a_context
from fakes.objects import a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import StoppedClock
from gpuledger.controller import startup
from gpuledger.workflows.events import AgentChanged
from gpuledger.workflows.inventory import AgentPods
from gpuledger.workflows.kinds import AGENT_PODS

CARDS = cards_of("node-a", 2)
CLOSED = ("Unavailable", "the node's GPU agent is not ready")
OPEN = ("Ready", "")


def an_agent(
    uid: str = "agent", ready: bool = True, node: str = "node-a", phase: str = "Running", deleted: bool = False
) -> dict[str, Any]:
    """Return the pod of an agent."""
    pod = a_pod_object(uid, uid=uid, node_name=node, phase=phase)
    pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return pod


NOT_READY = {
    "not Ready": an_agent(ready=False),
    "no condition yet": a_pod_object("agent", uid="agent", node_name="node-a"),
    "being deleted": an_agent(deleted=True),
    "not running": an_agent(phase="Failed"),
}


@pytest.fixture
async def parts(api: ApiServer) -> OperatorParts:
    """Return an operator that has taken in node-a, of whose agent it knows no pod."""
    api.put_node(a_node_object("node-a", CARDS))
    parts = an_operator(api)
    await parts.idle()
    return parts


async def phases(parts: OperatorParts) -> set[tuple[str, str]]:
    await parts.idle()
    return {(parts.api.card(card).phase, parts.api.card(card).reason) for card in CARDS}


async def test_without_a_pod_of_an_agent_the_kubelets_word_counts(parts: OperatorParts) -> None:
    assert await phases(parts) == {OPEN}
    assert parts.ledger.offer("node-a") is not None


@pytest.mark.parametrize("pod", NOT_READY.values(), ids=NOT_READY.keys())
async def test_a_node_whose_agent_is_not_ready_is_closed_until_it_is(parts: OperatorParts, pod: dict[str, Any]) -> None:
    parts.agents.observe(pod, gone=False)
    assert parts.ledger.offer("node-a") is None
    assert await phases(parts) == {CLOSED}
    parts.agents.observe(an_agent(), gone=False)
    assert parts.ledger.offer("node-a") is not None
    assert await phases(parts) == {OPEN}


async def test_nodes_are_told_apart(parts: OperatorParts) -> None:
    parts.agents.observe(an_agent(node="node-b", ready=False), gone=False)
    assert await phases(parts) == {OPEN}


async def test_one_ready_agent_is_enough(parts: OperatorParts) -> None:
    """As in the moment in which a new one takes over from an old one."""
    parts.agents.observe(an_agent("old", deleted=True), gone=False)
    parts.agents.observe(an_agent("new"), gone=False)
    assert await phases(parts) == {OPEN}
    parts.agents.observe(an_agent("new", ready=False), gone=False)
    assert await phases(parts) == {CLOSED}


async def test_the_last_pod_that_goes_leaves_the_decision_to_the_kubelet(parts: OperatorParts) -> None:
    parts.agents.observe(an_agent(ready=False), gone=False)
    assert await phases(parts) == {CLOSED}
    parts.agents.observe(an_agent(ready=False), gone=True)
    assert await phases(parts) == {OPEN}
    parts.api.put_node(a_node_object("node-a", CARDS, slots=0))
    assert await phases(parts) == {CLOSED}


async def test_a_node_that_comes_after_its_agents_pod_is_closed_from_the_start(api: ApiServer) -> None:
    parts = an_operator(api)
    parts.agents.observe(an_agent(ready=False), gone=False)
    api.put_node(a_node_object("node-a", CARDS))
    assert await phases(parts) == {CLOSED}
    assert parts.ledger.offer("node-a") is None


async def test_the_agents_word_and_the_kubelets_are_one_reason_and_one_write(parts: OperatorParts) -> None:
    """An agent that dies is seen by both, one after the other, and comes back by both."""
    before = len(parts.api.called(Operation.WRITE_STATUS))
    for slots, ready in ((80, False), (0, False), (0, True), (80, True)):
        parts.agents.observe(an_agent(ready=ready), gone=False)
        parts.api.put_node(a_node_object("node-a", CARDS, slots=slots))
        await parts.idle()
    assert len(parts.api.called(Operation.WRITE_STATUS)) == before + 2 * len(CARDS)


async def test_a_pod_that_says_the_same_again_costs_nothing(parts: OperatorParts) -> None:
    parts.agents.observe(an_agent(), gone=False)
    changes = parts.ledger.changes
    for _ in range(3):
        parts.agents.observe(an_agent(), gone=False)
    assert parts.ledger.changes == changes


def test_a_pod_that_is_in_no_list_any_more_is_forgotten_and_one_that_came_meanwhile_is_not() -> None:
    context, told = a_context(StoppedClock()), list[str]()
    agents = AgentPods(context)
    context.events.on(AgentChanged, lambda event: told.append(event.node_name))
    agents.observe(an_agent("old", ready=False), gone=False)
    listed = agents.listing()
    agents.observe(an_agent("new", ready=False, node="node-b"), gone=False)
    listed(set())
    assert (agents.not_ready("node-a"), agents.not_ready("node-b")) == (False, True)
    assert told == ["node-a", "node-b", "node-a"]


def test_a_pod_that_has_no_node_yet_and_one_that_nobody_knew_say_nothing() -> None:
    agents = AgentPods(a_context(StoppedClock()))
    agents.observe(an_agent(node="", ready=False), gone=False)
    agents.observe(an_agent("unknown"), gone=True)
    assert not agents.not_ready("")
    assert not agents.not_ready("node-a")


async def test_an_operator_starts_with_the_agents_known_or_else_after_a_while_without(api: ApiServer) -> None:
    api.put_node(a_node_object("node-a", CARDS))
    parts = OperatorParts(api)
    operator = parts.as_operator()
    (agents,) = (each for each in operator.subscriptions if each.kind is AGENT_PODS)
    agents.listed.clear()
    running = asyncio.create_task(startup._keep_in_sync(operator))
    await asyncio.sleep(AGENT_PODS.start_wait_s - 0.1)
    assert not parts.observer.synced
    await asyncio.sleep(0.2)
    assert parts.observer.synced
    running.cancel()
    await parts.idle()


def test_an_agent_is_known_by_its_node_as_long_as_it_has_a_pod() -> None:
    agents = AgentPods(a_context(StoppedClock()))
    agents.observe(an_agent("old"), gone=False)
    agents.observe(an_agent("new", ready=False), gone=False)
    agents.observe(an_agent("other", node="node-b", ready=False), gone=False)
    agents.observe(an_agent("unbound", node=""), gone=False)
    assert {node: pod.name for node, pod in agents.by_node().items()} == {"node-a": "old", "node-b": "other"}
    agents.observe(an_agent("old"), gone=True)
    assert agents.by_node()["node-a"].name == "new"
    agents.listing()({"other"})
    assert list(agents.by_node()) == ["node-b"]
