"""How long to wait before a request is repeated, and when work that takes long lets others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuledger.model.backoff import Backoff
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, GpuledgerError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0

FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0
"""Of `Throttle`: doubled each time."""


async def sleep_backoff(attempt: int, error: GpuledgerError) -> None:
    """Wait after a failed attempt, counted from 0: twice as long each time, and as long as the server asks for."""
    asked_for_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
    await asyncio.sleep(max(pause_s(attempt), asked_for_s))


def pause_s(attempt: int) -> float:
    """Return how long to wait after an attempt in vain, counted from 0."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 10))


TURN_S = 0.005
"""So long others can wait without noticing."""

HARD_S = 0.02
"""What is done before others have their turn takes less, unless a caller has asked for something that takes long."""

REST_TO_WORK = 3.0
"""How long a task that has worked for longer rests, by how long that was: most of the time is for others."""


async def yield_to_loop(since_s: float, clock: Clock) -> float:
    """Let others have their turn after work that began at `since_s`, by `clock.work_s`; return when it goes on."""
    worked_s = clock.work_s() - since_s
    await asyncio.sleep(REST_TO_WORK * worked_s if worked_s > HARD_S else 0.0)
    return clock.work_s()


async def in_slices(steps: Iterable[None], clock: Clock) -> None:
    """Take steps of work, and let others have their turn whenever some have taken as long as nobody notices."""
    since_s = clock.work_s()
    for _ in steps:
        if clock.work_s() > since_s + TURN_S:
            since_s = await yield_to_loop(since_s, clock)


@dataclass(slots=True)
class _Turn:
    backoff: Backoff
    asked: bool = False


class Throttle:
    """Does a thing at once the first time, and then later and later, as long as it is asked for again and again.

    A thing that was not asked for during its whole delay is forgotten.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}  # key -> what was done a short while ago

    def call(self, key: str, step: Callable[[str], None]) -> None:
        """Call `step(key)`, now or when its delay is over; however often that is asked for until then, once."""
        turn = self._turns.get(key)
        if turn is not None:
            turn.asked = True
            return
        self._turns[key] = _Turn(Backoff(FIRST_DELAY_S, LONGEST_DELAY_S))
        self._call(key, step)

    def _call(self, key: str, step: Callable[[str], None]) -> None:
        asyncio.get_running_loop().call_later(self._turns[key].backoff.next_s(), self._due, key, step)
        step(key)

    def _due(self, key: str, step: Callable[[str], None]) -> None:
        turn = self._turns[key]
        if not turn.asked:
            del self._turns[key]
            return
        turn.asked = False
        self._call(key, step)
