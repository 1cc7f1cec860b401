"""Nodes are asked for by stand-ins: as many as are needed, none without a pod that waits, and each gone in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import cards_of, whole_share
from effort import times
from fakes.api_server import ApiServer, Operation, hold_request, lose_answer, refuse
from fakes.objects import GPU, MEMORY, a_node_object, a_pod_object
from fakes.operator_parts import PATIENCE_S, OperatorParts
from fakes.reservation_server import ReservationServer, a_reservation
from fakes.virtual_time import wall
from gpuledger.configuration.node_templates import NewNodes, NodeTaint
from gpuledger.controller import startup
from gpuledger.formats.annotations import STAND_IN_LABEL
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL
from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE
from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.kubernetes.stand_in import NOBODY
from gpuledger.formats.resource_claims.claims import SERVES_CLAIMS_ANNOTATION
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import BadInput, Denied, EventReason, Unreachable
from gpuledger.model.share import Holder
from gpuledger.reports.explanation import Kind
from gpuledger.workflows.growth import demand

Json = dict[str, Any]

LABELS = {"pool": "gpus"}
TEMPLATE = NewNodes(name="two-cards", labels=LABELS, cards=2, memory_mib=10_000)
LATE_S = 10.0
"""Later than the delay, and than all writes."""


def a_new_node(name: str, created: str = "2030-06-01T00:00:00Z") -> Json:
    """Return a node of the template."""
    node = a_node_object(name, cards_of(name, 2))
    node["metadata"] |= {"labels": dict(LABELS), "creationTimestamp": created}
    node["metadata"]["annotations"][SERVES_CLAIMS_ANNOTATION] = "true"
    node["status"]["allocatable"] |= {"memory": "64Gi"}
    return node


def an_operator(
    api: ApiServer, *templates: NewNodes, growth: str = "stand-ins", keeps_nodes: bool = True
) -> OperatorParts:
    """Return an operator that has just become active and read everything, or the next one after a restart."""
    parts = OperatorParts(api, growth=growth, node_templates=templates or (TEMPLATE,), keep_nodes_in_use=keeps_nodes)
    parts.read_cards()
    for node in api.nodes.values():
        parts.observer.node(node, gone=False)
    parts.observer.synced = True
    parts.watch()
    for each in parts.workflows.growth.followers:
        each.became_active()
    return parts


@contextmanager
def running(parts: OperatorParts) -> Iterator[None]:
    """Have the operator decide, until the end."""
    task = asyncio.create_task(parts.workflows.growth.nodes.run(lambda: True))
    try:
        yield
    finally:
        task.cancel()


async def pass_time(parts: OperatorParts, seconds: float = LATE_S) -> None:
    """Let time pass while the watches show what is written."""
    for _ in range(int(seconds * 10)):
        parts.watch()
        await asyncio.sleep(0.1)
    parts.watch()


def stand_ins(api: ApiServer) -> list[Json]:
    return [pod for pod in api.pods.values() if STAND_IN_LABEL in (pod["metadata"].get("labels") or {})]


def whole(name: str, cards: int = 2, **fields: Any) -> Json:
    return a_pod_object(name, {GPU: cards}, **fields)


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


async def test_as_many_nodes_are_asked_for_as_the_pods_need_and_each_by_all_cards_of_a_node(api: ApiServer) -> None:
    parts = an_operator(api)
    for name in ("a", "b"):
        api.put_pod(whole(name))
    for number in range(4):
        api.put_pod(a_pod_object(f"share-{number}", {GPU: 1, MEMORY: 5_000}))
    with running(parts):
        await pass_time(parts)
    found = stand_ins(api)
    assert len(found) == 3
    for pod in found:
        assert pod["metadata"]["namespace"] == LEASE_NAMESPACE
        assert pod["spec"]["schedulerName"] == NOBODY
        assert pod["spec"]["nodeSelector"] == LABELS
        assert pod["spec"]["containers"][0]["resources"]["requests"] == {GPU: "2"}
        [condition] = pod["status"]["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "Unschedulable",
        )
    assert parts.workflows.growth.nodes.counts() == {"two-cards": (3, 3)}
    [wanted] = parts.workflows.growth.nodes.wanted()
    assert len(wanted.served) == 6


async def test_nothing_is_asked_for_before_a_pod_has_waited_and_nothing_is_left_after(api: ApiServer) -> None:
    parts = an_operator(api)
    api.put_pod(whole("a", created="2130-01-01T00:00:00Z"))
    with running(parts):
        await pass_time(parts, 4.0)
        assert stand_ins(api) == []
        await pass_time(parts)
        assert len(stand_ins(api)) == 1
        api.delete_pod("a")
        await pass_time(parts, 2.0)
    assert stand_ins(api) == []
    assert parts.workflows.growth.nodes.wanted() == []


async def test_a_pod_that_finds_room_wants_nothing(api: ApiServer) -> None:
    api.put_node(a_new_node("node-a"))
    for card in cards_of("node-a", 2):
        api.put_card(card)
    parts = an_operator(api)
    api.put_pod(whole("a"))
    with running(parts):
        await pass_time(parts)
    assert stand_ins(api) == []


async def test_a_new_node_takes_no_pod_before_its_stand_in_is_deleted(api: ApiServer) -> None:
    """Else the autoscaler sees a stand-in that needs a node of its own, and adds one too many."""
    parts = an_operator(api)
    api.put_pod(whole("a"))
    held = asyncio.Event()
    with running(parts):
        await pass_time(parts)
        assert len(stand_ins(api)) == 1
        api.queue(Operation.DELETE_POD, hold_request(held))
        api.put_node(a_new_node("node-new"))
        await pass_time(parts, 3.0)
        await parts.inventory.worker.idle()
        await pass_time(parts, 1.0)
        assert len(stand_ins(api)) == 1
        refused = parts.filter("a", "node-new")
        assert list(refused.refused.values()) == ["node has just come, and takes pods once its stand-in is deleted"]
        held.set()
        await pass_time(parts, 2.0)
        assert stand_ins(api) == []
        assert list(parts.filter("a", "node-new").node_names) == ["node-new"]
        await pass_time(parts)
    assert stand_ins(api) == []


async def test_of_several_new_nodes_each_ends_one_stand_in(api: ApiServer) -> None:
    parts = an_operator(api)
    for name in ("a", "b"):
        api.put_pod(whole(name))
    with running(parts):
        await pass_time(parts)
        assert len(stand_ins(api)) == 2
        for number in (1, 2):
            api.put_node(a_new_node(f"node-{number}"))
            await pass_time(parts, 3.0)
            await parts.inventory.worker.idle()
            await pass_time(parts, 3.0)
            assert len(stand_ins(api)) == 2 - number


@pytest.mark.parametrize("operation", [Operation.CREATE_POD, Operation.CHANGE_STATUS, Operation.DELETE_POD])
@pytest.mark.parametrize("fault", [lose_answer(), refuse(Unreachable("down"))], ids=["answer-lost", "refused"])
async def test_a_write_that_fails_is_repeated_and_makes_nothing_twice(
    api: ApiServer, operation: Operation, fault: Any
) -> None:
    parts = an_operator(api)
    api.put_pod(whole("a"))
    api.queue(operation, fault)
    with running(parts):
        await pass_time(parts)
        [found] = stand_ins(api)
        assert found["status"]["conditions"]
        api.delete_pod("a")
        await pass_time(parts)
    assert stand_ins(api) == []


async def test_the_next_operator_keeps_the_stand_ins_that_it_finds_and_finishes_them(api: ApiServer) -> None:
    first = an_operator(api)
    for name in ("a", "b"):
        api.put_pod(whole(name))
    blocked = asyncio.Event()
    api.queue(Operation.CHANGE_STATUS, hold_request(blocked), hold_request(blocked))
    with running(first):
        await pass_time(first)
    await first.workflows.stop()
    names = {pod["metadata"]["name"] for pod in stand_ins(api)}
    assert len(names) == 2
    second = an_operator(api)
    with running(second):
        await pass_time(second)
    assert {pod["metadata"]["name"] for pod in stand_ins(api)} == names
    assert all(pod["status"]["conditions"] for pod in stand_ins(api))


async def test_nodes_that_do_not_come_are_given_up_said_so_and_asked_for_later(api: ApiServer) -> None:
    parts = an_operator(api)
    api.put_pod(whole("a"))
    with running(parts):
        await pass_time(parts)
        [first] = stand_ins(api)
        await pass_time(parts, PATIENCE_S)
        assert stand_ins(api) == []
        assert [(uid, reason) for uid, _, reason, _ in parts.told_pods] == [("uid-a", EventReason.NODES_NOT_COMING)]
        await pass_time(parts, PATIENCE_S)
        [second] = stand_ins(api)
    assert first["metadata"]["name"] != second["metadata"]["name"]


@pytest.mark.parametrize("growth", ["none", "metric"])
async def test_by_another_setting_there_is_no_stand_in_and_what_is_left_is_deleted(api: ApiServer, growth: str) -> None:
    first = an_operator(api)
    api.put_pod(whole("a"))
    with running(first):
        await pass_time(first)
    await first.workflows.stop()
    assert len(stand_ins(api)) == 1
    second = an_operator(api, growth=growth)
    with running(second):
        await pass_time(second)
    assert stand_ins(api) == []
    assert second.workflows.growth.nodes.counts() == ({} if growth == "none" else {"two-cards": (1, 0)})


async def test_without_permission_the_log_says_so_and_it_is_tried_later(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    parts = an_operator(api)
    api.put_pod(whole("a"))
    api.queue(Operation.CREATE_POD, refuse(Denied("pods is forbidden", 403)))
    with running(parts):
        await pass_time(parts)
        assert stand_ins(api) == []
        await pass_time(parts, 60.0)
    assert len(stand_ins(api)) == 1
    assert caplog.text.count("manifests/growth") == 1


async def test_a_pod_that_may_not_go_to_such_nodes_wants_none(api: ApiServer) -> None:
    tainted = TEMPLATE.model_copy(update={"taints": (NodeTaint(key="gpu", value="yes"),)})
    parts = an_operator(api, tainted)
    api.put_pod(whole("a"))
    tolerant = whole("b")
    tolerant["spec"]["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    api.put_pod(tolerant)
    with running(parts):
        await pass_time(parts)
    [found] = stand_ins(api)
    taint = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    assert found["spec"]["tolerations"] == [taint]
    assert parts.workflows.growth.nodes.unhelped == {
        "uid-a": {"two-cards": ("taint", "the pod does not tolerate the taint gpu=yes:NoSchedule")}
    }


async def test_what_a_template_does_not_describe_is_learned_from_a_node(api: ApiServer) -> None:
    learned = NewNodes(name="two-cards", labels=LABELS, most_nodes=3)
    parts = an_operator(api, learned)
    for name in ("a", "b", "c", "d"):
        api.put_pod(whole(name))
    with running(parts):
        await pass_time(parts)
        assert stand_ins(api) == []
        api.put_node(a_new_node("node-old", created="2020-01-01T00:00:00Z"))
        await pass_time(parts, 1.0)
        await parts.inventory.worker.idle()
        await pass_time(parts)
    assert len(stand_ins(api)) == 2  # with the one that is there, no more than three


async def test_where_kube_scheduler_takes_not_even_an_empty_node_no_other_is_asked_for(api: ApiServer) -> None:
    """Its CPU may be taken by pods that are not counted here: one node after the other would be of no use."""
    api.put_node(a_new_node("node-empty"))
    api.put_node(a_node_object("node-other"))
    for card in cards_of("node-empty", 2):
        api.put_card(card)
    parts = an_operator(api)
    api.put_pod(whole("a"))
    with running(parts):
        await pass_time(parts, 100.0)
        parts.filter("a", "node-other")
        await pass_time(parts)
    assert stand_ins(api) == []
    assert parts.workflows.growth.nodes.unhelped["uid-a"] == {
        "two-cards": ("kube-scheduler", "kube-scheduler takes the pod on no such node, although one is empty")
    }


async def test_a_new_node_that_lacks_what_its_template_has_takes_pods_after_a_while(api: ApiServer) -> None:
    parts = an_operator(api)
    api.put_pod(whole("a"))
    node = a_new_node("node-new")
    del node["metadata"]["annotations"][SERVES_CLAIMS_ANNOTATION]
    with running(parts):
        await pass_time(parts)
        api.put_node(node)
        await pass_time(parts, 2.0)
        await parts.inventory.worker.idle()
        await pass_time(parts)
        assert len(stand_ins(api)) == 1
        await pass_time(parts, 30.0)
    assert stand_ins(api) == []
    assert list(parts.filter("a", "node-new").node_names) == ["node-new"]


async def test_a_pod_whose_claims_are_not_known_yet_wants_nodes_once_they_are(api: ApiServer) -> None:
    parts = an_operator(api)
    formats = parts.workflows.context.formats
    is_known, real = asyncio.Event(), formats.request

    def request(pod: Json) -> Any:
        if not is_known.is_set():
            raise BadInput("claim gpu is not known")
        return real({**pod, "spec": {**pod["spec"], "resourceClaims": []}})

    formats.request = request  # type: ignore[assignment]
    claiming = whole("a")
    claiming["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    api.put_pod(claiming)
    with running(parts):
        await pass_time(parts)
        assert stand_ins(api) == []
        is_known.set()
        await pass_time(parts)
    assert len(stand_ins(api)) == 1


async def test_a_gang_gets_nodes_for_all_that_it_lacks_once_it_is_complete(api: ApiServer) -> None:
    parts = an_operator(api)
    members = [whole(f"train-{number}") for number in range(3)]
    for each in members:
        each["metadata"]["labels"] = {GANG_LABEL: "train", MINIMUM_LABEL: "3"}
    api.put_pod(members[0])
    api.put_pod(members[1])
    with running(parts):
        await pass_time(parts)
        assert stand_ins(api) == []
        api.put_pod(members[2])
        await pass_time(parts)
    assert len(stand_ins(api)) == 3
    [wanted] = parts.workflows.growth.nodes.wanted()
    assert wanted.served == ("gang default/train",)
    found = await parts.workflows.explainer.explain(Kind.GANG, "default", "train")
    assert [(each.template, each.wanted) for each in found.new_nodes] == [("two-cards", 3)]


@pytest.mark.parametrize(
    ("template", "waits"),
    [(TEMPLATE, True), (TEMPLATE.model_copy(update={"taints": (NodeTaint(key="gpu"),)}), False)],
    ids=["nodes-may-come", "nodes-are-of-no-help"],
)
async def test_others_leave_for_a_pod_once_no_node_has_come_for_it(
    api: ApiServer, template: NewNodes, waits: bool
) -> None:
    card, *_ = cards = cards_of("node-old", 1)
    low = whole("low", 1, node_name="node-old", phase="Running", started=True)
    api.put_pod(low)
    api.put_card(card, Holder(pod_identity(low), whole_share(card)))
    api.put_node(a_node_object("node-old", cards))
    parts = OperatorParts(api, growth="stand-ins", node_templates=(template,), preemption_waits_for_nodes_s=60.0)
    await parts.observer.take_over()
    high = whole("high", 1, priority=100, created=wall().strftime("%Y-%m-%dT%H:%M:%SZ"))
    high["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    api.put_pod(high)
    preempting = asyncio.create_task(startup._preempt(parts.as_operator()))
    with running(parts):
        await pass_time(parts, 2.0)
        parts.filter("high", "node-old")
        await pass_time(parts, 40.0)
        assert bool(api.called(Operation.EVICT)) is not waits
        await pass_time(parts, 25.0)
        parts.filter("high", "node-old")  # kube-scheduler is called, as its last question is old by then
        await pass_time(parts, 5.0)
        assert api.called(Operation.EVICT)
    preempting.cancel()


async def test_pods_that_are_gated_or_over_their_quota_or_have_endless_rules_want_no_node(api: ApiServer) -> None:
    parts = an_operator(api)
    gated, endless, over = whole("gated"), whole("endless"), whole("over")
    gated["spec"]["schedulingGates"] = [{"name": "kueue"}]
    endless["spec"]["tolerations"] = [{"key": "x" * 20_000, "operator": "Exists"}]
    for pod in (gated, endless, over):
        api.put_pod(pod)
    hard = {"limits.nvidia.com/gpu": "1"}
    api.put_quota({"metadata": {"uid": "q", "name": "gpus", "namespace": "default"}, "spec": {"hard": hard}})
    with running(parts):
        await pass_time(parts)
        assert stand_ins(api) == []
        gated["spec"].pop("schedulingGates")
        gated["metadata"]["namespace"] = "other"
        api.put_pod(gated)
        await pass_time(parts)
    assert len(stand_ins(api)) == 1


async def test_of_very_many_pods_the_first_are_served_first_and_others_have_their_turn(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "MOST_PODS", 3)
    parts = an_operator(api)
    for number in range(8):
        api.put_pod(whole(f"pod-{number}", created=f"2020-01-01T00:00:0{number}Z"))
    with running(parts):
        await pass_time(parts)
        assert len(stand_ins(api)) == 3
        [wanted] = parts.workflows.growth.nodes.wanted()
        assert wanted.served == ("uid-pod-0", "uid-pod-1", "uid-pod-2")
        api.delete_pod("pod-0")
        await pass_time(parts, 2.0)
        [wanted] = parts.workflows.growth.nodes.wanted()
        assert wanted.served == ("uid-pod-1", "uid-pod-2", "uid-pod-3")


class Story:
    """Pods, nodes and operators that come and go, and writes that fail."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.pods = self.nodes = 0
        self.parts = an_operator(self.api)
        self.deciding = asyncio.create_task(self.parts.workflows.growth.nodes.run(lambda: True))

    async def step(self, name: str) -> None:
        """Let one thing happen, and a moment pass."""
        match name:
            case "a pod comes":
                self.pods += 1
                self.api.put_pod(whole(f"pod-{self.pods}"))
            case "a pod goes" if waiting := [name for _, name in self.api.pods if name.startswith("pod-")]:
                self.api.delete_pod(waiting[0])
            case "a node comes":
                self.nodes += 1
                self.api.put_node(a_new_node(f"node-{self.nodes}"))
            case "a creation fails":
                self.api.queue(Operation.CREATE_POD, lose_answer())
            case "a deletion fails":
                self.api.queue(Operation.DELETE_POD, refuse(Unreachable("down")))
            case "the operator restarts":
                await self.end()
                self.parts = an_operator(self.api)
                self.deciding = asyncio.create_task(self.parts.workflows.growth.nodes.run(lambda: True))
        await self.passes(3.0)

    async def passes(self, seconds: float) -> None:
        """Let time pass, and new nodes get their cards."""
        await pass_time(self.parts, seconds / 2)
        await self.parts.inventory.worker.idle()
        await pass_time(self.parts, seconds / 2)

    async def end(self) -> None:
        self.deciding.cancel()
        await self.parts.workflows.stop()


STEPS = ("a pod comes", "a pod goes", "a node comes", "a creation fails", "a deletion fails", "the operator restarts")


@given(st.lists(st.sampled_from(STEPS), max_size=10))
@settings(max_examples=times(10, 300, check=5), suppress_health_check=list(HealthCheck))
async def test_whatever_happens_there_are_as_many_stand_ins_as_pods_lack_nodes_and_in_the_end_none(
    steps: list[str],
) -> None:
    """Each pod needs all of a node. Nobody binds any, so a node that is there is for one of those that wait."""
    story = Story()
    for each in steps:
        await story.step(each)
    await story.passes(60.0)
    waiting = [name for _, name in story.api.pods if name.startswith("pod-")]
    assert len(stand_ins(story.api)) == max(len(waiting) - story.nodes, 0)
    assert all(pod["status"].get("conditions") for pod in stand_ins(story.api))
    for name in waiting:
        story.api.delete_pod(name)
    await story.passes(60.0)
    assert stand_ins(story.api) == []
    assert [name for name in story.api.nodes if name in story.parts.ledger.arriving] == []
    await story.end()


async def test_what_is_reserved_and_has_no_cards_asks_for_nodes_until_it_goes() -> None:
    """Three pods that will want a card each: two nodes of two; one that has room on a node wants none."""
    api = ReservationServer()
    parts = an_operator(api)
    api.reserve(a_reservation("web", {GPU: "1"}, count=3))
    with running(parts):
        await pass_time(parts)
        assert len(stand_ins(api)) == 2
        [wanted] = parts.workflows.growth.nodes.wanted()
        assert wanted.served == tuple(f"reservation default/web {number}" for number in range(3))
        api.delete_reservation("web")
        await pass_time(parts)
    assert stand_ins(api) == []


@pytest.mark.parametrize("limits", [{GPU: "3"}, {GPU: "1", MEMORY: "20000"}, {MEMORY: "much"}])
async def test_a_reservation_that_no_new_node_helps_asks_for_none(limits: Json) -> None:
    api = ReservationServer()
    parts = an_operator(api)
    api.reserve(a_reservation("web", limits))
    with running(parts):
        await pass_time(parts)
    assert stand_ins(api) == []


async def test_a_reservation_that_has_not_begun_asks_for_no_nodes() -> None:
    api = ReservationServer()
    parts = an_operator(api)
    api.reserve(a_reservation("web", {GPU: "1"}, notBefore=rfc3339(wall() + timedelta(seconds=60))))
    with running(parts):
        await pass_time(parts)
        assert stand_ins(api) == []
        await pass_time(parts, 60.0)
        assert len(stand_ins(api)) == 1


async def test_where_autoscalers_may_remove_nodes_without_pods_no_reservation_asks_for_some() -> None:
    api = ReservationServer()
    parts = an_operator(api, keeps_nodes=False)
    api.reserve(a_reservation("web", {GPU: "1"}))
    with running(parts):
        await pass_time(parts)
    assert stand_ins(api) == []
