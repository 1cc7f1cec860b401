"""A workload without room is told why in the words of `explain`, now and then, and not of how things were."""

from __future__ import annotations

from fakes.api_server import Operation
from fakes.objects import GPU, MEMORY
from fakes.queue_scene import WHOLE, QueueScene, percent_of
from fakes.queue_server import QueueServer

SAY = Operation.SAY_CHECK


async def occupy(scene: QueueScene, *names: str) -> None:
    for name in names:
        assert scene.stranger(name, WHOLE)
        await scene.parts.bind(name, "node-a")
    await scene.work()


async def test_a_single_pod_is_told_what_explain_would_say(api: QueueServer, scene: QueueScene) -> None:
    await occupy(scene, "a", "b")
    scene.submit("wants", {GPU: "3"})
    await scene.work()
    message = api.said("wants")[1]
    assert "0 of 1" in message
    assert "pods find" not in message
    assert scene.stranger("same", {GPU: "3"}) == []
    explained = await scene.parts.explainer.explain("default", "same")
    assert message.split(":")[0] == explained.summary.split(":")[0]


async def test_of_several_pods_it_is_told_how_many_fit_and_why_not_the_next(
    api: QueueServer, scene: QueueScene
) -> None:
    await occupy(scene, "a")
    scene.submit("wants", percent_of(1, 60), pods=5)
    await scene.work()
    message = api.said("wants")[1]
    assert "3 of 5" in message
    assert "0 of 1" in message


async def test_it_is_told_that_it_only_waits_for_pods_that_leave(api: QueueServer, scene: QueueScene) -> None:
    await scene.run("holder", {GPU: "4"}, queue="low", usage={"gpus": "4"})
    scene.cluster_queue("high", reclaim="Any")
    scene.cluster_queue("low", nominal={"gpus": "0"})
    scene.submit("waits", WHOLE)
    scene.submit("first", {GPU: "4"}, priority=5)
    await scene.work()
    assert scene.evicted() == {"holder"}
    assert "leave" in api.said("first")[1].split(". ")[-1]


async def test_it_is_looked_at_less_and_less_often_while_everything_changes_all_the_time(
    api: QueueServer, scene: QueueScene
) -> None:
    await occupy(scene, "a", "b")
    scene.submit("wants", {GPU: "4"})
    await scene.work()
    for number in range(40):
        name = f"pod-{number}"
        if number % 2:
            api.delete_pod(f"pod-{number - 1}")
            scene.parts.watch()
        else:
            assert scene.stranger(name, {GPU: "1", MEMORY: "1"})
        await scene.later(0.05)
    assert 1 <= len(api.called(SAY)) <= 4


async def test_who_has_left_is_told_nothing_more(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("wants", {GPU: "8"})
    await scene.parts.workflows.queue.give_room()
    api.evict_workload("wants")
    scene.parts.watch()
    await scene.work()
    assert api.said("wants")[1].startswith("Reset")
