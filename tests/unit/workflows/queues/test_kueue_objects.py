"""Kueue is told that somebody answers its check, and what its other objects say counts as long as they are there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.api_server import Operation, refuse
from fakes.context import a_context
from fakes.queue_objects import a_check, a_cluster_queue, a_flavor
from fakes.queue_server import QueueServer
from fakes.virtual_time import LoopClock
from gpuledger.model.errors import Conflict, Denied, NotFound, Unreachable
from gpuledger.workflows.queues.workloads import KueueObjects

SAY = Operation.SAY_ACTIVE


@pytest.fixture
def objects() -> KueueObjects:
    return KueueObjects(a_context(LoopClock()))


def is_active(api: QueueServer) -> bool:
    conditions = (api.checks["cards"].get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Active", "True") for each in conditions)


async def test_a_check_of_ours_is_said_to_be_active_once(api: QueueServer, objects: KueueObjects) -> None:
    objects.check(api.put_check(a_check()), gone=False)
    objects.check({**a_check("foreign", "somebody.else/check")}, gone=False)
    await objects.report_active(api.store)
    assert is_active(api)
    objects.check(api.checks["cards"], gone=False)
    await objects.report_active(api.store)
    assert len(api.called(SAY)) == 1
    assert objects.checks == ["cards"]


@pytest.mark.parametrize("error", [Unreachable("later", 500), Denied("not yet", 403)])
async def test_it_is_said_again_until_it_has_been_heard(
    api: QueueServer, objects: KueueObjects, error: Unreachable | Denied
) -> None:
    api.queue(SAY, *[refuse(error)] * 20)
    objects.check(api.put_check(a_check()), gone=False)
    await objects.report_active(api.store)
    assert is_active(api)
    assert len(api.called(SAY)) == 21


@pytest.mark.parametrize("error", [Conflict("it has changed", 409), NotFound("it is gone", 404)])
async def test_what_has_changed_is_left_to_the_watch(
    api: QueueServer, objects: KueueObjects, error: Conflict | NotFound
) -> None:
    api.queue(SAY, refuse(error))
    objects.check(api.put_check(a_check()), gone=False)
    await objects.report_active(api.store)
    assert len(api.called(SAY)) == 1
    objects.check(api.checks["cards"], gone=False)
    await objects.report_active(api.store)
    assert is_active(api)


async def test_a_check_that_is_deleted_or_given_to_another_controller_is_ours_no_more(objects: KueueObjects) -> None:
    objects.check(a_check(), gone=False)
    objects.check(a_check(controller="somebody.else/check"), gone=False)
    assert objects.checks == []
    objects.check(a_check(), gone=False)
    objects.check(a_check(), gone=True)
    assert objects.checks == []


async def test_a_flavor_or_a_queue_that_says_the_same_is_no_news(objects: KueueObjects) -> None:
    calls: list[None] = []
    objects.on_change.append(lambda: calls.append(None))
    for _ in range(3):
        objects.flavor(a_flavor("any", {"model": "a"}), gone=False)
        objects.queue(a_cluster_queue("low"), gone=False)
    assert (objects.changes, objects.quota_changes, len(calls)) == (1, 1, 2)
    objects.flavor(a_flavor("any", {"model": "b"}), gone=False)
    objects.queue(a_cluster_queue("low", nominal={"gpus": "1"}), gone=False)
    assert (objects.changes, objects.quota_changes, len(calls)) == (2, 2, 4)
    objects.flavor(a_flavor("any"), gone=True)
    objects.queue(a_cluster_queue("low"), gone=True)
    assert (objects.flavors(("any",)), objects.queues(), objects.states()) == ([], {}, [])


async def test_a_queue_that_can_not_be_read_gives_nothing(objects: KueueObjects) -> None:
    objects.queue(a_cluster_queue("low", nominal={"gpus": "1"}), gone=False)
    odd: dict[str, Any] = a_cluster_queue("low", nominal={"gpus": "many"})
    objects.queue(odd, gone=False)
    assert objects.queues() == {}
    assert [state.name for state in objects.states()] == ["low"], "people see it all the same"


async def test_what_a_new_list_does_not_have_is_forgotten_and_what_has_come_meanwhile_is_not(
    objects: KueueObjects,
) -> None:
    objects.flavor(a_flavor("old"), gone=False)
    objects.queue(a_cluster_queue("old"), gone=False)
    objects.check(a_check("old"), gone=False)
    listed = [each.listing() for each in objects.subscriptions(asyncio.Event())]
    objects.flavor(a_flavor("new"), gone=False)
    objects.queue(a_cluster_queue("new"), gone=False)
    objects.check(a_check("new"), gone=False)
    for each in listed:
        each(set())
    assert len(objects.flavors(("old", "new"))) == 1
    assert objects.queues().keys() == {"new"}
    assert [state.name for state in objects.states()] == ["new"]
    assert objects.checks == ["new"]
