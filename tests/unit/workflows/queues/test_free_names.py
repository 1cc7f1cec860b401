"""However many workloads one namespace has, and whatever changes meanwhile, those of others are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from builders import whole_share
from fakes.queue_scene import WHOLE, QueueScene
from fakes.queue_server import QueueServer
from fakes.virtual_time import STEP_S, WorkingClock, settle
from gpuledger.ledger.seats import Seat
from gpuledger.model.share import Placement
from gpuledger.placement.group import Asking
from gpuledger.workflows.pending.queue import PASS_S
from gpuledger.workflows.queues.reclaim import Reclaimer
from gpuledger.workflows.queues.workloads import QueuedWorkload
from gpuledger.workflows.tasks import HEAD_EVERY

CROWD = 100
MOST_PASSES = 5


@pytest.fixture
async def scene(api: QueueServer) -> QueueScene:
    """Return four cards in a cluster where there is more to look at than there is time for."""
    return QueueScene(api, {"node-a": 4, "node-b": 1}, WorkingClock())


def change(scene: QueueScene) -> None:
    """Have the ledger change: somebody gets a card of another node, and gives it back."""
    card = next(entry.card for entry in scene.ledger.entries() if entry.card.node_name == "node-b")
    share = whole_share(card)
    scene.ledger.seats.take(Seat("busy", Placement("node-b", (share,)), float("inf")))
    scene.ledger.seats.give_up("busy")


async def passes_until_ready(scene: QueueScene, name: str, most: int) -> int:
    """Return after how many passes a workload has cards; the ledger changes before each of them."""
    for number in range(1, most + 1):
        change(scene)
        await scene.parts.workflows.queue.give_room()
        await settle()
        scene.parts.watch()
        if scene.api.state(name) == "Ready":
            return number
    raise AssertionError(f"{name} was not looked at in {most} passes")


def a_crowd(scene: QueueScene) -> None:
    """Let workloads come of which none fits."""
    for number in range(CROWD):
        scene.submit(f"crowd-{number}", WHOLE, pods=256, namespace="hostile")


async def test_a_workload_behind_a_crowd_of_another_namespace_is_looked_at_whatever_changes(scene: QueueScene) -> None:
    a_crowd(scene)
    scene.submit("mine", WHOLE)
    assert await passes_until_ready(scene, "mine", MOST_PASSES) > 1, "there is time for all of them"


async def test_a_workload_behind_a_crowd_of_its_own_namespace_has_its_turn_in_the_end(scene: QueueScene) -> None:
    a_crowd(scene)
    scene.submit("last", WHOLE, namespace="hostile")
    await passes_until_ready(scene, "last", CROWD)


async def test_the_head_of_the_queue_is_looked_at_again_before_all_others_were(
    api: QueueServer, scene: QueueScene
) -> None:
    assert scene.stranger("one", WHOLE)
    scene.submit("head", {**WHOLE, next(iter(WHOLE)): "4"}, namespace="hostile", priority=10)
    a_crowd(scene)
    for _ in range(2):
        change(scene)
        assert await scene.parts.workflows.queue.give_room()
    assert api.state("head") == "Pending"
    api.delete_pod("one")
    scene.ledger.seats.give_up("uid-one")
    assert await passes_until_ready(scene, "head", HEAD_EVERY) < CROWD * STEP_S / PASS_S * 10


async def test_of_each_namespace_victims_are_looked_for_for_one_workload_at_a_time(
    api: QueueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    async def consider(_: Reclaimer, queued: QueuedWorkload, seats: Sequence[Asking]) -> bool:
        looked_at.append(queued.workload.name.namespace)
        await asyncio.sleep(1.0)
        return False

    monkeypatch.setattr(Reclaimer, "consider", consider)
    scene = QueueScene(api)
    a_crowd(scene)
    scene.submit("mine", WHOLE, pods=5)
    await scene.parts.workflows.queue.give_room()
    await asyncio.sleep(5.0)
    assert looked_at[:3].count("default") == 1
    await scene.parts.workflows.check_messages.stop()
