"""The event loop of one simulated process: callbacks in order, timers by the world's clock, and no I/O at all.

Each process has a loop of its own, so that one can die: its loop is never run again, and nothing of it goes on.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVar

from fakes.virtual_time import called_at_once

CLOSED_AFTER = 10
"""How often a coroutine is closed that does not end at once."""

T = TypeVar("T")
Steps = Generator[Any, None, Any] | Coroutine[Any, Any, Any]


class Clock:
    """The time of the world, in seconds. It passes when the world says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0


class Handle:
    """A callback that waits for its turn. asyncio's own carries what only a debugger asks for, at twice the time."""

    __slots__ = ("arguments", "callback", "is_cancelled", "when_s")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], when_s: float) -> None:
        self.callback = callback
        self.arguments = arguments
        self.when_s = when_s
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not call it any more."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Return whether it will not be called."""
        return self.is_cancelled

    def when(self) -> float:
        """Return the time at which it is due."""
        return self.when_s


def new_loop(clock: Clock) -> "ProcessLoop":
    """Return a loop. It leaves out most of what a loop may have to do: files, sockets, signals, threads."""
    return ProcessLoop(clock)  # type: ignore[abstract]


class ProcessLoop(asyncio.AbstractEventLoop):
    """Runs what is ready, when it is told to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = 0
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task there has been, ended ones too."""

    # What the world does with it.

    def run_ready(self) -> bool:
        """Run until everything waits for a timer or for the world; return whether there was anything to run."""
        ready = self._ready
        if not ready:
            return False
        events._set_running_loop(self)
        try:
            while ready:
                handle = ready.popleft()
                if not handle.is_cancelled:
                    handle.callback(*handle.arguments)
        finally:
            events._set_running_loop(None)
        return True

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function inside the process."""
        events._set_running_loop(self)
        try:
            return function(*arguments)
        finally:
            events._set_running_loop(None)

    def next_timer_s(self) -> float:
        """Return when the next timer is due, infinity if there is none."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
        return timers[0][0] if timers else float("inf")

    def wake(self) -> None:
        """Make the callbacks of all timers ready whose time has come."""
        now_s = self._clock.now_s
        while self.next_timer_s() <= now_s:
            self._ready.append(heappop(self._timers)[2])

    def open_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended."""
        return [task for task in self.tasks if not task.done()]

    def failed_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that ended with an error at which nobody has looked."""
        return [task for task in self.tasks if task.done() and task._log_traceback]

    def throw_away(self) -> None:
        """Forget everything that is going on; only for a loop that will not run again."""
        for task in self.tasks:  # grows while the last ones are being closed
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task._log_traceback = False
            steps = task.get_coro()
            for _ in range(CLOSED_AFTER):
                if task.done() or steps is None or self.call(_close, steps):
                    break
        self._ready.clear()
        self._timers.clear()

    # What asyncio asks of a loop.

    def time(self) -> float:
        """Return the time of the world."""
        return self._clock.now_s

    def get_debug(self) -> bool:
        """Never: it would only cost time."""
        return False

    def is_running(self) -> bool:
        """Say what asyncio wants to hear."""
        return True

    def is_closed(self) -> bool:
        """Say what asyncio wants to hear."""
        return False

    # Contexts are left out: nothing here has context variables.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Run a callback after those that are ready already."""
        handle = Handle(callback, args, self._clock.now_s)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Run a callback when that many seconds of the world have passed."""
        return self.call_at(self._clock.now_s + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Run a callback at a time of the world."""
        handle = Handle(callback, args, when)
        self._number += 1
        heappush(self._timers, (when, self._number, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def run_in_executor(  # type: ignore[override]  # nobody but asyncio calls it
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call a function at once: there are no threads, and a search changes nothing."""
        return called_at_once(self, func, *args)

    def create_task(self, coro: Steps, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Start a task."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing: failed tasks are looked at in the end."""


def _close(steps: Steps) -> bool:
    """Close a coroutine; return whether that was the end of it."""
    try:
        steps.close()
    except Exception:  # noqa: BLE001 - what it had to do at its end was too much
        return False
    return True
