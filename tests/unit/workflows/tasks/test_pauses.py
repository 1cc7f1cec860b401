"""Pauses between the same thing and itself."""

import asyncio
from itertools import pairwise

import pytest

from fakes.virtual_time import LoopClock, now_s
from gpuledger.workflows.tasks import (
    FIRST_DELAY_S,
    HARD_S,
    LONGEST_DELAY_S,
    REST_TO_WORK,
    Throttle,
    yield_to_loop,
)


async def asked_all_the_time(seconds: float) -> list[float]:
    """Return when a thing was done, in seconds from the start, that was asked for every tenth of a second."""
    throttle, start_s, done_s = Throttle(), now_s(), list[float]()
    while now_s() < start_s + seconds:
        throttle.call("a", lambda _: done_s.append(now_s() - start_s))
        await asyncio.sleep(FIRST_DELAY_S / 10)
    return done_s


async def test_what_is_asked_for_all_the_time_is_done_at_once_and_then_later_and_later() -> None:
    done_s = await asked_all_the_time(10 * LONGEST_DELAY_S)
    between = [round((later - earlier) / FIRST_DELAY_S) for earlier, later in pairwise(done_s)]
    assert done_s[0] == 0.0
    assert between[:5] == [1, 2, 4, 8, 16]
    assert set(between[5:]) == {LONGEST_DELAY_S / FIRST_DELAY_S}


async def test_what_was_asked_for_within_a_delay_is_done_at_its_end_and_once() -> None:
    throttle, done = Throttle(), list[str]()
    for _ in range(3):
        throttle.call("a", done.append)
    assert done == ["a"]
    await asyncio.sleep(10 * LONGEST_DELAY_S)
    assert done == ["a", "a"]


async def test_after_a_calm_delay_it_is_done_at_once_again_and_others_never_wait_for_it() -> None:
    throttle, done = Throttle(), list[str]()
    for _ in range(2):
        throttle.call("a", done.append)
    throttle.call("b", done.append)
    assert done == ["a", "b"]
    await asyncio.sleep(FIRST_DELAY_S + 2 * FIRST_DELAY_S + 0.1)
    throttle.call("a", done.append)
    assert done == ["a", "b", "a", "a"]


class WorkingClock(LoopClock):
    """The clock of a machine that takes time to work: as much as a test says."""

    worked_s = 0.0

    def work_s(self) -> float:
        return self.now_s() + self.worked_s


@pytest.mark.parametrize(("worked_s", "rests_s"), [(HARD_S / 2, 0.0), (5 * HARD_S, 5 * HARD_S * REST_TO_WORK)])
async def test_whoever_has_worked_for_long_rests_longer_and_else_only_lets_others_go_first(
    worked_s: float, rests_s: float
) -> None:
    clock, others = WorkingClock(), list[float]()
    begin_s, work_s = now_s(), clock.work_s()
    asyncio.get_running_loop().call_soon(others.append, begin_s)
    clock.worked_s = worked_s
    goes_on_s = await yield_to_loop(work_s, clock)
    assert now_s() - begin_s == pytest.approx(rests_s)
    assert goes_on_s == clock.work_s()
    assert others == [begin_s]
