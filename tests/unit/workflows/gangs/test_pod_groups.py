"""A gang that is named after a PodGroup: it comes late, changes, is deleted, or says what can't be had."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import cards_of
from fakes.api_server import ApiServer
from fakes.objects import GPU, a_pod_object
from fakes.operator_parts import OperatorParts, an_operator
from fakes.virtual_time import settle
from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.formats.kubernetes.gang import GANG_LABEL, MINIMUM_LABEL, OF_WAY, GroupWords
from gpuledger.model.gang import MOST_MEMBERS, GangWay
from gpuledger.workflows.gangs.plans import TRY_PAUSE_S
from gpuledger.workflows.gangs.turns import QUIET_S
from gpuledger.workflows.kinds import POD_GROUPS
from unit.workflows.gangs.test_gangs import come

Json = dict[str, Any]
COSCHEDULING, VOLCANO, KUBERNETES = (OF_WAY[way] for way in (GangWay.COSCHEDULING, GangWay.VOLCANO, GangWay.KUBERNETES))


@pytest.fixture
def parts(api: ApiServer) -> OperatorParts:
    """Return an operator over one node with four cards, which has read the lists of PodGroups, all empty."""
    for card in cards_of("node-a", 4):
        api.put_card(card)
    found = an_operator(api)
    for words in OF_WAY.values():
        found.workflows.gangs.pod_groups.listing(words)(set())
    return found


def member(name: str, group: str = "train") -> Json:
    found = a_pod_object(name, {GPU: "1"})
    found["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
    return found


def volcanos(name: str, group: str = "train") -> Json:
    found = a_pod_object(name, {GPU: "1"})
    found["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
    return found


def group(minimum: object, name: str = "train", namespace: str = "default", uid: str = "1") -> Json:
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid}, "spec": {"minMember": minimum}}


def native(policy: Json) -> Json:
    found = group(None)
    found["spec"] = {"schedulingPolicy": policy}
    return found


def show(parts: OperatorParts, found: Json, words: GroupWords = COSCHEDULING, gone: bool = False) -> None:
    parts.workflows.gangs.pod_groups.observe(words, found, gone)


def refusal(parts: OperatorParts, name: str) -> str:
    """Return why kube-scheduler is told to put a pod nowhere, nothing if it may go to the node."""
    result = parts.filter(name, "node-a")
    assert bool(result.node_names) != bool(result.refused)
    return result.refused.get("node-a", "")


async def woken(api: ApiServer, parts: OperatorParts, names: str) -> str:
    """Let gangs be tried that are due; return whom that has woken."""
    await settle()
    await parts.workflows.queue.give_room()
    await settle()
    pods = {name: api.pods["default", name]["metadata"] for name in names}
    return "".join(n for n, found in pods.items() if WOKEN_ANNOTATION in (found.get("annotations") or {}))


def on_hold(parts: OperatorParts) -> int:
    return sum(len(entry.seats) for entry in parts.ledger.entries())


async def test_a_gang_whose_group_says_how_many_is_bound_together(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(3))
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(QUIET_S)
    assert "have been created" in refusal(parts, "a")
    come(api, parts, member("c"))
    assert [refusal(parts, name) for name in "abc"] == ["", "", ""]
    first = asyncio.create_task(parts.bind("a", "node-a"))
    await settle()
    assert not first.done()
    await asyncio.gather(first, parts.bind("b", "node-a"), parts.bind("c", "node-a"))
    assert all(api.pods["default", name]["spec"]["nodeName"] == "node-a" for name in "abc")


async def test_a_pod_whose_group_does_not_exist_waits_and_is_woken_when_it_comes(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, *map(member, "ab"))
    assert [refusal(parts, name) for name in "ab"] == [
        "PodGroup default/train of scheduling.x-k8s.io does not exist"
    ] * 2
    assert "does not exist" in (await parts.explainer.explain("default", "a")).summary
    assert on_hold(parts) == 0
    parts.workflows.context.room_has_changed.clear()
    show(parts, group(2))
    await settle()
    assert parts.workflows.context.room_has_changed.is_set()
    assert await woken(api, parts, "ab") == "ab"
    assert [refusal(parts, name) for name in "ab"] == ["", ""]


async def test_a_kind_that_the_api_server_does_not_have_is_said_and_comes_later(
    api: ApiServer, parts: OperatorParts
) -> None:
    parts.workflows.gangs.pod_groups.can_not_be_read(COSCHEDULING, POD_GROUPS[COSCHEDULING.way].absent)
    come(api, parts, *map(member, "ab"))
    assert POD_GROUPS[COSCHEDULING.way].absent in refusal(parts, "a")
    listed = parts.workflows.gangs.pod_groups.listing(COSCHEDULING)
    show(parts, group(2))
    listed({"1"})
    assert await woken(api, parts, "ab") == "a"
    assert refusal(parts, "b") == ""


async def test_a_lower_minimum_lets_those_start_that_are_there(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(5))
    come(api, parts, *map(member, "abcde"))
    assert "find cards at once" in refusal(parts, "a")
    show(parts, group(4))
    await asyncio.sleep(TRY_PAUSE_S)
    assert await woken(api, parts, "abcde") == "a"
    assert on_hold(parts) == 4


async def test_a_higher_minimum_keeps_a_gang_waiting_that_has_room(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(2))
    come(api, parts, *map(member, "ab"))
    assert refusal(parts, "a") == ""
    show(parts, group(3))
    binding = asyncio.create_task(parts.bind("a", "node-a"))
    await asyncio.sleep(1.0)
    assert not binding.done()
    come(api, parts, member("c"))
    assert [refusal(parts, name) for name in "bc"] == ["", ""]
    await asyncio.gather(binding, parts.bind("b", "node-a"), parts.bind("c", "node-a"))


async def test_a_lower_minimum_ends_a_gathering_that_is_complete_by_that(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(3))
    come(api, parts, *map(member, "abc"))
    assert [refusal(parts, name) for name in "abc"] == ["", "", ""]
    binds = [asyncio.create_task(parts.bind(name, "node-a")) for name in "ab"]
    await asyncio.sleep(1.0)
    show(parts, group(2))
    await asyncio.gather(*binds)


async def test_a_group_that_is_deleted_keeps_its_pods_waiting_until_another_one_comes(
    api: ApiServer, parts: OperatorParts
) -> None:
    show(parts, group(2))
    come(api, parts, *map(member, "ab"))
    show(parts, group(2), gone=True)
    assert "does not exist" in refusal(parts, "a")
    show(parts, group(2, uid="2"))
    show(parts, group(2), gone=True)  # late news of the first one
    assert refusal(parts, "b") == ""


async def test_a_group_that_was_deleted_while_nobody_looked_is_forgotten_by_the_next_list(
    api: ApiServer, parts: OperatorParts
) -> None:
    show(parts, group(2))
    come(api, parts, *map(member, "ab"))
    parts.workflows.gangs.pod_groups.listing(COSCHEDULING)(set())
    assert "does not exist" in refusal(parts, "a")


async def test_a_minimum_above_the_members_waits_and_keeps_nothing(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(MOST_MEMBERS))
    come(api, parts, *map(member, "abcd"))
    await asyncio.sleep(QUIET_S)
    assert all("have been created" in refusal(parts, name) for name in "abcd")
    assert on_hold(parts) == 0


@pytest.mark.parametrize("odd", [MOST_MEMBERS + 1, -3, "many", {"a": 1}])
async def test_a_group_that_says_what_can_not_be_had_is_told_counted_once_and_stops_nobody_else(
    api: ApiServer, parts: OperatorParts, odd: object
) -> None:
    for _ in range(3):
        show(parts, group(odd))
    come(api, parts, *map(member, "ab"), a_pod_object("other", {GPU: "1"}))
    assert "spec.minMember" in refusal(parts, "a")
    assert refusal(parts, "other") == ""
    assert parts.counts.bad_input.labels("podgroup")._value.get() == 1
    show(parts, group(2))
    assert refusal(parts, "b") == ""


async def test_groups_of_one_name_and_two_kinds_or_namespaces_are_apart(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(2), VOLCANO)
    show(parts, group(2, namespace="elsewhere"))
    come(api, parts, member("a"), volcanos("b"))
    await asyncio.sleep(QUIET_S)
    assert "scheduling.x-k8s.io does not exist" in refusal(parts, "a")
    assert "have been created" in refusal(parts, "b")


def launcher(node_name: str = "") -> Json:
    """Return a member that asks for no GPU."""
    found = a_pod_object("launcher", {"cpu": "1"}, node_name=node_name)
    found["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "train"}
    return found


async def test_a_member_without_gpus_counts_as_a_pod_group_counts_all(api: ApiServer, parts: OperatorParts) -> None:
    """kube-scheduler never asks about it: without this, a training with a launcher would never start."""
    show(parts, group(3))
    come(api, parts, *map(member, "ab"))
    await asyncio.sleep(QUIET_S)
    assert "have been created" in refusal(parts, "a")
    come(api, parts, launcher())
    assert await woken(api, parts, "ab") == "a"
    assert [refusal(parts, name) for name in "ab"] == ["", ""]
    come(api, parts, launcher(node_name="node-a"))  # it is bound before them
    await asyncio.gather(parts.bind("a", "node-a"), parts.bind("b", "node-a"))


async def test_a_member_without_gpus_that_is_gone_does_not_count(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(3))
    come(api, parts, *map(member, "ab"), launcher(node_name="node-a"))
    api.delete_pod("launcher")
    parts.watch()
    await asyncio.sleep(QUIET_S)
    assert "have been created" in refusal(parts, "a")
    come(api, parts, launcher())
    parts.observer.pending_listing()({"uid-a", "uid-b"})  # it went while nobody looked
    await asyncio.sleep(QUIET_S)
    assert "have been created" in refusal(parts, "b")


@pytest.mark.parametrize("policy", [{"basic": {}}, {"gang": {"minCount": 1}}])
async def test_pods_of_a_group_that_is_no_gang_are_placed_one_by_one(
    api: ApiServer, parts: OperatorParts, policy: Json
) -> None:
    pod = a_pod_object("a", {GPU: "1"})
    pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    come(api, parts, pod)
    assert "does not exist" in refusal(parts, "a")
    show(parts, native(policy), KUBERNETES)
    assert parts.waiting.waiting() == {"uid-a"}  # as a pod like any other, which is woken when it has room
    assert refusal(parts, "a") == ""
    await parts.bind("a", "node-a")


async def test_explain_says_what_names_the_gang_and_how_many_start_together(
    api: ApiServer, parts: OperatorParts
) -> None:
    come(api, parts, member("a"), a_pod_object("alone", {GPU: "1"}))

    async def gang_of(name: str) -> object:
        return (await parts.explainer.explain("default", name)).json()["gangWords"]

    assert await gang_of("a") == "PodGroup train of scheduling.x-k8s.io (Coscheduling)"
    show(parts, group(3))
    assert await gang_of("a") == "PodGroup train of scheduling.x-k8s.io (Coscheduling): 3 of its pods start together"
    assert await gang_of("alone") is None


async def test_explain_names_the_members_that_another_scheduler_places(api: ApiServer, parts: OperatorParts) -> None:
    show(parts, group(3))
    elsewhere = {**member("c"), "spec": {**member("c")["spec"], "schedulerName": "default-scheduler"}}
    come(api, parts, *map(member, "ab"), elsewhere)
    await asyncio.sleep(QUIET_S)
    assert "have been created" in refusal(parts, "a")
    warnings = (await parts.explainer.explain("default", "a")).warnings
    assert any("gang train" in text and "1 by default-scheduler" in text for text in warnings)
    api.delete_pod("c")
    assert (await parts.explainer.explain("default", "a")).warnings == ()


async def test_explain_names_a_priority_that_is_not_the_groups(api: ApiServer, parts: OperatorParts) -> None:
    found = native({"gang": {"minCount": 2}})
    found["spec"]["priorityClassName"] = "training"
    show(parts, found, KUBERNETES)
    for name, classes in (("a", {}), ("b", {"priorityClassName": "training"})):
        pod = a_pod_object(name, {GPU: "3"})
        pod["spec"] |= {"schedulingGroup": {"podGroupName": "train"}, **classes}
        come(api, parts, pod)
    assert refusal(parts, "a")
    named = (await parts.explainer.explain("default", "a")).warnings
    assert any("training" in text for text in named)
    assert (await parts.explainer.explain("default", "b")).warnings == ()


async def test_our_labels_win_over_a_pod_group_that_does_not_exist(api: ApiServer, parts: OperatorParts) -> None:
    pods = [volcanos(name) for name in "ab"]
    for pod in pods:
        pod["metadata"]["labels"] = {GANG_LABEL: "ours", MINIMUM_LABEL: "2"}
    come(api, parts, *pods)
    assert [refusal(parts, name) for name in "ab"] == ["", ""]


async def test_an_operator_that_starts_knows_who_waits_for_a_group_that_it_has_not_read(api: ApiServer) -> None:
    """It must not take members of a gang for pods that go alone, before it knows better."""
    for card in cards_of("node-a", 4):
        api.put_card(card)
    parts = an_operator(api)
    come(api, parts, *map(member, "ab"))
    assert parts.workflows.gangs.members.was_tried("uid-a")
    assert "not been read yet" in refusal(parts, "b")
    assert parts.workflows.gangs.pod_groups.named[GangWay.COSCHEDULING].is_set()
    assert not parts.workflows.gangs.pod_groups.named[GangWay.VOLCANO].is_set()
    listed = parts.workflows.gangs.pod_groups.listing(COSCHEDULING)
    show(parts, group(2))
    listed({"1"})
    assert await woken(api, parts, "ab") == "ab"
