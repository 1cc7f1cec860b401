"""Others leave for a group of which kube-scheduler has asked for one member only, if the other ones are like it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.api_server import ApiServer, Operation
from fakes.objects import a_node_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import settle
from gpuledger.formats.kubernetes.gang import OF_WAY
from gpuledger.model.gang import GangWay
from gpuledger.workflows.preemption.preempt import FRESH_S, SETTLE_S
from unit.workflows.preemption.test_preempt_gang import (
    CARDS,
    NODES,
    ask,
    end,
    evicted,
    member,
    members_of,
    pass_time,
    reserved,
    run,
    runs_on,
)

Json = dict[str, Any]
GROUP = "train"


@pytest.fixture
async def parts(api: ApiServer) -> AsyncIterator[OperatorParts]:
    """Yield an operator over two nodes, full of pods of low priority, that knows a group of eight."""
    for number, card in enumerate(CARDS):
        runs_on(api, f"low-{number}", card)
    for name, cards in NODES.items():
        api.put_node(a_node_object(name, cards))
    async for running in run(api):
        group: Json = {"metadata": {"namespace": "default", "name": GROUP, "uid": "1"}}
        group["spec"] = {"schedulingPolicy": {"gang": {"minCount": 8}}}
        running.workflows.gangs.pod_groups.observe(OF_WAY[GangWay.KUBERNETES], group, gone=False)
        yield running


def in_group(name: str, **spec: Any) -> Json:
    """Return a member as kube-scheduler leaves one that it has not come to."""
    pod = member(name, 8, schedulingGroup={"podGroupName": GROUP}, **spec)
    del pod["metadata"]["labels"]
    pod["status"]["conditions"][0]["reason"] = "SchedulerError"
    return pod


async def come(parts: OperatorParts, *pods: Json) -> None:
    """Have the members come, and kube-scheduler find no node for the first."""
    first = pods[0]
    first["status"]["conditions"][0]["reason"] = "Unschedulable"
    for pod in pods:
        parts.api.put_pod(pod)
    parts.watch()
    await settle()
    assert await ask(parts, [first["metadata"]["name"]]) == [[]]
    await pass_time(parts, 4 * SETTLE_S)


async def test_eight_leave_once_each_for_eight_of_whom_one_was_asked_for(api: ApiServer, parts: OperatorParts) -> None:
    names = members_of(8)
    await come(parts, *map(in_group, names))
    assert sorted(evicted(api)) == [f"low-{number}" for number in range(8)]
    await end(parts, *evicted(api))
    assert sorted(reserved(api)) == names
    assert all(await ask(parts, names))
    assert len(api.called(Operation.EVICT)) == 8


@pytest.mark.parametrize(
    "different", [{"nodeSelector": {"disk": "fast"}}, {"preemptionPolicy": "Never"}], ids=["elsewhere", "polite"]
)
async def test_nobody_leaves_while_it_is_not_known_where_one_of_them_can_go(
    api: ApiServer, parts: OperatorParts, different: Json
) -> None:
    *names, last = members_of(8)
    await come(parts, *map(in_group, names), in_group(last, **different))
    assert evicted(api) == []


async def test_a_member_that_is_different_counts_once_it_was_asked_for(api: ApiServer, parts: OperatorParts) -> None:
    *names, last = members_of(8)
    other = in_group(last, nodeSelector={"disk": "fast"})
    other["status"]["conditions"][0]["reason"] = "Unschedulable"
    await come(parts, *map(in_group, names), other)
    assert await ask(parts, [last]) == [[]]
    await pass_time(parts, 4 * SETTLE_S)
    assert len(evicted(api)) == 8


async def test_what_is_known_of_one_member_is_as_old_for_the_others(api: ApiServer, parts: OperatorParts) -> None:
    """None of them is taken to have been asked for a moment ago, and the one that was is asked for again."""
    names = members_of(8)
    api.delete_pod("low-0")
    runs_on(api, "equal", CARDS[0], priority=100)
    await pass_time(parts, SETTLE_S)
    await come(parts, *map(in_group, names))
    assert evicted(api) == []
    await pass_time(parts, 2 * FRESH_S)
    api.delete_pod("equal")
    runs_on(api, "low-new", CARDS[0])
    await pass_time(parts, 2)
    assert evicted(api) == []
    assert await ask(parts, names[:1]) == [[]]
    await pass_time(parts, 2)
    assert len(evicted(api)) == 8
