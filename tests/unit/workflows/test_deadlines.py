"""Room is kept for as long as it was to be, whatever becomes of the wall clock."""

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import a_card, a_holder, a_share
from fakes.virtual_time import LoopClock, wall
from gpuledger.formats.kubernetes.pod import LONGEST_GRACE_S
from gpuledger.model.share import Holder, HolderState
from gpuledger.workflows.lifecycles import Deadlines

LEAST_S = 60.0


def kept_for(seconds: float) -> Holder:
    """Return a share that is reserved for so long, by a clock that is right."""
    deadline = (wall() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(a_holder("a", a_share(a_card())), state=HolderState.RESERVED, deadline=deadline)


async def test_without_a_deadline_nothing_is_kept() -> None:
    assert Deadlines(clock=LoopClock(), least_s=LEAST_S).seconds_left(a_holder("a", a_share(a_card()))) == 0.0


@pytest.mark.parametrize("jump_s", [7_200.0, -7_200.0])
async def test_a_clock_that_is_set_meanwhile_changes_nothing(jump_s: float) -> None:
    clock = LoopClock()
    deadlines, holder = Deadlines(clock=clock, least_s=LEAST_S), kept_for(100.0)
    left_s = deadlines.seconds_left(holder)
    clock.ahead_s += jump_s
    assert deadlines.seconds_left(holder) == left_s == pytest.approx(100.0, abs=1.0)


async def test_a_deadline_of_a_clock_that_is_behind_leaves_some_time() -> None:
    assert Deadlines(clock=LoopClock(), least_s=LEAST_S).seconds_left(kept_for(-7_200.0)) == LEAST_S


async def test_a_deadline_of_a_clock_that_is_ahead_comes_in_time() -> None:
    assert (
        Deadlines(clock=LoopClock(), least_s=LEAST_S).seconds_left(kept_for(1_000_000.0)) == LONGEST_GRACE_S + LEAST_S
    )


async def test_each_deadline_of_a_pod_is_counted_for_itself() -> None:
    deadlines = Deadlines(clock=LoopClock())
    assert deadlines.seconds_left(kept_for(100.0)) < 101.0 < deadlines.seconds_left(kept_for(200.0))
