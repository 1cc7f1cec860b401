"""How long to wait before a request is repeated, and when work that takes long lets others have their turn.

Answers that take several steps: at once, or with the event loop's other work between the steps.

A step may yield a function: it is called before the next step, in a thread where others have their turn meanwhile.

Several steps at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuledger.model.clock import Backoff, Clock
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


Answer = TypeVar("Answer")
Step = Callable[[], None] | None


def run_to_end(steps: Generator[Step, None, Answer]) -> Answer:
    """Take all steps; return the answer. Raises what a step raises."""
    answers: list[Answer] = []
    for step in _kept(steps, answers):
        if step is not None:
            step()
    return answers[0]


async def run_cooperatively(steps: Generator[Step, None, Answer]) -> Answer:
    """Take all steps, and let others have their turn after each; return the answer. Raises what a step raises."""
    answers: list[Answer] = []
    for step in _kept(steps, answers):
        await (asyncio.sleep(0) if step is None else asyncio.to_thread(step))
    return answers[0]


def _kept(steps: Generator[Step, None, Answer], answers: list[Answer]) -> Generator[Step, None, None]:
    """Take the steps one by one, and keep what they return: a `for` would drop it."""
    answers.append((yield from steps))


async def nothing(_: object) -> None:
    """Do nothing, where something could be awaited."""


T = TypeVar("T")


async def gather_all(steps: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all steps, even when one fails; then raise the first error there was, or return the results."""
    every = list(steps)
    if len(every) == 1:  # most pods have one card: without a task of its own
        return [await every[0]]
    done: list[T] = []
    errors: list[BaseException] = []
    for result in await asyncio.gather(*every, return_exceptions=True):
        if isinstance(result, BaseException):
            errors.append(result)
        else:
            done.append(result)
    if errors:
        raise errors[0]
    return done


async def all_within(timeout_s: float, calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run calls side by side; those that have not ended by then are cancelled. Raises what one has raised."""
    tasks = [asyncio.create_task(call) for call in calls]
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=timeout_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def wait_first(*parts: Awaitable[None]) -> None:
    """Wait until one of them ends, and raise what it has raised. The others are cancelled, whatever ends the wait."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
    for task in done:
        task.result()
