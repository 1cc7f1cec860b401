"""A gang leaves whole where its minimum would be broken, once each, and for that cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from builders import cards_of, whole_share
from fakes.api_server import ApiServer, Operation
from fakes.objects import GPU, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.controller import startup
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.scheduler import PreemptArguments
from gpuledger.model.card import Card
from gpuledger.model.share import Holder
from gpuledger.workflows.preemption.preempt import SETTLE_S

Json = dict[str, Any]
LOW, HIGH = 1, 100
CARDS = {name: cards_of(name, 2) for name in ("node-a", "node-b")}


def runs_on(api: ApiServer, name: str, card: Card, *, gang: str = "", minimum: int = 0, priority: int = LOW) -> None:
    """Have a pod run that has a card for itself."""
    pod = a_pod_object(name, {GPU: "1"}, node_name=card.node_name, priority=priority, phase="Running", started=True)
    pod["metadata"]["annotations"] = {"gpuledger.dev/devices": f'{{"main": [{{"uuid": "{card.uuid}"}}]}}'}
    if gang:
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": gang, "gpuledger.dev/gang-minimum": str(minimum)}
    api.put_pod(pod)
    api.put_card(card, Holder(pod_identity(pod), whole_share(card), attempt="first"))


async def running(api: ApiServer) -> AsyncIterator[OperatorParts]:
    """Yield an operator with its loops, over two nodes of two cards each."""
    for name, cards in CARDS.items():
        api.put_node(a_node_object(name, cards))
    parts = an_operator(api)
    await parts.observer.take_over()
    operator = parts.as_operator()
    loops = [asyncio.create_task(startup._give_room(operator)), asyncio.create_task(startup._preempt(operator))]
    await parts.idle()
    yield parts
    for loop in loops:
        loop.cancel()
    await parts.preemption.executor.worker.stop()


async def victims_of_one(
    api: ApiServer, *, pods: int = 1, node_names: tuple[str, ...] = ("node-a",), first: tuple[str, ...] = ()
) -> list[str]:
    """Return who is evicted for pods of high priority that ask for a card each; the `first` may go elsewhere."""
    async for parts in running(api):
        for number in range(pods):
            pod = a_pod_object(f"high-{number}", {GPU: "1"}, priority=HIGH)
            unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            api.put_pod({**pod, "status": {**pod["status"], "conditions": [unschedulable]}})
            parts.filter(f"high-{number}", *(node_names if number or not first else first))
            await parts.idle()
        await asyncio.sleep(4 * SETTLE_S)
        await settle()
        await parts.idle()
    return [call.path.split("/")[6] for call in api.called(Operation.EVICT)]


async def test_a_gang_leaves_whole_and_each_member_is_told_once(api: ApiServer) -> None:
    a, b = CARDS["node-a"], CARDS["node-b"]
    for name, card in (("m0", a[0]), ("m1", b[0]), ("m2", b[1])):
        runs_on(api, name, card, gang="train", minimum=3)
    runs_on(api, "important", a[1], priority=HIGH)
    assert sorted(await victims_of_one(api)) == ["m0", "m1", "m2"]


async def test_two_that_wait_have_each_member_leave_once(api: ApiServer) -> None:
    for number, card in enumerate([*CARDS["node-a"], *CARDS["node-b"]]):
        runs_on(api, f"m{number}", card, gang="train", minimum=4)
    assert sorted(await victims_of_one(api, pods=2, node_names=("node-a", "node-b"))) == ["m0", "m1", "m2", "m3"]


async def test_what_a_gang_leaves_behind_on_other_nodes_costs_no_other_pod_its_place(api: ApiServer) -> None:
    """Though by itself, the single pod would cost less than the gang."""
    a, b = CARDS["node-a"], CARDS["node-b"]
    for name, card in (("m0", a[0]), ("m1", b[0])):
        runs_on(api, name, card, gang="train", minimum=2)
    runs_on(api, "single", b[1])
    runs_on(api, "important", a[1], priority=HIGH)
    found = await victims_of_one(api, pods=2, first=("node-a",), node_names=("node-a", "node-b"))
    assert sorted(found) == ["m0", "m1"]


async def test_one_pod_leaves_rather_than_a_gang_of_the_same_priority(api: ApiServer) -> None:
    a, b = CARDS["node-a"], CARDS["node-b"]
    for name, card in (("m0", a[0]), ("m1", b[0])):
        runs_on(api, name, card, gang="train", minimum=2)
    runs_on(api, "single", a[1])
    assert await victims_of_one(api) == ["single"]


async def test_a_gang_with_one_important_member_stays(api: ApiServer) -> None:
    a, b = CARDS["node-a"], CARDS["node-b"]
    runs_on(api, "m0", a[0], gang="train", minimum=2)
    runs_on(api, "m1", b[0], gang="train", minimum=2, priority=HIGH)
    runs_on(api, "single", a[1], priority=HIGH - 1)
    assert await victims_of_one(api) == ["single"]


async def test_a_member_beyond_the_minimum_leaves_alone(api: ApiServer) -> None:
    for number, card in enumerate([*CARDS["node-a"], CARDS["node-b"][0]]):
        runs_on(api, f"m{number}", card, gang="train", minimum=2)
    runs_on(api, "important", CARDS["node-b"][1], priority=HIGH)
    assert len(await victims_of_one(api, node_names=("node-a", "node-b"))) == 1


async def test_those_beyond_the_minimum_leave_with_the_others(api: ApiServer) -> None:
    """Two of the gang's three members are on the node where both cards are wanted."""
    for number, card in enumerate([*CARDS["node-a"], CARDS["node-b"][0]]):
        runs_on(api, f"m{number}", card, gang="train", minimum=2)
    runs_on(api, "important", CARDS["node-b"][1], priority=HIGH)
    assert sorted(await victims_of_one(api, pods=2)) == ["m0", "m1", "m2"]


@pytest.mark.parametrize(("priority", "expected"), [(LOW, {"node-a": ("uid-m0", "uid-m1")}), (HIGH, {})])
async def test_mates_are_added_to_what_kube_scheduler_would_evict(
    api: ApiServer, priority: int, expected: dict[str, tuple[str, ...]]
) -> None:
    """Those on other nodes leave by the operator's hand; and if one may not leave, nobody does."""
    a, b = CARDS["node-a"], CARDS["node-b"]
    for name, card in (("m0", a[0]), ("m1", a[1])):
        runs_on(api, name, card, gang="train", minimum=3)
    runs_on(api, "m2", b[0], gang="train", minimum=3, priority=priority)
    high = a_pod_object("high", {GPU: "1"}, priority=HIGH)
    api.put_pod(high)
    async for parts in running(api):
        asked = PreemptArguments(high, {"node-a": ("uid-m0",)}, {"node-a": 0})
        assert await parts.preemption.for_scheduler.preempt(asked) == expected
        await parts.idle()
    assert [call.path.split("/")[6] for call in api.called(Operation.EVICT)] == (["m2"] if expected else [])
