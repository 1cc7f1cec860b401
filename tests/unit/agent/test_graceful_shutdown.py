"""An agent that is asked to end serves until the kubelet has taken up the pods that were bound to its node."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gpuledger.agent.agent import LAST_BINDINGS_S, LONGEST_S, wait_for_bound_pods
from gpuledger.agent.supervisor import STOP_GRACE_S
from gpuledger.kube_api.reads import KubeReads, Picked
from gpuledger.model.errors import Unreachable

Json = dict[str, Any]
NODE = "node-1"


class Node(KubeReads):
    """The pods of a node, which a test changes while time goes by."""

    def __init__(self, *pods: Json) -> None:
        self.pods = list(pods)
        self.looks = 0
        self.fails: Exception | None = None

    async def pods_of_node(self, node_name: str, pick: Callable[[Json], Picked]) -> list[Picked]:
        assert node_name == NODE
        self.looks += 1
        if self.fails:
            raise self.fails
        return list(map(pick, self.pods))


def bound(**status: str) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"nodeName": NODE}, "status": {"phase": "Pending", **status}}


STARTED = bound(startTime="2030-01-01T00:00:00Z")


async def seconds_of(node: Node) -> float:
    clock = asyncio.get_running_loop()
    begin_s = clock.time()
    await wait_for_bound_pods(NODE, node)
    return clock.time() - begin_s


async def test_what_was_bound_just_before_is_waited_for() -> None:
    node = Node(STARTED, bound())
    asyncio.get_running_loop().call_later(3.0, node.pods.__setitem__, 1, STARTED)
    assert 3.0 <= await seconds_of(node) < 3.5


async def test_a_binding_that_is_still_under_way_is_waited_for() -> None:
    node = Node(STARTED)
    asyncio.get_running_loop().call_later(LAST_BINDINGS_S / 2, node.pods.append, bound())
    asyncio.get_running_loop().call_later(2.0, node.pods.__setitem__, 1, STARTED)
    assert 2.0 <= await seconds_of(node) < 2.5


@pytest.mark.parametrize(
    "pod",
    [STARTED, bound(phase="Failed"), bound() | {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}],
    ids=["started", "failed", "being deleted"],
)
async def test_nobody_waits_for_a_pod_that_needs_no_slots_any_more(pod: Json) -> None:
    assert await seconds_of(Node(pod)) == LAST_BINDINGS_S


async def test_a_kubelet_that_takes_nothing_up_is_not_waited_for_longer_than_the_supervisor_would() -> None:
    assert await seconds_of(Node(bound())) == pytest.approx(LONGEST_S)
    assert LONGEST_S < STOP_GRACE_S


async def test_it_ends_when_the_api_server_does_not_answer() -> None:
    node = Node(bound())
    node.fails = Unreachable("away")
    assert await seconds_of(node) == LAST_BINDINGS_S
    assert node.looks == 1
