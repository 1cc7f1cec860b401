"""What becomes of idle shares: told, yielded, or evicted, as the administrator says; and how long they were idle."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import a_card
from fakes.api_server import ApiServer, Operation
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import OperatorParts
from fakes.virtual_time import LoopClock, wall
from gpuledger.controller import startup
from gpuledger.formats.custom_resource.usage import record
from gpuledger.formats.idle import IDLE_ANNOTATION, Idleness, idle_annotation
from gpuledger.model.usage import Held, total_of

Json = dict[str, Any]
CARDS = [a_card(0), a_card(1)]
WHOLE = {GPU: "1", MEMORY: str(CARDS[0].capacity.memory_mib)}
HOUR_S = 3600.0
AGENT = "uid-of-agent"
AFTER_S, GRACE_S = HOUR_S, HOUR_S / 2
"""The settings' own."""


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    """Return an API server with a node of two cards, whose definition knows accounts."""
    api.keep_accounts()
    api.put_node(a_node_object("node-a", CARDS))
    for card in CARDS:
        api.put_card(card)
    return api


async def an_operator(api: ApiServer, policy: str = "report", **settings: object) -> OperatorParts:
    parts = OperatorParts(api, clock=LoopClock(), more={"idle_policy": policy, **settings})
    await parts.observer.resync()
    await pass_by(parts, 1)
    return parts


async def pass_by(parts: OperatorParts, seconds: float) -> None:
    until_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until_s:
        await parts.idle()
        left_s = until_s - asyncio.get_running_loop().time()
        await asyncio.sleep(min(max(1.0, seconds / 100), max(left_s, 0.0)))
    await parts.idle()


async def begin(parts: OperatorParts, name: str = "a", owned: bool = True, **annotations: str) -> None:
    """Have a pod hold a whole card."""
    pod = a_pod_object(name, WHOLE)
    pod["metadata"]["annotations"] = annotations
    if owned:
        pod["metadata"]["ownerReferences"] = [
            {"kind": "StatefulSet", "name": "notebook", "uid": "s", "controller": True}
        ]
    parts.api.put_pod(pod)
    parts.watch()
    await parts.bind(name, "node-a")
    pod = parts.api.pods["default", name]
    parts.api.put_pod(
        {**pod, "status": {**pod.get("status", {}), "phase": "Running", "startTime": "2030-01-01T00:00:00Z"}}
    )
    await parts.idle()


def says(api: ApiServer, since: datetime | None, before_s: int = 0, name: str = "a", agent: str = AGENT) -> None:
    """Have the node's agent say since when a pod's share is idle."""
    (uuid,) = (card.uuid for card in CARDS if f"uid-{name}" in api.holders_of(card))
    annotate(api, idle_annotation({(f"uid-{name}", uuid): Idleness(since, before_s)}, wall(), agent))


def annotate(api: ApiServer, text: str) -> None:
    node = api.nodes["node-a"]
    annotations = {**node["metadata"].get("annotations", {}), IDLE_ANNOTATION: text}
    api.put_node({**node, "metadata": {**node["metadata"], "annotations": annotations}})


def evicted(api: ApiServer) -> list[str]:
    return [call.body["metadata"]["name"] for call in api.called(Operation.EVICT)]


def told(parts: OperatorParts) -> list[str]:
    return [sentence for uid, reason, sentence, _ in parts.told_once if uid == "uid-a" and reason == "GPUIdle"]


async def test_by_default_its_namespace_is_told_once_and_nothing_else_happens(api: ApiServer) -> None:
    parts = await an_operator(api)
    await begin(parts)
    says(api, wall())
    await pass_by(parts, AFTER_S - 60)
    assert told(parts) == []
    await pass_by(parts, 5 * AFTER_S)
    assert told(parts) == ["none of its shares of GPUs was used for 60 min: others can't use what it holds"]
    assert evicted(api) == []


async def test_by_policy_it_is_evicted_after_the_grace_and_once(api: ApiServer) -> None:
    parts = await an_operator(api, "evict")
    await begin(parts)
    says(api, wall())
    await pass_by(parts, AFTER_S + GRACE_S - 60)
    assert evicted(api) == []
    assert told(parts) == [
        "none of its shares of GPUs was used for 60 min: in 30 min it is evicted, unless it uses them before"
    ]
    await pass_by(parts, HOUR_S)
    assert evicted(api) == ["a"]


async def test_use_within_the_grace_saves_it(api: ApiServer) -> None:
    parts = await an_operator(api, "evict")
    await begin(parts)
    says(api, wall())
    await pass_by(parts, AFTER_S + 60)
    says(api, None, 4000)
    await pass_by(parts, 3 * HOUR_S)
    assert evicted(api) == []


async def test_a_word_that_the_node_has_taken_back_unseen_evicts_nobody(api: ApiServer) -> None:
    parts = await an_operator(api, "evict")
    await begin(parts)
    says(api, wall())
    await pass_by(parts, AFTER_S + GRACE_S - 60)
    says(api, None, 5000)
    parts._shown = len(api.changes)  # the watch is behind
    await asyncio.sleep(120)
    await parts.workflows.accounting.idle.worker.idle()
    assert evicted(api) == []


async def test_a_word_of_an_agent_that_is_there_no_more_evicts_nobody_until_the_next_one_says_the_same(
    api: ApiServer,
) -> None:
    parts = await an_operator(api, "evict")
    await begin(parts)
    says(api, wall(), agent="uid-of-one-before")
    parts.workflows.agents.observe(an_agent(), gone=False)
    await pass_by(parts, 3 * HOUR_S)
    assert (told(parts), evicted(api)) == ([], [])
    says(api, wall() - timedelta(hours=3))
    await pass_by(parts, 60)
    assert evicted(api) == ["a"]


def an_agent() -> Json:
    metadata = {"uid": AGENT, "name": "gpuledger-agent-x", "namespace": "gpuledger-system"}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"}
    return {"metadata": metadata, "spec": {"nodeName": "node-a", "containers": []}, "status": ready}


@pytest.mark.parametrize(
    ("owned", "annotation", "allowed", "leaves"),
    [(True, "", True, True), (True, "keep", True, False), (True, "keep", False, True), (False, "", True, False)],
    ids=["as any", "it says no", "it says no, and may not", "nothing would make it anew"],
)
async def test_who_stays(api: ApiServer, owned: bool, annotation: str, allowed: bool, leaves: bool) -> None:
    parts = await an_operator(api, "evict", idle_keep_allowed=allowed)
    await begin(parts, owned=owned, **({"gpuledger.dev/idle": annotation} if annotation else {}))
    says(api, wall())
    await pass_by(parts, AFTER_S + GRACE_S + 60)
    assert evicted(api) == (["a"] if leaves else [])


@pytest.mark.parametrize(
    ("setting", "of_namespace", "leaves"),
    [("evict", "report", False), ("report", "evict", True), ("evict", "?", False)],
)
async def test_a_namespaces_word_comes_first(api: ApiServer, setting: str, of_namespace: str, leaves: bool) -> None:
    api.namespaces["default"] = {"gpuledger.dev/idle-policy": of_namespace}
    parts = await an_operator(api, setting)
    await begin(parts)
    says(api, wall())
    await pass_by(parts, AFTER_S + GRACE_S + 60)
    assert bool(evicted(api)) == leaves


async def test_a_pod_is_idle_if_all_of_its_shares_are(api: ApiServer) -> None:
    parts = await an_operator(api, "evict")
    api.put_pod(a_pod_object("a", WHOLE | {GPU: "2"}))
    parts.watch()
    await parts.bind("a", "node-a")
    await parts.idle()
    annotate(api, idle_annotation({("uid-a", CARDS[0].uuid): Idleness(wall())}, wall(), AGENT))
    await pass_by(parts, 3 * HOUR_S)
    assert (told(parts), evicted(api)) == ([], [])


async def test_one_that_yields_leaves_for_a_pod_of_no_higher_priority_and_only_for_one(api: ApiServer) -> None:
    parts = await an_operator(api, "yield", preemption="own")
    for name in ("a", "busy"):
        await begin(parts, name)
    says(api, wall())
    await pass_by(parts, AFTER_S + GRACE_S + 60)
    assert evicted(api) == [], "nobody waits"
    assert parts.ledger.holders.yielding == {"uid-a"}
    await one_more_comes(parts)
    assert evicted(api) == ["a"]


async def test_one_that_is_used_again_yields_no_more(api: ApiServer) -> None:
    parts = await an_operator(api, "yield", preemption="own")
    for name in ("a", "busy"):
        await begin(parts, name)
    says(api, wall())
    await pass_by(parts, AFTER_S + GRACE_S + 60)
    says(api, None, 9000)
    await pass_by(parts, 10)
    assert parts.ledger.holders.yielding == set()
    await one_more_comes(parts)
    assert evicted(api) == []


async def one_more_comes(parts: OperatorParts) -> None:
    """Let a pod of the same priority come that finds no room, and the operator look for some."""
    pod = a_pod_object("waits", WHOLE)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    parts.api.put_pod(pod)
    parts.watch()
    assert not parts.filter("waits", "node-a").node_names
    operator = parts.as_operator()
    loops = [asyncio.create_task(startup._give_room(operator)), asyncio.create_task(startup._preempt(operator))]
    await pass_by(parts, 60)
    for loop in loops:
        loop.cancel()
    await parts.preemption.executor.worker.stop()


async def test_how_long_a_share_was_idle_is_in_the_record_and_never_more_than_it_was_held(api: ApiServer) -> None:
    parts = await an_operator(api)
    await begin(parts)
    says(api, wall() - timedelta(days=3))  # a node that makes it up
    await pass_by(parts, HOUR_S)
    says(api, None, 1200)
    await pass_by(parts, HOUR_S)
    pod = api.pods["default", "a"]
    api.put_pod({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
    await pass_by(parts, 120)
    held = sum((total_of(record(each).lines) for each in api.usages.values()), Held())
    assert held.card_ms == pytest.approx(2 * HOUR_S * 1000, rel=0.01)
    assert held.idle_card_ms == pytest.approx(1200 * 1000, rel=0.01)


async def test_an_annotation_that_can_not_be_read_is_counted_and_stops_nothing(api: ApiServer) -> None:
    parts = await an_operator(api, "evict")
    await begin(parts)
    annotate(api, '{"uid-a": 7}')
    await pass_by(parts, 2 * HOUR_S)
    assert parts.counts.bad_input.labels("node")._value.get() == 1
    assert evicted(api) == []
