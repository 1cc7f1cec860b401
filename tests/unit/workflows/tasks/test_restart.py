"""What fails in a part of the process is started again, and never at once for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from fakes.virtual_time import LoopClock, now_s
from gpuledger.model.errors import StateRolledBack
from gpuledger.workflows.tasks import LONGEST_RESTART_S, started_again

Fails = Callable[[int, Exception], tuple[Callable[[], Awaitable[None]], list[float]]]


@pytest.fixture
def fails() -> Fails:
    """Return what makes a part that fails so often, and when it was started."""

    def make(times: int, error: Exception) -> tuple[Callable[[], Awaitable[None]], list[float]]:
        started_s: list[float] = []

        async def part() -> None:
            started_s.append(now_s())
            if len(started_s) <= times:
                raise error

        return part, started_s

    return make


async def test_a_part_that_fails_is_started_again_after_growing_pauses(fails: Fails) -> None:
    part, started_s = fails(9, ZeroDivisionError())
    await started_again("part", part, LoopClock())
    pauses_s = [after - before for before, after in pairwise(started_s)]
    assert pauses_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


async def test_a_part_that_has_run_for_long_is_started_again_soon(fails: Fails) -> None:
    part, started_s = fails(9, ZeroDivisionError())

    async def runs_long() -> None:
        await asyncio.sleep(LONGEST_RESTART_S + 1.0)
        await part()

    await started_again("part", runs_long, LoopClock())
    assert max(after - before for before, after in pairwise(started_s)) < LONGEST_RESTART_S + 3.0


async def test_memory_that_cannot_be_trusted_ends_the_process(fails: Fails) -> None:
    part, started_s = fails(1, StateRolledBack("an older copy"))
    with pytest.raises(StateRolledBack):
        await started_again("part", part, LoopClock())
    assert len(started_s) == 1
