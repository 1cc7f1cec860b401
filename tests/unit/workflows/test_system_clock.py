"""All that has a time has it by the clock that the workflows were given."""

import asyncio
from datetime import UTC, timedelta

from fakes.api_server import ApiServer
from fakes.objects import a_pod_object
from fakes.operator_parts import TELL_WAITING_AFTER_S, OperatorParts
from fakes.virtual_time import LoopClock, wall
from gpuledger.formats.kubernetes.other import ALLOCATED, condition_of
from gpuledger.workflows.system_clock import SystemClock

AHEAD_S = 3_600.0


async def test_the_clock_of_programs_goes_with_the_event_loop_and_knows_its_time_zone() -> None:
    clock = SystemClock()
    begin_s, work_s = clock.now_s(), clock.work_s()
    await asyncio.sleep(100.0)  # in virtual time
    assert clock.now_s() == begin_s + 100.0
    assert work_s < clock.work_s() < work_s + 100.0
    assert clock.wall().tzinfo is UTC


async def test_what_is_noted_and_told_of_a_pod_has_the_time_of_the_machines_clock(api: ApiServer) -> None:
    parts = OperatorParts(api, clock=LoopClock(AHEAD_S))
    api.put_pod(a_pod_object("a"))
    now = wall() + timedelta(seconds=AHEAD_S)
    parts.watch()
    parts.filter("a", "node-a")
    (record,), (waiting,) = parts.trail, parts.waiting.all()
    assert record.unix_s == waiting.tried_s == now.timestamp()
    await asyncio.sleep(TELL_WAITING_AFTER_S + 0.1)
    await parts.pod_condition_writer.worker.idle()
    condition = condition_of(api.pods["default", "a"], ALLOCATED)
    assert condition is not None
    told = now + timedelta(seconds=TELL_WAITING_AFTER_S)
    assert condition["lastTransitionTime"] == told.strftime("%Y-%m-%dT%H:%M:%SZ")
