"""What a Filter looks at: what has changed, however large the cluster is. Counts, so that no machine is too slow."""

import asyncio
from itertools import pairwise
from typing import Any

from builders import OFFER, cards_of, stored
from fakes.api_server import ApiServer
from fakes.objects import CORES, GPU, PERCENTAGE, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.model.share import ContainerShare, Holder, Pod, Share
from gpuledger.placement.choose import LOOKED_AT_A_TIME

NODES = [f"node-{number:04}" for number in range(1000)]
PODS = 300
SHAPES = (
    {GPU: "1", PERCENTAGE: "25", CORES: "25"},
    {GPU: "1"},
    {GPU: "8"},
)
CHANGES_PER_POD = 3
"""Of the room on its node: its share is on hold, it is stored, the hold is given back."""


def large_operator() -> OperatorParts:
    parts = OperatorParts(ApiServer())
    for name in NODES:
        for card in cards_of(name, 8):
            parts.ledger.load(stored(card))
        parts.ledger.set_offer(name, OFFER)
    return parts


def place(parts: OperatorParts, number: int, limits: dict[str, str]) -> None:
    """Ask where a pod can go, and show the operator that its shares are stored."""
    body = a_pod_object(f"pod-{number}", limits)
    uid = body["metadata"]["uid"]
    (node_name,) = parts.placer.filter(FilterArguments(body, NODES)).node_names
    hold = parts.ledger.seats.of(uid)
    assert hold is not None
    assert hold.placement.node_name == node_name
    for share in hold.placement.shares:
        entry = parts.ledger.entry(share.uuid)
        assert entry is not None
        holders = (*entry.holders.values(), Holder(Pod(uid, "default", f"pod-{number}"), share))
        parts.ledger.load(stored(entry.card, *holders, version=entry.resource_version + 1))
    parts.placer.forget_pending(uid)


async def test_a_filter_among_a_thousand_nodes_evaluates_those_that_have_changed() -> None:
    parts = large_operator()
    place(parts, 0, SHAPES[0])
    assert parts.chooser.evaluations == len(NODES)
    for number in range(1, PODS + 1):
        before = parts.chooser.evaluations
        place(parts, number, SHAPES[0])
        assert parts.chooser.evaluations - before <= 2, "the node of the last pod, and no other"


async def test_each_shape_evaluates_each_change_once_at_most() -> None:
    parts = large_operator()
    for number in range(PODS):
        place(parts, number, SHAPES[number % len(SHAPES)])
    assert parts.chooser.evaluations <= len(SHAPES) * (len(NODES) + CHANGES_PER_POD * PODS)


async def test_a_pod_that_fits_nowhere_is_refused_again_without_an_evaluation() -> None:
    parts = large_operator()
    for number in range(PODS):
        body = a_pod_object(f"pod-{number}", {GPU: "9"})
        assert parts.placer.filter(FilterArguments(body, NODES)).node_names == []
    assert parts.chooser.evaluations == len(NODES)


async def test_while_a_new_shape_is_compared_with_all_nodes_others_have_their_turn_and_what_they_do_counts() -> None:
    parts = large_operator()
    seen = [0]

    async def occupy_the_node_that_it_would_get() -> None:
        while len(seen) < 4:
            seen.append(parts.chooser.evaluations)
            await asyncio.sleep(0)
        for card in cards_of("node-0000", 8):
            share = Share(card.uuid, card.capacity, True, (ContainerShare("main", card.capacity.memory_mib, 0),))
            parts.ledger.load(stored(card, Holder(Pod(f"uid-{card.uuid}", "default", "quick"), share), version=2))

    other = asyncio.create_task(occupy_the_node_that_it_would_get())
    names = ["node-0000", *(name for name in NODES if name != "node-0000")]
    for name in NODES[1:]:
        parts.ledger.set_offer(name, None)
    result = await parts.placer.answer(FilterArguments(a_pod_object("a", SHAPES[0]), names))
    await other
    assert max(later - earlier for earlier, later in pairwise(seen)) <= LOOKED_AT_A_TIME
    assert result.node_names == []
    assert "node-0000" in result.refused


async def test_a_pod_is_bound_by_two_tasks_one_of_its_own_and_one_of_its_card() -> None:
    api = ApiServer()
    (card,) = cards_of(NODES[0], 1)
    api.put_card(card)
    api.put_pod(a_pod_object("pod", SHAPES[0]))
    parts = an_operator(api)
    (node_name,) = parts.filter("pod", NODES[0]).node_names
    loop, names = asyncio.get_running_loop(), list[str]()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **arguments: Any) -> asyncio.Task[Any]:
        names.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **arguments)

    loop.set_task_factory(make)
    await parts.bind("pod", node_name)
    loop.set_task_factory(None)
    assert api.pods["default", "pod"]["spec"]["nodeName"] == NODES[0]
    assert sorted(names) == ["Journal._run", "PodPlacer._bind"]
