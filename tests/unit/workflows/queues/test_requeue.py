"""An admitted workload of which a pod finds no cards for too long is queued again as a whole."""

from __future__ import annotations

import asyncio

import pytest

from fakes.objects import GPU
from fakes.operator_parts import KUEUE_RETRY_S
from fakes.queue_scene import WHOLE, QueueScene
from fakes.queue_server import QueueServer


async def lose(scene: QueueScene, name: str = "job-1") -> None:
    """Let a pod of the workload `job` come for which nothing is left."""
    assert scene.comes(name, "job", {GPU: "2"}) == []
    await scene.work()


@pytest.fixture
async def running(scene: QueueScene) -> QueueScene:
    """Return a workload of two pods of which one runs, and another pod that has the cards of its second one."""
    await scene.run("job", {GPU: "2"}, pods=2)
    scene.api.delete_pod("job-1")
    scene.parts.watch()
    await asyncio.sleep(100.0)
    await scene.parts.idle()
    assert scene.stranger("intruder", WHOLE)
    await scene.parts.bind("intruder", "node-a")
    return scene


async def test_a_workload_whose_pod_finds_no_cards_for_long_is_queued_again(running: QueueScene) -> None:
    await lose(running, "next")
    assert running.api.state("job") == "Ready"
    await running.later(KUEUE_RETRY_S - 0.5)
    assert running.api.state("job") == "Ready"
    await running.later(0.6)
    (check,) = running.api.workloads["job"]["status"]["admissionChecks"]
    assert check["state"] == "Retry"
    assert check.get("requeueAfterSeconds") is None


async def test_the_time_counts_from_the_first_refusal(running: QueueScene) -> None:
    await lose(running, "next")
    for _ in range(5):
        await running.later(KUEUE_RETRY_S / 5)
        running.asks("next")
    await running.later(0.1)
    assert running.api.state("job") == "Retry"


@pytest.mark.parametrize("how", ["found cards", "gone"])
async def test_a_pod_that_does_not_wait_any_more_is_no_reason(api: QueueServer, running: QueueScene, how: str) -> None:
    await lose(running, "next")
    if how == "gone":
        api.delete_pod("next")
        running.parts.watch()
    else:
        api.delete_pod("intruder")
        running.parts.watch()
        await asyncio.sleep(KUEUE_RETRY_S / 2)
        pod = api.pods["default", "next"]
        api.put_pod({**pod, "spec": {**pod["spec"], "nodeName": "node-a"}})
        running.parts.watch()
    await running.later(2 * KUEUE_RETRY_S)
    assert api.state("job") == "Ready"
    assert not running.queues.requeuer._waiting


async def test_a_pod_of_no_workload_or_of_one_that_is_not_admitted_queues_nothing_again(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("waits", {GPU: "8"})
    assert not scene.comes("pod", "waits", {GPU: "8"})
    assert not scene.comes("orphan", "unknown", {GPU: "8"})
    assert not scene.stranger("single", {GPU: "8"})
    await scene.later(3 * KUEUE_RETRY_S)
    assert api.state("waits") == "Pending"


async def test_a_pod_that_waits_on_is_a_reason_again_and_not_at_once(api: QueueServer, running: QueueScene) -> None:
    await lose(running, "next")
    await running.later(KUEUE_RETRY_S + 0.1)
    assert api.state("job") == "Retry"
    api.set_check("job", "cards", "Ready")  # Kueue has not evicted it, and somebody says that it is ready
    running.parts.watch()
    await running.later(KUEUE_RETRY_S / 2)
    assert api.state("job") == "Ready"
    await running.later(KUEUE_RETRY_S / 2 + 0.1)
    assert api.state("job") == "Retry"
