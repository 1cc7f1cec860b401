"""What kube-scheduler does otherwise with Kubernetes' own groups: it patches members before Bind, and does not wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import cards_of
from fakes.api_server import ApiServer, Operation, refuse
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import now_s, settle
from gpuledger.formats.kubernetes.gang import OF_WAY
from gpuledger.model.errors import BindFailed, Invalid
from gpuledger.model.gang import GangWay
from gpuledger.workflows.binding.bind_pod import ANSWER_PAUSE_S

Json = dict[str, Any]
KUBERNETES = OF_WAY[GangWay.KUBERNETES]


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with four cards, which knows a group of three."""
    for card in cards_of("node-a", 4):
        api.put_card(card)
    found = an_operator(api)
    metadata = {"namespace": "default", "name": "train", "uid": "1"}
    found.workflows.gangs.pod_groups.observe(
        KUBERNETES, {"metadata": metadata, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}, gone=False
    )
    for name in "abc":
        pod = a_pod_object(name, {GPU: "1"})
        pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
        api.put_pod(pod)
    found.watch()
    return found


def ask(parts: OperatorParts) -> None:
    for name in "abc":
        assert parts.filter(name, "node-a").node_names == ["node-a"]


def nominate(api: ApiServer, name: str) -> None:
    """Change a pod as kube-scheduler does between Filter and Bind."""
    pod = api.pods["default", name]
    api.put_pod({**pod, "status": {**pod["status"], "nominatedNodeName": "node-a"}})


async def bind_all(parts: OperatorParts) -> list[BaseException | None]:
    return await asyncio.gather(*(parts.bind(name, "node-a") for name in "abc"), return_exceptions=True)


def bindings(api: ApiServer) -> int:
    return len(api.called(Operation.BIND))


async def test_what_kube_scheduler_patches_before_bind_costs_no_second_binding(
    api: ApiServer, parts: OperatorParts
) -> None:
    ask(parts)
    for name in "abc":
        nominate(api, name)
    parts.watch()
    assert await bind_all(parts) == [None] * 3
    assert bindings(api) == 3


async def test_a_change_that_the_watch_has_not_shown_costs_one_and_does_no_harm(
    api: ApiServer, parts: OperatorParts
) -> None:
    ask(parts)
    nominate(api, "a")
    assert await bind_all(parts) == [None] * 3
    assert bindings(api) == 4


async def test_a_pod_that_asks_for_something_else_by_now_is_read_again_before_it_is_bound(
    api: ApiServer, parts: OperatorParts
) -> None:
    """The Binding may only rely on a newer state of the pod if what was chosen is still what it asks for."""
    ask(parts)
    member = parts.workflows.gangs.members.of("uid-a")
    assert member is not None
    request = member.pending["uid-a"].request
    pod = api.pods["default", "a"]
    api.put_pod({**pod, "metadata": {**pod["metadata"], "annotations": {"nvidia.com/use-gpuuuid": "GPU-other"}}})
    parts.watch()
    assert member.pending["uid-a"].request != request
    assert parts.workflows.gangs.members.latest_version("uid-a", request, "1") == "1"


async def test_a_bind_that_is_always_refused_is_answered_once_a_second(api: ApiServer, parts: OperatorParts) -> None:
    ask(parts)
    api.queue(Operation.BIND, *[refuse(Invalid("a policy refuses", 422))] * 1_000)
    await asyncio.gather(*(parts.bind(name, "node-a") for name in "abc"), return_exceptions=True)
    begin_s, tries = now_s(), 0
    while now_s() < begin_s + 10:
        with pytest.raises(BindFailed):
            await parts.bind("a", "node-a")
        tries += 1
        await settle()
    assert tries <= 10 / ANSWER_PAUSE_S + 1
