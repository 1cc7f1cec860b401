"""Tasks of the event loop: retries, work in steps, turns, endless loops, and level-based workers.

- Work that takes long is done in steps, with the event loop's other work in between. A step may yield a function: it
  is called before the next step, in a thread.
- Where there is not the time to try all who wait, namespaces take turns, as names are free.
- A failure in an endless loop ends neither the loop nor the process.
- A key is marked as changed, and one task brings it up to date, however often it was marked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from gpuledger.model.clock import Backoff, Clock
from gpuledger.model.errors import ApiError, GpuledgerError, StateRolledBack

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Tasks:
    """The tasks and timers of the operator's parts, which end together."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._are_stopped = False

    def start(self, steps: Coroutine[Any, Any, Answer], name: str) -> asyncio.Task[Answer]:
        """Start a task."""
        task = asyncio.create_task(steps, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def after(self, wait_s: float, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        """Call something after a while, unless the operator ends before."""
        return asyncio.get_running_loop().call_later(wait_s, self._call, call, arguments)

    def _call(self, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._are_stopped:
            call(*arguments)

    async def stop(self) -> None:
        """Cancel all tasks, and let no timer do anything any more."""
        self._are_stopped = True
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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


One = TypeVar("One")

HEAD_EVERY = 4
"""So many passes of a round, and the first of all that wait is tried once more."""


MOST_AHEAD_S = 1.0
"""By so much at most one namespace counts as having had more time than another: who comes late has nothing to catch up
on."""


def by_turns(ones: Iterable[One], namespace_of: Callable[[One], str]) -> list[One]:
    """Return these, given in their order, as namespaces take turns: the first of each, then the second of each."""
    seen = Counter[str]()
    found: list[tuple[int, int, One]] = []
    for number, one in enumerate(ones):
        namespace = namespace_of(one)
        found.append((seen[namespace], number, one))
        seen[namespace] += 1
    return [one for _, _, one in sorted(found, key=lambda each: each[:2])]


class Round(Generic[One]):
    """Passes over all who wait, each of which may end before all were tried.

    The first pass is in the order of those who wait. If one ends early, the next one goes on, whatever has changed:
    with the namespace on which the least time was spent, and in it behind the last one that was tried. So it does not
    matter how many there are of another namespace. The head of all comes again now and then: it would have been tried
    first if there were fewer. After a pass in which all were tried, their order counts again.
    """

    def __init__(self, key_of: Callable[[One], Hashable], namespace_of: Callable[[One], str]) -> None:
        self._key_of = key_of
        self._namespace_of = namespace_of
        self._passes = 0
        """Since all were tried in one."""
        self._tried: dict[str, set[Hashable]] = {}  # namespace -> keys of those tried since all of it were
        self._spent_s: dict[str, float] = {}  # namespace -> how long those of it have been tried
        self._most_s = 0.0
        """The most of these."""

    def next_pass(self, waiting: Iterable[One]) -> Iterator[One]:
        """Yield those who wait, given in their order, as they are to be tried now; see `spent`. Take all, or leave."""
        ones = list(waiting)
        self._passes += 1
        if self._passes == 1:
            yield from ones
        else:
            if self._passes % HEAD_EVERY == 0:
                yield from ones[:1]
            yield from self._by_namespace(ones)
        self._passes, self._most_s = 0, 0.0
        self._tried.clear()
        self._spent_s.clear()

    def spent(self, one: One, took_s: float) -> None:
        """Record that one was tried, and how long that took."""
        namespace = self._namespace_of(one)
        self._tried.setdefault(namespace, set()).add(self._key_of(one))
        self._spent_s[namespace] = self._account(namespace) + took_s
        self._most_s = max(self._most_s, self._spent_s[namespace])

    def _account(self, namespace: str) -> float:
        return max(self._spent_s.get(namespace, 0.0), self._most_s - MOST_AHEAD_S)

    def _by_namespace(self, ones: Iterable[One]) -> Iterator[One]:
        queues: dict[str, deque[One]] = {}
        for one in ones:
            queues.setdefault(self._namespace_of(one), deque()).append(one)
        for known in (self._tried, self._spent_s):
            for namespace in [namespace for namespace in known if namespace not in queues]:
                del known[namespace]
        for namespace, tried in self._tried.items():
            left = deque(one for one in queues[namespace] if self._key_of(one) not in tried)
            if left:
                queues[namespace] = left
            else:  # all of it were tried, and are again
                tried.clear()
        while queues:
            namespace = min(queues, key=self._account)
            yield queues[namespace].popleft()
            if not queues[namespace]:
                del queues[namespace]


FIRST_RESTART_S = 1.0
LONGEST_RESTART_S = 60.0
"""Pauses double up to this; a part that has run for so long begins with short ones again."""


async def started_again(name: str, part: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Run a part until it ends by itself; when it fails, start it again after a pause. Raises StateRolledBack."""
    backoff = Backoff(FIRST_RESTART_S, LONGEST_RESTART_S)
    while True:
        begin_s = clock.now_s()
        try:
            await part()
            return
        except StateRolledBack:
            raise
        except Exception as error:
            if clock.now_s() > begin_s + LONGEST_RESTART_S:
                backoff.reset()
            pause_s = backoff.next_s()
            if isinstance(error, GpuledgerError):
                logger.error("%s failed, restarting it in %g s: %s", name, pause_s, error)
            else:
                logger.exception("%s failed, which is a bug in gpuledger; restarting it in %g s", name, pause_s)
            await asyncio.sleep(pause_s)


FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 30.0


class KeyedWorker:
    """Runs `work(key)` for marked keys: never twice at once for a key, again if it was marked meanwhile.

    Work that raises is repeated after a pause that doubles. At most `parallel` keys at once. An inactive replica does
    nothing, and leaves it to who is; marks are dropped then. With `group_of`, only so many keys of one group wait for
    their turn beside those of others: who has marked a thousand does not keep the others waiting.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        parallel: int,
        is_active: Callable[[], bool] = lambda: True,
        group_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._work = work
        self._is_active = is_active
        self._marked: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group_of = group_of
        self._parallel = parallel
        self._places = asyncio.Semaphore(parallel)
        self._group_places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def mark(self, key: str) -> None:
        """Have the key's work done, soon."""
        if not self._is_active():
            return
        self._marked.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"bring {key} up to date")

    async def idle(self) -> None:
        """Wait until there is nothing to do."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def stop(self) -> None:
        """Drop what is not done."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _places_of(self, group: str) -> asyncio.Semaphore:
        places = self._group_places.get(group)
        if places is None:
            places = self._group_places[group] = asyncio.Semaphore(self._parallel)
        return places

    async def _run(self, key: str) -> None:
        backoff = Backoff(FIRST_RETRY_S, LONGEST_RETRY_S)
        try:
            while key in self._marked:
                self._marked.discard(key)
                try:
                    async with self._places_of(self._group_of(key)), self._places:
                        if self._is_active():
                            await self._work(key)
                    backoff.reset()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                    pause_s = backoff.next_s()
                    logger.warning("%s: retrying in %.1f s after %r", key, pause_s, error)
                    self._marked.add(key)
                    await asyncio.sleep(pause_s)
        finally:
            del self._tasks[key]
