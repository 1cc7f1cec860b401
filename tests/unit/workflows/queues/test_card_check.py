"""A workload is Ready when all of its pods find cards at once, and then their room is reserved until they come."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from fakes.api_server import Operation, hold_answer, hold_request, lose_answer, lose_request, refuse
from fakes.objects import GPU, MEMORY
from fakes.operator_parts import KUEUE_RESERVE_S, RELEASE_DELAY_S
from fakes.queue_objects import CHECK, a_flavor, a_pod_set
from fakes.queue_scene import WHOLE, QueueScene
from fakes.queue_server import QueueServer
from fakes.virtual_time import settle
from gpuledger.model.errors import Invalid, Unreachable
from gpuledger.model.gang import MOST_MEMBERS

HALF_S = KUEUE_RESERVE_S / 2
SAY = Operation.SAY_CHECK


async def test_who_has_quota_is_ready_when_all_of_its_pods_fit_and_their_room_is_kept(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", WHOLE, pods=3)
    await scene.work()
    assert api.state("job") == "Ready"
    assert scene.reserved("job") == ["node-a"] * 3
    assert scene.stranger("one", WHOLE)
    assert not scene.stranger("two", WHOLE)


async def test_where_not_all_fit_nothing_is_held_and_the_check_says_how_many_do(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", WHOLE, pods=5)
    await scene.work()
    state, message = api.said("job")
    assert state == "Pending"
    assert "4 of 5" in message
    assert scene.on_hold() == set()
    assert scene.stranger("one", {GPU: "4"})


async def test_who_does_not_fit_is_ready_as_soon_as_there_is_room(api: QueueServer, scene: QueueScene) -> None:
    assert scene.stranger("one", WHOLE)
    await scene.parts.bind("one", "node-a")
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    assert api.state("job") == "Pending"
    api.delete_pod("one")
    scene.parts.watch()
    await asyncio.sleep(2 * RELEASE_DELAY_S)
    await scene.parts.idle()
    await scene.work()
    assert api.state("job") == "Ready"


async def test_higher_priority_goes_first_and_then_who_got_quota_first(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("late", {GPU: "3"})
    scene.submit("later", {GPU: "3"})
    scene.submit("urgent", {GPU: "1"}, priority=10)
    scene.submit("too-late", {GPU: "1"}, priority=5)
    await scene.work()
    assert scene.states("late", "later", "urgent", "too-late") == ["Pending", "Pending", "Ready", "Ready"]
    api.evict_workload("too-late")
    scene.parts.watch()
    await scene.work()
    assert scene.states("late", "later") == ["Ready", "Pending"]


async def test_a_smaller_one_goes_on_while_a_larger_one_waits(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("large", WHOLE, pods=5, priority=10)
    scene.submit("small", WHOLE, pods=2)
    await scene.work()
    assert scene.states("large", "small") == ["Pending", "Ready"]


async def test_pods_that_ask_for_no_cards_need_none(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("plain", {"cpu": "1"})
    await scene.work()
    assert api.state("plain") == "Ready"
    assert scene.on_hold() == set()


async def test_pods_that_can_not_be_placed_are_told_why_and_hold_nothing(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("odd", {GPU: "1", MEMORY: "4Gi"})
    scene.submit("many", {GPU: "1", MEMORY: "1"}, pods=MOST_MEMBERS + 1)
    scene.submit("endless", {GPU: "1", MEMORY: "1"}, pods=2**31 - 1)
    await scene.work()
    assert scene.states("odd", "many", "endless") == ["Pending"] * 3
    assert MEMORY in api.said("odd")[1]
    assert str(MOST_MEMBERS) in api.said("many")[1]
    assert str(MOST_MEMBERS) in api.said("endless")[1]
    assert scene.on_hold() == set()


async def test_only_the_nodes_that_selectors_and_flavors_allow_are_looked_at(api: QueueServer) -> None:
    scene = QueueScene(api, {"node-a": 1, "node-b": 1, "node-c": 1})
    scene.queues.objects.flavor(a_flavor("only-c", {"name": "node-c"}), gone=False)
    scene.submit("by-selector", pod_sets=[a_pod_set("main", 1, WHOLE, nodeSelector={"name": "node-b"})])
    scene.submit("by-flavor", WHOLE, flavor="only-c")
    scene.submit("nowhere", pod_sets=[a_pod_set("main", 1, WHOLE, nodeSelector={"name": "node-d"})])
    await scene.work()
    assert scene.states("by-selector", "by-flavor", "nowhere") == ["Ready", "Ready", "Pending"]
    assert scene.reserved("by-selector") == ["node-b"]
    assert scene.reserved("by-flavor") == ["node-c"]


async def test_a_workload_that_needs_another_check_of_ours_or_none_is_left_alone(
    api: QueueServer, scene: QueueScene
) -> None:
    found = scene.submit("job", WHOLE)
    found["status"]["admissionChecks"][0]["name"] = "others"
    found["metadata"]["name"], found["metadata"]["uid"] = "foreign", "uid-foreign"
    api.put_workload(found)
    api.delete_workload("job")
    scene.parts.watch()
    await scene.work()
    assert api.called(SAY) == []
    assert scene.on_hold() == set()


async def test_nothing_is_held_while_other_checks_are_not_ready(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", WHOLE)
    api.set_check("job", "machines", "Pending")
    scene.parts.watch()
    await scene.work()
    assert api.state("job") == "Pending"
    assert "machines" in api.said("job")[1]
    assert scene.on_hold() == set()
    api.set_check("job", "machines", "Ready")
    scene.parts.watch()
    await scene.work()
    assert api.state("job") == "Ready"
    assert scene.reserved("job") == ["node-a"]


async def test_who_waits_is_written_to_only_when_there_is_news(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", WHOLE, pods=5)
    await scene.work()
    for number in range(5):
        assert scene.stranger(f"pod-{number}", {GPU: "1", MEMORY: "1"})
        await scene.later(40.0)
        await scene.later(40.0)
    texts = [call.body["status"]["admissionChecks"][0]["message"] for call in api.called(SAY)]
    assert "4 of 5" in texts[0]
    assert "3 of 5" in texts[1]
    assert all(before != now for before, now in pairwise(texts))


# How long.


async def test_room_that_nobody_has_come_for_is_given_back(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    assert not scene.stranger("one", WHOLE)
    await scene.later(KUEUE_RESERVE_S - 1)
    assert scene.reserved("job") == ["node-a"]
    assert scene.parts.placer.next_expiry_s() is not None
    await scene.later(1.1)
    assert scene.reserved("job") == []
    assert scene.asks("one") == ["node-a"]
    assert api.state("job") == "Ready"  # its pods look for cards as others do


async def test_from_its_admission_on_the_pods_have_their_time_to_come(scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    await asyncio.sleep(HALF_S)
    await scene.admit("job")
    await scene.later(KUEUE_RESERVE_S - 1)
    assert scene.reserved("job") == ["node-a"]
    await scene.later(1.1)
    assert scene.reserved("job") == []


async def test_being_admitted_is_seen_once(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    await scene.admit("job")
    await asyncio.sleep(HALF_S)
    api.set_condition("job", "PodsReady", "False")  # nothing that matters
    scene.parts.watch()
    await scene.later(HALF_S + 0.1)
    assert scene.reserved("job") == []


@pytest.mark.parametrize("how", ["evicted", "deleted", "finished", "rejected"])
async def test_who_leaves_gives_its_room_back_at_once(api: QueueServer, scene: QueueScene, how: str) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    match how:
        case "evicted":
            api.evict_workload("job")
        case "deleted":
            api.delete_workload("job")
        case "finished":
            api.set_condition("job", "Finished")
        case "rejected":
            api.set_check("job", CHECK, "Rejected")
    scene.parts.watch()
    assert scene.on_hold() == set()
    assert scene.stranger("one", {GPU: "4"})


async def test_a_workload_that_is_missing_from_a_new_list_is_forgotten(scene: QueueScene) -> None:
    scene.submit("gone", {GPU: "2"})
    scene.submit("there", {GPU: "2"})
    await scene.work()
    listed = scene.queues.check.listing()
    scene.submit("new", {GPU: "2"})
    listed({"uid-there"})
    await scene.work()
    assert scene.reserved("gone") == []
    assert scene.reserved("there") == ["node-a"]
    assert scene.reserved("new") == ["node-a"]  # it has come while the list was read


async def test_one_of_the_same_name_starts_anew(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    found = api.workloads["job"]
    api.delete_workload("job")
    found["metadata"]["uid"] = "uid-second"
    found["status"]["admissionChecks"][0]["state"] = "Pending"
    api.put_workload(found)
    scene.parts.watch()
    await scene.work()
    assert api.state("job") == "Ready"
    assert len(scene.on_hold()) == 1


# What is written.


async def test_an_older_event_does_not_undo_what_was_written_since(api: QueueServer, scene: QueueScene) -> None:
    older = scene.submit("job", {GPU: "4"})
    await scene.work()
    scene.queues.check.observe(older, gone=False)
    await scene.work()
    assert len(api.called(SAY)) == 1
    assert scene.reserved("job") == ["node-a"]
    await scene.later(KUEUE_RESERVE_S + 1)
    assert len(api.called(SAY)) == 1


async def test_an_event_while_ready_is_being_written_leaves_the_room_on_hold(
    api: QueueServer, scene: QueueScene
) -> None:
    arrives = asyncio.Event()
    api.queue(SAY, hold_request(arrives))
    scene.submit("job", {GPU: "4"})
    await scene.work()
    api.set_condition("job", "Requeued", "False")
    scene.parts.watch()
    await scene.work()
    assert scene.reserved("job") == ["node-a"]
    arrives.set()
    await scene.later(1.0)
    assert api.state("job") == "Ready"  # repeated: what has changed does not matter
    assert scene.reserved("job") == ["node-a"]


@pytest.mark.parametrize("how", ["another quota", "state", "evicted", "deleted"])
async def test_a_write_is_not_repeated_for_a_workload_that_is_not_as_it_was(
    api: QueueServer, scene: QueueScene, how: str
) -> None:
    arrives = asyncio.Event()
    api.queue(SAY, hold_request(arrives))
    found = scene.submit("job", {GPU: "4"})
    await scene.work()
    match how:
        case "another quota":
            found["status"]["conditions"][0]["lastTransitionTime"] = "2031-01-01T00:00:00Z"
            api.put_workload(found)
        case "state":
            api.set_check("job", CHECK, "Rejected")
        case "evicted":
            api.evict_workload("job")
        case "deleted":
            api.delete_workload("job")
    arrives.set()
    await settle()
    if how != "deleted":
        assert api.state("job") == {"state": "Rejected"}.get(how, "Pending")
    assert scene.on_hold() == set()
    scene.parts.watch()
    await scene.later(1.0)
    assert len(api.called(SAY)) == 1 + (how == "another quota")  # which is looked at anew


@pytest.mark.parametrize("refusal", [Invalid("refused by Kueue's webhook", 422), Unreachable("Kueue is down", 500)])
async def test_after_a_write_that_fails_the_room_is_given_up_and_it_is_tried_again_later(
    api: QueueServer, scene: QueueScene, refusal: Invalid | Unreachable
) -> None:
    api.queue(SAY, *[refuse(refusal)] * 4)
    scene.submit("job", {GPU: "4"})
    await scene.later(10.0)
    assert scene.on_hold() == set()
    assert scene.stranger("one", WHOLE)  # others have it meanwhile
    api.delete_pod("one")
    await scene.later(5.0)
    assert len(api.called(SAY)) == 4
    assert scene.on_hold() == set()
    await scene.later(2 * KUEUE_RESERVE_S)
    assert api.state("job") == "Ready"
    assert scene.reserved("job") == ["node-a"]


async def test_a_write_that_got_lost_is_repeated(api: QueueServer, scene: QueueScene) -> None:
    api.queue(SAY, lose_request())
    scene.submit("job", {GPU: "4"})
    await scene.later(1.0)
    assert api.state("job") == "Ready"
    assert scene.reserved("job") == ["node-a"]


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_write_whose_answer_got_lost_has_reserved_the_room_all_the_same(
    api: QueueServer, scene: QueueScene, is_admitted: bool
) -> None:
    api.queue(SAY, lose_answer())
    scene.submit("job", {GPU: "4"})
    await scene.work()
    assert api.state("job") == "Ready"
    if is_admitted:
        await scene.admit("job")
    await scene.later(2.0)
    assert scene.reserved("job") == ["node-a"]
    assert len(api.called(SAY)) <= 2


async def test_room_is_held_again_if_a_write_was_given_up_and_has_arrived(api: QueueServer, scene: QueueScene) -> None:
    api.queue(SAY, *[refuse(Unreachable("later", 500))] * 4)
    scene.submit("job", {GPU: "4"})
    await scene.later(10.0)
    assert scene.on_hold() == set()
    api.set_check("job", CHECK, "Ready")
    scene.parts.watch()
    await scene.work()
    assert scene.reserved("job") == ["node-a"]


async def test_an_operator_that_is_not_in_charge_writes_nothing(api: QueueServer, scene: QueueScene) -> None:
    held = asyncio.Event()
    api.queue(SAY, hold_answer(held))
    scene.submit("job", {GPU: "2"})
    await scene.work()
    scene.parts.leadership.is_active = lambda: False  # type: ignore[method-assign]
    held.set()
    await settle()
    assert len(api.called(SAY)) == 1


# Namespace quota.


def lose_seats(api: QueueServer) -> None:
    """Take all stored seats off the cards."""
    for card in api.cards.values():
        status = card["status"]
        status["holders"] = [holder for holder in status["holders"] if holder["state"] == "allocated"]
        amounts = ("memoryMiB", "cores", "number")
        status["used"] = {name: sum(holder[name] for holder in status["holders"]) for name in amounts}


def quota(scene: QueueScene, cards: int) -> None:
    found = {"uid": "uid-of-gpus", "name": "gpus", "namespace": "default"}
    hard = {"limits.nvidia.com/gpu": str(cards)}
    scene.parts.workflows.quotas.observe({"metadata": found, "spec": {"hard": hard}}, gone=False)


async def test_a_workload_keeps_to_the_quota_of_its_namespace_as_a_whole(api: QueueServer, scene: QueueScene) -> None:
    quota(scene, 2)
    scene.submit("three", WHOLE, pods=3)
    scene.submit("two", WHOLE, pods=2)
    await scene.work()
    assert scene.states("three", "two") == ["Pending", "Ready"]
    told = [call.body["status"]["admissionChecks"][0]["message"] for call in api.called(SAY) if "three" in call.path]
    assert told[0].startswith("asks for 3 cards or parts of cards, more than namespace default may have in all")
    assert not scene.stranger("one", WHOLE)  # what is reserved counts
    api.delete_pod("one")
    api.evict_workload("two")
    quota(scene, 3)
    scene.parts.watch()
    await scene.work()
    assert api.state("three") == "Ready"


async def test_pods_that_come_do_not_count_twice_for_the_quota(api: QueueServer, scene: QueueScene) -> None:
    quota(scene, 2)
    await scene.run("two", WHOLE, pods=2)
    assert scene.on_hold() == set()
    assert not scene.stranger("one", WHOLE)
    quota(scene, 3)
    assert scene.asks("one") == ["node-a"]


# After a restart.


async def one_of_three_has_come(scene: QueueScene) -> None:
    """Let a job of three pods be admitted, and the first of them be bound."""
    scene.submit("job", WHOLE, pods=3)
    await scene.work()
    await scene.admit("job")
    await scene.bind("job-0", "job", WHOLE)


async def test_a_new_operator_keeps_room_for_the_pods_that_have_not_come_for_the_rest_of_the_time(
    api: QueueServer, scene: QueueScene
) -> None:
    await one_of_three_has_come(scene)
    await asyncio.sleep(HALF_S)
    written = len(api.called(SAY))
    scene.restart()
    scene.parts.watch()
    await scene.work()
    assert scene.reserved("job") == ["node-a"] * 2
    assert scene.stranger("one", WHOLE)
    assert not scene.stranger("two", WHOLE)
    await scene.later(HALF_S + 0.1)
    assert scene.reserved("job") == []
    assert len(api.called(SAY)) == written


async def test_a_new_operator_keeps_nothing_when_the_time_is_over(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    await asyncio.sleep(KUEUE_RESERVE_S + 1)
    scene.restart()
    scene.parts.watch()
    await scene.work()
    assert scene.on_hold() == set()
    assert api.state("job") == "Ready"


async def test_who_runs_already_is_not_put_back_to_waiting_by_a_new_operator_that_finds_no_room(
    api: QueueServer, scene: QueueScene
) -> None:
    """Such as after an upgrade from a release that kept seats in memory alone."""
    await one_of_three_has_come(scene)
    lose_seats(api)
    scene.restart()
    scene.parts.watch()
    assert scene.stranger("one", {GPU: "2"})
    await scene.work()
    assert api.state("job") == "Ready"
    assert scene.reserved("job") == []
    await scene.later(5.0)
    assert api.state("job") == "Ready"


async def test_what_is_reserved_stays_reserved_though_a_new_operator_finds_a_smaller_quota(
    api: QueueServer, scene: QueueScene
) -> None:
    await one_of_three_has_come(scene)
    scene.restart()
    quota(scene, 1)
    scene.parts.watch()
    await scene.work()
    assert api.state("job") == "Ready"
    assert scene.reserved("job") == ["node-a"] * 2
