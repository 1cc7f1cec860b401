"""What is said of a workload is written one after the other, and only as long as it was not decided otherwise."""

from __future__ import annotations

import asyncio

import pytest

from fakes.api_server import Operation, hold_request, lose_answer, refuse
from fakes.context import a_context
from fakes.counters import by_label
from fakes.queue_objects import CHECK, a_workload
from fakes.queue_server import QueueServer
from fakes.virtual_time import LoopClock, settle
from gpuledger.formats.kubernetes.workload import CheckState, Workload, workload
from gpuledger.model.errors import Denied, Unreachable
from gpuledger.workflows.queues.card_check import ATTEMPTS, CheckWriter

SAY = Operation.SAY_CHECK


class Writing:
    """A writer, one workload, and what came of each write."""

    def __init__(self, api: QueueServer) -> None:
        self.api = api
        self.context = a_context(LoopClock(), api.store)
        self.counts = self.context.counts
        self.writer = CheckWriter(self.context)
        self.workload = workload(api.put_workload(a_workload("job")))
        self.done: list[Workload | None] = []

    def say(self, state: CheckState, text: str = "text") -> None:
        self.writer.say(self.workload, CHECK, state, text, self.done.append)


@pytest.fixture
async def writing(api: QueueServer) -> Writing:
    return Writing(api)


async def test_what_was_written_is_told_with_its_new_version(api: QueueServer, writing: Writing) -> None:
    writing.say(CheckState.RETRY, "why")
    assert writing.writer.is_writing("uid-job")
    await settle()
    assert not writing.writer.is_writing("uid-job")
    (written,) = writing.done
    assert written is not None
    assert written.version == api.workloads["job"]["metadata"]["resourceVersion"]
    assert written.checks[0].get("requeueAfterSeconds") is None
    assert api.said("job") == ("Retry", "why")
    assert by_label(writing.counts.workload_checks) == {"Retry": 1}


async def test_two_writes_about_a_workload_follow_each_other(api: QueueServer, writing: Writing) -> None:
    arrives = asyncio.Event()
    api.queue(SAY, hold_request(arrives))
    writing.say(CheckState.PENDING, "first")
    writing.say(CheckState.READY, "second")
    await settle()
    assert api.most_in_flight[SAY] == 1
    assert writing.done == []
    arrives.set()
    await settle()
    assert api.most_in_flight[SAY] == 1
    assert api.said("job") == ("Ready", "second")
    assert [bool(each) for each in writing.done] == [True, True]
    assert not writing.writer.is_writing("uid-job")


@pytest.mark.parametrize("state", [CheckState.RETRY, CheckState.READY])
async def test_a_second_write_is_left_out_if_the_first_has_decided_otherwise(
    api: QueueServer, writing: Writing, state: CheckState
) -> None:
    writing.say(state, "first")
    writing.say(CheckState.PENDING, "second")
    await settle()
    assert api.said("job") == (state, "first")
    assert [bool(each) for each in writing.done] == [True, False]


async def test_a_write_is_given_up_after_a_few_attempts(api: QueueServer, writing: Writing) -> None:
    api.queue(SAY, *[refuse(Unreachable("Kueue's webhook does not answer", 500))] * 10)
    writing.say(CheckState.READY)
    await asyncio.sleep(60.0)
    assert len(api.called(SAY)) == ATTEMPTS
    assert writing.done == [None]
    assert by_label(writing.counts.workload_checks) == {}


async def test_a_lost_answer_counts_as_written_when_the_text_was_cut_too(api: QueueServer, writing: Writing) -> None:
    api.queue(SAY, lose_answer())
    writing.say(CheckState.PENDING, "x" * 5_000)
    await asyncio.sleep(5.0)
    assert [bool(each) for each in writing.done] == [True]
    assert len(api.called(SAY)) == 2


async def test_what_cannot_be_read_after_a_conflict_is_given_up(api: QueueServer, writing: Writing) -> None:
    api.set_condition("job", "Requeued")
    api.queue(Operation.READ_WORKLOAD, refuse(Denied("may not be read", 403)))
    writing.say(CheckState.READY)
    await settle()
    assert writing.done == [None]
    assert api.state("job") == "Pending"


async def test_who_is_in_charge_no_more_repeats_nothing(api: QueueServer, writing: Writing) -> None:
    api.queue(SAY, refuse(Unreachable("later", 500)))
    writing.say(CheckState.READY)
    await settle()
    writing.context.leadership._set(active=False)
    await asyncio.sleep(60.0)
    assert len(api.called(SAY)) == 1
    assert writing.done == [None]


async def test_a_writer_that_is_stopped_leaves_nothing_running(api: QueueServer, writing: Writing) -> None:
    api.queue(SAY, hold_request(asyncio.Event()))
    writing.say(CheckState.READY)
    await settle()
    await writing.context.tasks.stop()
    assert not writing.writer.is_writing("uid-job")
    assert writing.done == [None]
    await asyncio.sleep(5.0)
    assert api.state("job") == "Pending"
