"""Seats of workloads are in the ledger: they outlive the operator, and what is left of them is taken back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import times
from fakes.api_server import Change, Operation, hold_answer, lose_answer, lose_request, refuse
from fakes.objects import GPU
from fakes.operator_parts import KUEUE_RESERVE_S, LONGEST_RELEASE_S
from fakes.queue_scene import WHOLE, QueueScene, percent_of
from fakes.queue_server import QueueServer
from fakes.virtual_time import settle
from gpuledger.model.errors import Invalid
from gpuledger.model.gang import GroupSeat, WorkloadName
from gpuledger.workflows.kept_seats import SUSPECT_DELAY_S

Json = dict[str, Any]

HALVES = percent_of(1, 50)
WRITE = Operation.WRITE_STATUS


@pytest.fixture
def scene(scene: QueueScene) -> QueueScene:
    scene.parts.observer.synced = True
    return scene


def restart(scene: QueueScene) -> None:
    """Let another operator begin, which has read everything that there is now."""
    scene.restart()
    scene.parts.observer.synced = True


def stored(api: QueueServer) -> list[Json]:
    """Return the seats that the API server has."""
    return [
        each for card in api.cards.values() for each in card["status"]["holders"] if each["podUID"].startswith("seat-")
    ]


def members(api: QueueServer) -> list[str]:
    return sorted(each["seat"]["member"] for each in stored(api))


async def rest(scene: QueueScene, seconds: float = 2 * SUSPECT_DELAY_S) -> None:
    """Let time pass, and what is left of seats be taken back."""
    await asyncio.sleep(seconds)
    await scene.work()
    await scene.parts.workflows.seats.store.worker.idle()
    scene.parts.watch()


async def test_seats_are_in_the_ledger_before_the_check_says_ready(api: QueueServer, scene: QueueScene) -> None:
    answer = asyncio.Event()
    api.queue(WRITE, hold_answer(answer))
    scene.submit("job", WHOLE, pods=2)
    await scene.work()
    assert api.state("job") == "Pending"
    answer.set()
    await scene.work()
    assert api.state("job") == "Ready"
    assert members(api) == ["main/0", "main/1"]
    [first, _] = stored(api)
    assert first["state"] == "reserved"
    assert (first["namespace"], first["pod"]) == ("default", "job")
    assert first["seat"] == {
        "kind": "workload",
        "name": "job",
        "uid": api.workloads["job"]["metadata"]["uid"],
        "member": first["seat"]["member"],
        "cards": 1,
    }


def sums(api: QueueServer) -> dict[str, Json]:
    """Return what is used of each card, as it is printed."""
    return {name: card["status"]["used"] for name, card in api.cards.items()}


@pytest.mark.parametrize("limits", [WHOLE, HALVES])
async def test_a_pod_takes_the_place_of_its_seat_in_one_write_that_changes_no_sum(
    api: QueueServer, scene: QueueScene, limits: dict[str, str]
) -> None:
    scene.submit("job", limits, pods=4)
    await scene.work()
    await scene.admit("job")
    written, used = len(api.patches()), sums(api)
    for number in range(4):
        await scene.bind(f"job-{number}", "job", limits)
        assert len(stored(api)) == 3 - number
        [holder] = [h for c in api.cards.values() for h in c["status"]["holders"] if h["pod"] == f"job-{number}"]
        assert holder["seat"]["name"] == "job"
        assert sums(api) == used
    assert len(api.patches()) == written + 4


async def test_a_seat_of_several_cards_is_written_on_all_of_them(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", {GPU: "3"})
    await scene.work()
    assert [each["seat"]["cards"] for each in stored(api)] == [3, 3, 3]
    assert len({each["podUID"] for each in stored(api)}) == 1
    restart(scene)
    scene.parts.watch()
    await scene.work()
    assert scene.reserved("job") == ["node-a"]
    assert not scene.stranger("two", {GPU: "2"})
    assert scene.comes("pod", "job", {GPU: "3"}) == ["node-a"]


async def test_no_pod_gets_a_stored_seat_before_the_new_operator_knows_of_the_workload(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    restart(scene)
    assert not scene.stranger("one", WHOLE)


@pytest.mark.parametrize("fault", [lose_request, lose_answer, lambda: refuse(Invalid("no", 422))])
async def test_where_not_all_seats_can_be_written_none_is_left(api: QueueServer, scene: QueueScene, fault: Any) -> None:
    api.queue(WRITE, None, *(fault() for _ in range(40)))
    scene.submit("job", WHOLE, pods=3)
    await scene.work()
    assert api.state("job") == "Pending"
    await rest(scene, 3 * KUEUE_RESERVE_S)
    await rest(scene)
    assert len(stored(api)) == len(scene.reserved("job"))


async def test_seats_of_a_workload_that_went_while_no_operator_was_there_are_taken_back(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    del api.workloads["job"]
    api.changes[:] = [each for each in api.changes if each.kind != "Workload"]
    restart(scene)
    scene.parts.watch()
    assert not scene.stranger("one", WHOLE)
    await rest(scene)
    assert stored(api) == []
    assert scene.asks("one") == ["node-a"]


async def test_half_a_seat_that_a_crash_has_left_is_taken_back(api: QueueServer, scene: QueueScene) -> None:
    answer = asyncio.Event()
    api.queue(WRITE, None, lose_request())
    scene.submit("job", {GPU: "2"})
    await settle()
    scene.parts.workflows.context.leadership.is_active = lambda: False  # type: ignore[method-assign]
    await scene.work()
    answer.set()
    await settle()
    restart(scene)
    scene.parts.watch()
    await scene.work()
    await rest(scene)
    assert api.state("job") == "Ready"
    assert len(stored(api)) == 2


async def test_who_is_displaced_by_a_higher_priority_leaves_the_ledger_with_the_write_that_needs_the_room(
    api: QueueServer, scene: QueueScene
) -> None:
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    assert scene.stranger("urgent", WHOLE, priority=10) == ["node-a"]
    await scene.parts.bind_watching("urgent", "node-a")
    await rest(scene)
    assert stored(api) == []
    assert api.node_of("urgent") == "node-a"


async def test_time_that_is_over_frees_the_ledger(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    await rest(scene, KUEUE_RESERVE_S + 1)
    await rest(scene)
    assert stored(api) == []
    assert scene.stranger("one", {GPU: "4"}) == ["node-a"]


async def test_what_another_operator_takes_back_is_free_here_too(api: QueueServer, scene: QueueScene) -> None:
    scene.submit("job", WHOLE, pods=4)
    await scene.work()
    first = scene.parts
    restart(scene)
    scene.parts.watch()
    assert scene.reserved("job") == ["node-a"] * 4
    first.workflows.queues.reservations.drop(first.workflows.queues.check.all()[0].workload.name)
    await first.workflows.seats.store.worker.idle()
    scene.parts.watch()
    assert scene.reserved("job") == []


class Story:
    """Jobs, strangers and operators that come and go, over four cards."""

    def __init__(self) -> None:
        self.api = QueueServer()
        self.scene = QueueScene(self.api)
        self.scene.parts.observer.synced = True
        self.jobs = self.strangers = 0
        self.wanted: dict[str, tuple[dict[str, str], int]] = {}
        """Name of a job -> what its pods ask for, and how many of them have not come."""

    async def step(self, name: str, number: int) -> None:
        """Let one thing happen, and the operator come to rest; `number` says to which job."""
        jobs = sorted(self.wanted)
        if name in OF_A_JOB:
            if jobs:
                await OF_A_JOB[name](self, jobs[number % len(jobs)])
        else:
            await OTHERS[name](self)
        await self.rest()

    async def a_job_comes(self) -> None:
        self.jobs += 1
        limits, pods = ((WHOLE, 2), (HALVES, 3), ({GPU: "2"}, 1))[self.jobs % 3]
        self.wanted[f"job-{self.jobs}"] = dict(limits), pods
        self.scene.submit(f"job-{self.jobs}", limits, pods=pods)

    async def kueue_admits(self, job: str) -> None:
        if self.api.state(job) == "Ready":
            self.api.set_condition(job, "Admitted")

    async def a_job_goes(self, job: str) -> None:
        del self.wanted[job]
        for _, pod in [key for key in self.api.pods if key[1].startswith(f"{job}-")]:
            self.api.delete_pod(pod)
        self.api.delete_workload(job)

    async def somebody_urgent_comes(self) -> None:
        self.strangers += 1
        pod = f"urgent-{self.strangers}"
        if self.scene.stranger(pod, WHOLE, priority=10):
            await self.scene.parts.bind_watching(pod, "node-a")

    async def somebody_urgent_goes(self) -> None:
        for _, pod in [key for key in self.api.pods if key[1].startswith("urgent-")][:1]:
            self.api.delete_pod(pod)

    async def a_write_is_lost(self) -> None:
        self.api.queue(WRITE, lose_request())

    async def an_answer_is_lost(self) -> None:
        self.api.queue(WRITE, lose_answer())

    async def time_passes(self) -> None:
        await asyncio.sleep(KUEUE_RESERVE_S / 2)

    async def a_pod_comes(self, job: str) -> None:
        """Let a pod of a job come, and be bound. Where there is a seat for it, it finds room, and no sum changes."""
        limits, left = self.wanted[job]
        is_kept, used = bool(self.scene.reserved(job)), sums(self.api)
        if not left:
            return
        pod = f"{job}-{left}"
        self.wanted[job] = limits, left - 1
        offered = self.scene.comes(pod, job, limits)
        assert offered or not is_kept
        if offered:
            self.api._faults.clear()  # another test has what a lost Bind does; here, it would be tried again
            await self.scene.parts.bind_watching(pod, offered[0])
            assert not is_kept or sums(self.api) == used

    async def the_operator_restarts(self) -> None:
        """Let another operator begin: it sees what there is now, and not how it came about."""
        self.scene.parts.workflows.context.leadership.is_active = lambda: False  # type: ignore[method-assign]
        objects = [("Pod", self.api.pods), ("Workload", self.api.workloads)]
        self.api.changes[:] = [
            Change(kind, "ADDED", each)
            for kind, known in objects
            for each in list(known.values())  # type: ignore[attr-defined]
        ]
        restart(self.scene)
        self.scene.parts.watch()

    async def rest(self) -> None:
        """Let the operator do all that is to be done now, and look at what is there then."""
        for _ in range(2):
            await self.scene.work()
            await rest(self.scene, SUSPECT_DELAY_S + 1)
            await self.scene.parts.idle()
        seats = self.scene.ledger.seats
        kept = [seat for uid in self.wanted for seat in seats.of_group(WorkloadName("default", uid))]
        of_nobody = [seat.stored_as for seat in kept if isinstance(seat.key, GroupSeat)]
        assert Counter(of_nobody) == Counter({each["podUID"]: 1 for each in stored(self.api)})


OF_A_JOB: dict[str, Callable[[Story, str], Awaitable[None]]] = {
    "Kueue admits": Story.kueue_admits,
    "a pod of a job comes": Story.a_pod_comes,
    "a job goes": Story.a_job_goes,
}
OTHERS: dict[str, Callable[[Story], Awaitable[None]]] = {
    "a job comes": Story.a_job_comes,
    "somebody urgent comes": Story.somebody_urgent_comes,
    "somebody urgent goes": Story.somebody_urgent_goes,
    "a write is lost": Story.a_write_is_lost,
    "an answer is lost": Story.an_answer_is_lost,
    "the operator restarts": Story.the_operator_restarts,
    "time passes": Story.time_passes,
}
STEPS = (*OF_A_JOB, *OTHERS)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), max_size=14))
@settings(max_examples=times(25, 1_000, check=10), suppress_health_check=list(HealthCheck))
async def test_whatever_happens_the_ledger_has_the_seats_that_count_and_in_the_end_none(
    steps: list[tuple[str, int]],
) -> None:
    story = Story()
    for name, number in steps:
        await story.step(name, number)
    for job in sorted(story.wanted):
        await story.step("a job goes", 0)
        assert job not in story.wanted
    for _, pod in list(story.api.pods):
        story.api.delete_pod(pod)
    for _ in range(3):
        await story.rest()
        await asyncio.sleep(LONGEST_RELEASE_S)
    await story.rest()
    assert [holder for card in story.api.cards.values() for holder in card["status"]["holders"]] == []
