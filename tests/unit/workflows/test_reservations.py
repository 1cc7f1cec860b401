"""A reservation keeps cards for pods that are to come, for nobody else, and until its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import cards_of
from effort import times
from fakes.api_server import Change, Fault, Operation, hold_answer, hold_request, lose_answer, lose_request
from fakes.objects import GPU, PERCENTAGE, a_pod_object
from fakes.operator_parts import LONGEST_RELEASE_S, OperatorParts
from fakes.reservation_server import ReservationServer, a_reservation
from fakes.virtual_time import LoopClock, settle, wall
from gpuledger.formats.custom_resource.reservation import reservation
from gpuledger.model.clock import rfc3339
from gpuledger.workflows.kept_seats import SUSPECT_DELAY_S
from gpuledger.workflows.reservations import MOST_OF_NAMESPACE, READ_PAUSE_S, TOO_MANY

Json = dict[str, Any]

WHOLE: Mapping[str, str] = {GPU: "1"}
DAY_S = 86_400


class Scene:
    """One operator over an API server, and a node of four cards."""

    def __init__(self) -> None:
        self.api, self.clock = ReservationServer(), LoopClock()
        for card in cards_of("node-a", 4):
            self.api.put_card(card)
        self.restart()

    def restart(self) -> None:
        """Let another operator begin, which sees what there is now, and not how it came about."""
        objects = [("Pod", self.api.pods), ("GPUReservation", self.api.reservations)]
        self.api.changes[:] = [Change(kind, "ADDED", each) for kind, known in objects for each in known.values()]
        self.parts = OperatorParts(self.api, clock=self.clock)
        self.parts.read_cards()
        self.parts.observer.synced = True
        self.parts.workflows.queues.nodes.observe_node(
            {"metadata": {"name": "node-a", "labels": {"name": "node-a"}}, "spec": {}}
        )
        self.parts.watch()

    async def work(self) -> None:
        """Let the operator do what is to be done now."""
        workflows = self.parts.workflows
        for _ in range(8):
            self.parts.watch()
            self.parts.placer.expire_holds()
            await workflows.queue.give_room()
            await settle()
            await workflows.reservations.status.worker.idle()
            await workflows.seats.store.worker.idle()
        self.parts.watch()

    async def later(self, seconds: float) -> None:
        """Let time pass, and the operator work."""
        await self.work()
        await asyncio.sleep(seconds)
        await self.parts.idle()
        await self.work()

    async def reserve(self, name: str, limits: Mapping[str, str] = WHOLE, **spec: Any) -> Json:
        """Let somebody reserve cards; return what is said of that."""
        self.api.reserve(a_reservation(name, dict(limits), **spec))
        await self.work()
        return self.api.status(name)

    def comes(self, pod: str, app: str = "", limits: Mapping[str, str] = WHOLE, **more: Any) -> bool:
        """Let a pod come; return whether it finds room."""
        found = a_pod_object(pod, dict(limits), **more)
        found["metadata"]["labels"] = {"app": app}
        self.api.put_pod(found)
        self.parts.watch()
        return bool(self.parts.filter(pod, "node-a").node_names)

    async def bind(self, pod: str, app: str = "", limits: Mapping[str, str] = WHOLE, **more: Any) -> None:
        """Let a pod come, and be bound."""
        assert self.comes(pod, app, limits, **more)
        await self.parts.bind_watching(pod, "node-a")
        await self.work()

    async def ends(self, pod: str) -> None:
        """Let a pod be gone, and its share be released."""
        self.api.delete_pod(pod)
        for _ in range(3):
            await self.later(LONGEST_RELEASE_S)

    def seats(self) -> list[Json]:
        """Return the seats that the API server has."""
        holders = (each for card in self.api.cards.values() for each in card["status"]["holders"])
        return [each for each in holders if each["podUID"].startswith("seat-")]


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_cards_are_kept_for_pods_that_come_later_and_for_nobody_else(scene: Scene) -> None:
    status = await scene.reserve("web", count=3)
    assert (status["phase"], status["reserved"], status["nodes"]) == ("Reserved", 3, ["node-a"])
    assert status["conditions"][0]["status"] == "True"
    assert [each["seat"]["kind"] for each in scene.seats()] == ["reservation"] * 3
    assert scene.comes("stranger")
    assert not scene.comes("another")
    for number in range(3):
        await scene.bind(f"web-{number}", "web")
    status = scene.api.status("web")
    assert (status["phase"], status["reserved"], status["taken"]) == ("Taken", 0, 3)
    assert scene.seats() == []


async def test_a_pod_of_another_namespace_or_shape_gets_nothing_of_it(scene: Scene) -> None:
    await scene.reserve("web", count=4)
    pod = a_pod_object("web-0", dict(WHOLE))
    pod["metadata"] |= {"labels": {"app": "web"}}
    assert scene.parts.workflows.seats.takers.are_for(pod)
    pod["metadata"] |= {"namespace": "other"}
    assert not scene.parts.workflows.seats.takers.are_for(pod)
    assert not scene.comes("half", "web", {GPU: "1", PERCENTAGE: "50"})


async def test_owners_can_be_the_pods_of_a_job_or_a_deployment(scene: Scene) -> None:
    scene.api.reserve(
        a_reservation("work", count=2)
        | {
            "spec": {
                **a_reservation("work", count=2)["spec"],
                "owners": [{"controller": {"kind": "Deployment", "name": "web"}}],
            }
        }
    )
    await scene.reserve("rest", count=2)
    owner = {"kind": "ReplicaSet", "name": "web-5d4f", "uid": "u", "controller": True}
    pod = a_pod_object("web-1", dict(WHOLE))
    pod["metadata"] |= {"labels": {"pod-template-hash": "5d4f"}, "ownerReferences": [owner]}
    assert not scene.comes("stranger")
    scene.api.put_pod(pod)
    scene.parts.watch()
    assert scene.parts.filter("web-1", "node-a").node_names


async def test_what_does_not_fit_waits_says_so_and_gets_what_becomes_free(scene: Scene) -> None:
    await scene.bind("one")
    await scene.bind("two")
    status = await scene.reserve("web", count=3)
    assert (status["phase"], status["reserved"]) == ("Waiting", 2)
    assert status["conditions"][0]["message"] == "1 of 3 pods find no cards at the moment"
    await scene.ends("one")
    assert scene.api.status("web")["phase"] == "Reserved"


async def test_it_ends_when_it_says_and_pods_that_have_come_stay(scene: Scene) -> None:
    await scene.reserve("web", count=4, expires=rfc3339(wall() + timedelta(seconds=600)))
    await scene.bind("web-0", "web")
    await scene.later(601)
    status = scene.api.status("web")
    assert (status["phase"], status["reserved"], status["taken"], scene.seats()) == ("Expired", 0, 1, [])
    assert scene.api.node_of("web-0") == "node-a"
    assert scene.comes("three", limits={GPU: "3"})


async def test_without_an_end_it_ends_when_the_administrator_says(scene: Scene) -> None:
    await scene.reserve("web", count=4, expires=rfc3339(wall() + timedelta(days=90)))
    await scene.later(DAY_S - 10)
    assert scene.api.status("web")["phase"] == "Reserved"
    await scene.later(20)
    assert scene.api.status("web")["phase"] == "Expired"
    assert scene.comes("four", limits={GPU: "4"})


async def test_it_begins_when_it_says(scene: Scene) -> None:
    status = await scene.reserve("web", count=4, notBefore=rfc3339(wall() + timedelta(seconds=600)))
    assert (status["phase"], scene.seats()) == ("Waiting", [])
    await scene.later(601)
    assert scene.api.status("web")["phase"] == "Reserved"


async def test_one_that_can_be_taken_again_is_kept_anew_when_its_pod_has_ended(scene: Scene) -> None:
    await scene.reserve("web", count=4, allocateOnce=False)
    for number in range(4):
        await scene.bind(f"web-{number}", "web")
    assert scene.api.status("web")["phase"] == "Taken"
    await scene.ends("web-0")
    status = scene.api.status("web")
    assert (status["phase"], status["reserved"], status["taken"]) == ("Reserved", 1, 3)
    assert not scene.comes("stranger")
    await scene.bind("web-4", "web")


async def test_one_that_can_be_taken_once_is_not_kept_again(scene: Scene) -> None:
    await scene.reserve("web")
    await scene.bind("web-0", "web")
    await scene.ends("web-0")
    scene.restart()
    await scene.work()
    assert (scene.api.status("web")["phase"], scene.seats()) == ("Taken", [])


async def test_a_pod_of_higher_priority_takes_it_over_and_it_waits_again(scene: Scene) -> None:
    await scene.reserve("web", count=4)
    await scene.bind("urgent", priority=10)
    status = scene.api.status("web")
    assert (status["phase"], status["reserved"]) == ("Waiting", 3)


async def test_one_of_the_same_priority_takes_nothing_of_it(scene: Scene) -> None:
    await scene.reserve("web", count=4, priorityClassName="urgent")
    assert not scene.comes("urgent", priority=100)
    assert scene.comes("more-urgent", priority=101)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"limits": {"cpu": "1"}}, "its template asks for no GPU"),
        ({"limits": {GPU: "1", PERCENTAGE: "x"}}, "x"),
        ({"priorityClassName": "../../../api/v1/nodes"}, "its priorityClassName is no name"),
        ({"priorityClassName": "system-node-critical"}, "is for parts of the cluster"),
    ],
)
async def test_what_can_not_be_had_is_refused_with_the_reason(scene: Scene, spec: Json, why: str) -> None:
    status = await scene.reserve("odd", **spec)
    assert (status["phase"], status["reserved"]) == ("Refused", 0)
    assert why in status["conditions"][0]["message"]
    assert (await scene.reserve("web"))["phase"] == "Reserved"


async def test_a_priority_class_that_is_not_there_is_waited_for(scene: Scene) -> None:
    status = await scene.reserve("web", priorityClassName="later")
    assert (status["phase"], status["conditions"][0]["message"]) == ("Waiting", "there is no PriorityClass later")
    scene.api.priorities["later"] = 7
    await scene.later(READ_PAUSE_S + 1)
    assert scene.api.status("web")["phase"] == "Reserved"


async def test_times_without_a_zone_are_utc() -> None:
    made = ReservationServer().reserve(a_reservation("web"))
    made["spec"]["expires"] = "2030-01-02T03:04:05"
    assert reservation(made).expires == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_only_so_many_of_one_namespace_count(scene: Scene) -> None:
    for number in range(MOST_OF_NAMESPACE + 1):
        scene.api.reserve(a_reservation(f"many-{number:03}", {GPU: "1", PERCENTAGE: "1"}))
    await scene.work()
    said = [each["status"]["conditions"][0]["message"] for each in scene.api.reservations.values()]
    assert said.count(TOO_MANY) == 1
    seats = {each["seat"]["name"] for each in scene.seats()}
    scene.api.delete_reservation(seats.pop())
    await scene.later(1)
    said = [each["status"]["conditions"][0]["message"] for each in scene.api.reservations.values()]
    assert said.count(TOO_MANY) == 0


async def test_a_new_operator_keeps_what_is_reserved_and_nobody_slips_in(scene: Scene) -> None:
    await scene.reserve("web", count=4)
    await scene.bind("web-0", "web")
    scene.restart()
    assert not scene.comes("stranger")
    await scene.later(SUSPECT_DELAY_S + 1)
    assert len(scene.seats()) == 3
    await scene.bind("web-1", "web")


async def test_what_is_left_of_one_that_went_while_no_operator_was_there_is_taken_back(scene: Scene) -> None:
    await scene.reserve("web", count=4)
    del scene.api.reservations["default", "web"]
    scene.restart()
    await scene.later(SUSPECT_DELAY_S + 1)
    assert scene.seats() == []
    assert scene.comes("four", limits={GPU: "4"})


async def test_one_that_goes_while_its_seats_are_being_written_leaves_none(scene: Scene) -> None:
    answers = [asyncio.Event() for _ in range(2)]
    scene.api.queue(Operation.WRITE_STATUS, hold_request(answers[0]), hold_answer(answers[1]))
    scene.api.reserve(a_reservation("web", dict(WHOLE), count=2))
    scene.parts.watch()
    await scene.parts.workflows.queue.give_room()
    await settle()
    scene.api.delete_reservation("web")
    scene.parts.watch()
    await settle()
    for answer in answers:
        answer.set()
    await scene.later(1)
    assert scene.seats() == []


@pytest.mark.parametrize("held", [hold_request, hold_answer], ids=["before its share is entered", "after"])
@pytest.mark.parametrize("ends", ["expires", "is deleted"])
async def test_a_pod_whose_bind_is_under_way_gets_its_cards_though_the_reservation_ends(
    scene: Scene, held: Callable[[asyncio.Event], Fault], ends: str
) -> None:
    answer = asyncio.Event()
    await scene.reserve("web", {GPU: "4"}, expires=rfc3339(wall() + timedelta(seconds=5)))
    assert scene.comes("web-0", "web", {GPU: "4"})
    scene.api.queue(Operation.WRITE_STATUS, held(answer))
    bind = asyncio.create_task(scene.parts.bind("web-0", "node-a"))
    await settle()
    if ends == "expires":
        await scene.later(6)
    else:
        scene.api.delete_reservation("web")
        await scene.work()
    assert not scene.comes("stranger")
    answer.set()
    await bind
    await scene.later(1)
    assert scene.api.node_of("web-0") == "node-a"
    assert {uid for card in cards_of("node-a", 4) for uid in scene.api.holders_of(card)} == {"uid-web-0"}


async def writes_of_the_exchange() -> int:
    """Return how many writes it takes to enter the shares of a pod that takes the place of a seat on four cards."""
    scene = Scene()
    await scene.reserve("web", {GPU: "4"})
    before = len(scene.api.called(Operation.WRITE_STATUS))
    await scene.bind("web-0", "web", {GPU: "4"})
    return len(scene.api.called(Operation.WRITE_STATUS)) - before


@pytest.mark.parametrize("fault", [lose_request, lose_answer], ids=["lost", "arrived"])
@pytest.mark.parametrize("number", range(4))
async def test_an_operator_that_dies_at_any_write_of_an_exchange_leaves_the_cards_to_the_owners(
    scene: Scene, number: int, fault: Callable[[], Fault]
) -> None:
    """The write is the last that it has sent; the next operator sees what has arrived."""
    assert await writes_of_the_exchange() == 4
    await scene.reserve("web", {GPU: "4"})
    assert scene.comes("web-0", "web", {GPU: "4"})
    never = asyncio.Event()
    rest = [hold_request(never)] * (4 - number)
    scene.api.queue(Operation.WRITE_STATUS, *[None] * number, fault(), *rest)
    bind = asyncio.create_task(scene.parts.bind("web-0", "node-a"))
    await settle()
    bind.cancel()
    await asyncio.gather(bind, return_exceptions=True)
    await scene.parts.workflows.stop()
    scene.restart()
    assert not scene.comes("stranger")
    await scene.later(SUSPECT_DELAY_S + 1)
    assert not scene.comes("stranger")
    await scene.bind("web-0", "web", {GPU: "4"})
    await scene.later(1)
    assert {uid for card in cards_of("node-a", 4) for uid in scene.api.holders_of(card)} == {"uid-web-0"}


async def test_it_is_said_to_be_reserved_once_the_api_server_has_all_of_it(scene: Scene) -> None:
    answer = asyncio.Event()
    scene.api.queue(Operation.WRITE_STATUS, None, hold_request(answer))
    status = await scene.reserve("web", {GPU: "2"})
    assert (status["phase"], status["reserved"]) == ("Waiting", 0)
    answer.set()
    await scene.later(1)
    assert scene.api.status("web")["phase"] == "Reserved"


async def test_what_is_there_already_is_not_written_again_for_what_is_added(scene: Scene) -> None:
    await scene.bind("one", limits={GPU: "3"})
    assert (await scene.reserve("web", count=4))["reserved"] == 1
    before = scene.seats()
    await scene.ends("one")
    assert len(scene.seats()) == 4
    assert before[0] in scene.seats()


async def test_another_template_is_reserved_in_place_of_the_one_before(scene: Scene) -> None:
    await scene.reserve("web", {GPU: "4"})
    template = a_reservation("web", {GPU: "2"})["spec"]["template"]
    scene.api.change("web", template=template)
    await scene.later(1)
    assert [each["seat"]["cards"] for each in scene.seats()] == [2, 2]
    assert scene.comes("two", limits={GPU: "2"})


async def test_a_seat_on_a_card_that_takes_no_pods_any_more_is_kept_elsewhere(scene: Scene) -> None:
    await scene.reserve("web")
    [seat] = scene.seats()
    card = next(each for each in cards_of("node-a", 4) if seat["podUID"] in scene.api.holders_of(each))
    scene.parts.ledger.set_reported(card.uuid, reported=False)
    await scene.later(1)
    [other] = scene.seats()
    assert card.uuid not in [
        each.uuid for each in cards_of("node-a", 4) if other["podUID"] in scene.api.holders_of(each)
    ]


class Story(Scene):
    """Reservations, pods and operators that come and go."""

    pods = 0

    async def reserve_once(self) -> None:
        self._make(once=True)

    async def reserve_for_always(self) -> None:
        self._make(once=False)

    def _make(self, once: bool) -> None:
        if ("default", "web") not in self.api.reservations:
            self.api.reserve(a_reservation("web", count=2, allocateOnce=once))

    async def the_reservation_goes(self) -> None:
        if ("default", "web") in self.api.reservations:
            self.api.delete_reservation("web")

    async def a_pod_comes(self) -> None:
        await self._comes("web")

    async def a_stranger_comes(self) -> None:
        await self._comes("other")

    async def _comes(self, app: str) -> None:
        self.pods += 1
        name = f"{app}-{self.pods}"
        is_kept = app == "web" and bool(self.seats())
        self.api._faults.clear()  # other tests have what a lost Bind does
        comes = self.comes(name, app)
        assert comes or not is_kept
        if comes:
            await self.parts.bind_watching(name, "node-a")

    async def a_pod_goes(self) -> None:
        self._goes("web")

    async def a_stranger_goes(self) -> None:
        self._goes("other")

    def _goes(self, app: str) -> None:
        for name in [name for _, name in self.api.pods if name.startswith(app)][:1]:
            self.api.delete_pod(name)

    async def a_write_is_lost(self) -> None:
        self.api.queue(Operation.WRITE_STATUS, lose_request())

    async def an_answer_is_lost(self) -> None:
        self.api.queue(Operation.WRITE_STATUS, lose_answer())

    async def the_operator_restarts(self) -> None:
        self.parts.workflows.context.leadership.is_active = lambda: False  # type: ignore[method-assign]
        self.restart()

    async def time_passes(self) -> None:
        await self.later(LONGEST_RELEASE_S)


STEPS = (
    *(Story.reserve_once, Story.reserve_for_always, Story.the_reservation_goes, Story.a_pod_comes, Story.a_pod_goes),
    *(Story.a_stranger_comes, Story.a_stranger_goes, Story.a_write_is_lost, Story.an_answer_is_lost),
    *(Story.the_operator_restarts, Story.time_passes),
)


@given(st.lists(st.sampled_from(STEPS), max_size=14))
@settings(max_examples=times(20, 600, check=8), suppress_health_check=list(HealthCheck))
async def test_whatever_happens_the_ledger_has_what_is_reserved_and_in_the_end_nothing(
    steps: list[Callable[[Story], Awaitable[None]]],
) -> None:
    story = Story()
    for step in steps:
        await step(story)
        for seconds in (SUSPECT_DELAY_S + 1, 1):
            await story.later(seconds)
        reserved = sum(each.get("status", {}).get("reserved", 0) for each in story.api.reservations.values())
        assert reserved == len(story.seats())
    for _, name in list(story.api.pods):
        story.api.delete_pod(name)
    await story.the_reservation_goes()
    for _ in range(4):
        await story.later(LONGEST_RELEASE_S)
    assert [holder for card in story.api.cards.values() for holder in card["status"]["holders"]] == []
