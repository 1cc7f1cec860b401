"""Pauses between the same thing and itself."""

import asyncio
from itertools import pairwise

from fakes.virtual_time import now_s
from gpuledger.workflows.tasks.pauses import FIRST_DELAY_S, LONGEST_DELAY_S, Patience


async def asked_all_the_time(seconds: float) -> list[float]:
    """Return when a thing was done, in seconds from the start, that was asked for every tenth of a second."""
    patience, start_s, done_s = Patience(), now_s(), list[float]()
    while now_s() < start_s + seconds:
        patience.call("a", lambda _: done_s.append(now_s() - start_s))
        await asyncio.sleep(FIRST_DELAY_S / 10)
    return done_s


async def test_what_is_asked_for_all_the_time_is_done_at_once_and_then_later_and_later() -> None:
    done_s = await asked_all_the_time(10 * LONGEST_DELAY_S)
    between = [round((later - earlier) / FIRST_DELAY_S) for earlier, later in pairwise(done_s)]
    assert done_s[0] == 0.0
    assert between[:5] == [1, 2, 4, 8, 16]
    assert set(between[5:]) == {LONGEST_DELAY_S / FIRST_DELAY_S}


async def test_what_was_asked_for_within_a_delay_is_done_at_its_end_and_once() -> None:
    patience, done = Patience(), list[str]()
    for _ in range(3):
        patience.call("a", done.append)
    assert done == ["a"]
    await asyncio.sleep(10 * LONGEST_DELAY_S)
    assert done == ["a", "a"]


async def test_after_a_calm_delay_it_is_done_at_once_again_and_others_never_wait_for_it() -> None:
    patience, done = Patience(), list[str]()
    for _ in range(2):
        patience.call("a", done.append)
    patience.call("b", done.append)
    assert done == ["a", "b"]
    await asyncio.sleep(FIRST_DELAY_S + 2 * FIRST_DELAY_S + 0.1)
    patience.call("a", done.append)
    assert done == ["a", "b", "a", "a"]
