"""A pod that comes takes the room that was reserved for one like it, and for nobody else's."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fakes.objects import GPU, MEMORY, a_pod_object
from fakes.operator_parts import KUEUE_RESERVE_S
from fakes.queue_objects import a_pod_set
from fakes.queue_scene import WHOLE, QueueScene, percent_of
from fakes.queue_server import QueueServer
from gpuledger.model.gang import GroupSeat, WorkloadName
from gpuledger.workflows.queues.workloads import pod_set_of

TWO_NODES = {"node-a": 2, "node-b": 2}


def seats(scene: QueueScene, workload: str) -> Counter[str]:
    """Return of which sets of pods room is reserved, and how often."""
    return Counter(pod_set_of(key) for key in keys_of(scene, workload))


def keys_of(scene: QueueScene, workload: str) -> list[GroupSeat]:
    """Return the keys of the seats of a workload's pods that have not come."""
    return [key for key in scene.on_hold() if isinstance(key, GroupSeat) and key.group.name == workload]


def member(api: QueueServer, scene: QueueScene, name: str, cards: int = 2, minimum: int = 2) -> None:
    """Let a pod of the workload `job` be created that is of a gang."""
    pod = a_pod_object(name, {GPU: str(cards)})
    pod["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": "job"}
    words = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": str(minimum)}
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/podset": "main", **words}
    api.put_pod(pod)
    scene.parts.watch()


async def test_each_pod_takes_one_seat_and_others_get_none(scene: QueueScene) -> None:
    scene.submit("job", WHOLE, pods=3)
    await scene.work()
    await scene.admit("job")
    for left in (2, 1, 0):
        await scene.bind(f"pod-{left}", "job", WHOLE)
        assert seats(scene, "job").total() == left
    assert scene.comes("surplus", "job", WHOLE) == ["node-a"]  # as any other pod
    assert not scene.comes("too-many", "job", WHOLE)


async def test_a_pod_takes_the_seat_of_its_own_set_and_shape(scene: QueueScene) -> None:
    large, small = percent_of(1, 60), percent_of(1, 40)
    scene.submit("job", pod_sets=[a_pod_set("leader", 1, large), a_pod_set("workers", 2, small)])
    await scene.work()
    await scene.admit("job")
    assert seats(scene, "job") == {"leader": 1, "workers": 2}
    scene.comes("worker", "job", small, pod_set="workers")
    assert seats(scene, "job") == {"leader": 1, "workers": 1}
    scene.comes("odd", "job", large, pod_set="workers")  # not what a worker asks for
    scene.comes("unknown", "job", small, pod_set="others")
    scene.comes("foreign", "another", small, pod_set="workers")
    assert seats(scene, "job") == {"leader": 1, "workers": 1}
    scene.comes("leader", "job", large, pod_set="leader")
    assert seats(scene, "job") == {"workers": 1}


async def test_it_gets_the_cards_that_were_reserved(scene: QueueScene) -> None:
    scene.submit("job", percent_of(4, 60))
    await scene.work()
    await scene.admit("job")
    assert scene.stranger("other", percent_of(1, 40))  # beside it
    (key,) = keys_of(scene, "job")
    reserved = scene.ledger.seats.of(key)
    assert reserved is not None
    assert scene.comes("pod", "job", percent_of(4, 60)) == ["node-a"]
    hold = scene.ledger.seats.of("uid-pod")
    assert hold is not None
    assert hold.placement == reserved.placement
    assert key not in scene.on_hold()


async def test_a_pod_prefers_a_seat_on_a_node_that_is_offered(api: QueueServer) -> None:
    scene = QueueScene(api, TWO_NODES)
    scene.submit("job", {GPU: "2"}, pods=2)
    await scene.work()
    await scene.admit("job")
    assert set(scene.reserved("job")) == {"node-a", "node-b"}
    assert scene.comes("first", "job", {GPU: "2"}, ["node-b"]) == ["node-b"]
    assert scene.reserved("job") == ["node-a"]
    assert scene.comes("second", "job", {GPU: "2"}) == ["node-a"]


async def test_a_pod_that_is_not_offered_the_node_of_its_seat_takes_it_all_the_same_and_goes_elsewhere(
    api: QueueServer,
) -> None:
    scene = QueueScene(api, {"node-a": 1, "node-b": 1})
    scene.submit("job", WHOLE)
    await scene.work()
    await scene.admit("job")
    (reserved,) = scene.reserved("job")
    other = "node-b" if reserved == "node-a" else "node-a"
    assert scene.comes("pod", "job", WHOLE, [other]) == [other]
    assert scene.reserved("job") == []
    assert scene.stranger("one", WHOLE) == [reserved]  # nobody else of the workload comes for it


async def test_a_pod_that_asks_again_and_again_takes_one_seat(api: QueueServer) -> None:
    scene = QueueScene(api, {"node-a": 3, "node-b": 1})
    api.put_pod(a_pod_object("other", WHOLE))
    scene.parts.watch()
    assert scene.asks("other", ["node-b"])
    scene.submit("job", WHOLE, pods=3)
    await scene.work()
    await scene.admit("job")
    assert scene.reserved("job") == ["node-a"] * 3
    assert not scene.comes("pod", "job", WHOLE, ["node-b"])
    for _ in range(3):
        assert not scene.asks("pod", ["node-b"])
    assert scene.reserved("job") == ["node-a"] * 2
    for _ in range(3):
        assert scene.comes("mate", "job", WHOLE) == ["node-a"]
    assert scene.reserved("job") == ["node-a"]


async def test_what_a_pod_has_taken_is_there_when_it_asks_again_until_its_time_is_over(scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    await scene.admit("job")
    assert scene.comes("pod", "job", {GPU: "4"}) == ["node-a"]
    assert not scene.stranger("one", WHOLE, priority=100)
    assert scene.asks("pod") == ["node-a"]


async def test_what_a_pod_has_taken_is_free_when_it_is_deleted(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    await scene.admit("job")
    assert scene.comes("pod", "job", {GPU: "4"})
    api.delete_pod("pod")
    scene.parts.watch()
    assert scene.on_hold() == set()
    assert scene.queues.reservations.known_pending() == set()


async def test_a_pod_of_a_workload_that_is_not_ready_takes_nothing_from_others(scene: QueueScene) -> None:
    scene.submit("ready", {GPU: "4"})
    scene.submit("waits", {GPU: "4"})
    await scene.work()
    assert not scene.comes("pod", "waits", {GPU: "4"})
    assert scene.reserved("ready") == ["node-a"]


async def test_the_room_of_a_workload_becomes_places_for_the_gang_of_its_pods(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", {GPU: "2"}, pods=2)
    await scene.work()
    await scene.admit("job")

    member(api, scene, "first")
    scene.asks("first")
    assert not scene.ledger.seats.of_group(WorkloadName("default", "job"))
    assert not scene.stranger("one", WHOLE)
    member(api, scene, "second")
    assert scene.asks("second") == ["node-a"]
    assert scene.asks("first") == ["node-a"]
    assert scene.on_hold() == {"uid-first", "uid-second"}


@pytest.mark.parametrize("minimum", [1, 2, 4])
async def test_members_that_come_one_by_one_find_what_was_reserved_for_all(
    api: QueueServer, scene: QueueScene, minimum: int
) -> None:
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    await scene.admit("job")
    for number in range(4):
        member(api, scene, f"member-{number}", cards=1, minimum=minimum)
        scene.asks(f"member-{number}")
        assert not scene.stranger(f"stranger-{number}", WHOLE)
    left = {f"member-{number}" for number in range(4)}
    while left:
        placed = {name: found[0] for name in sorted(left) if (found := scene.asks(name))}
        assert placed
        await asyncio.gather(*(scene.parts.bind(name, node_name) for name, node_name in placed.items()))
        await scene.parts.idle()
        scene.parts.watch()
        left -= placed.keys()


@pytest.mark.parametrize("pods", [0, 1])
async def test_places_that_were_kept_for_a_gang_end_with_the_time_of_the_reservation(
    api: QueueServer, scene: QueueScene, pods: int
) -> None:
    scene.submit("job", {GPU: "2"}, pods=2)
    await scene.work()
    await scene.admit("job")
    for number in range(pods):
        member(api, scene, f"member-{number}")
        scene.asks(f"member-{number}")
    await asyncio.sleep(KUEUE_RESERVE_S + 1)
    scene.ledger.seats.expire(scene.clock.now_s())
    await scene.work()
    assert scene.stranger("one", {GPU: "4"})


async def test_people_are_told_for_whom_room_is_reserved(scene: QueueScene) -> None:
    scene.submit("job", {GPU: "4"})
    await scene.work()
    (key,) = scene.on_hold()
    assert str(key) == "default/job (reserved for a pod of this workload)"
    scene.stranger("one", {GPU: "1", MEMORY: "1"})
    found = await scene.parts.explainer.explain("default", "one")
    assert str(key) in str(found)


async def test_seats_yield_to_a_pod_of_higher_priority_and_kueue_queues_the_workload_again(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", WHOLE, pods=3)
    await scene.work()
    await scene.admit("job")
    assert scene.stranger("equal", {GPU: "2"}) == []
    assert scene.stranger("high", {GPU: "2"}, priority=1) == ["node-a"]
    await scene.work()
    assert seats(scene, "job").total() == 0
    assert api.state("job") == "Retry"
