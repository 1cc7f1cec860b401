"""What is to be done at which time, in order; anybody may add to it meanwhile."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from chaos.steps import Step

Task = Callable[[], None]

LOOK_AFTER_S = 1.0


class Timeline:
    """Tasks with their times, by `time.monotonic`."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def at(self, at_s: float, task: Task) -> None:
        """Add a task."""
        with self._changed:
            heapq.heappush(self._due, (at_s, next(self._numbers), task))
            self._changed.notify()

    def close(self) -> None:
        """Have nothing more done."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self, until_s: float = float("inf")) -> None:
        """Do each task at its time, until then or until it is closed. What is due later is not done."""
        while (task := self._next(until_s)) is not None:
            task()

    def play(self, steps: Iterable[Step], do: Callable[[Step], None], look_after: Task, seconds: float) -> None:
        """Do the steps of a plan at their times, and look after the programs once a second, for so long."""
        begin_s = time.monotonic()
        for step in steps:
            self.at(begin_s + step.at_s, partial(do, step))
        for second in range(1, int(seconds / LOOK_AFTER_S)):
            self.at(begin_s + second * LOOK_AFTER_S, look_after)
        self.run(until_s=begin_s + seconds)

    def _next(self, until_s: float) -> Task | None:
        with self._changed:
            while not self._closed:
                due_s = min(self._due[0][0] if self._due else until_s, until_s)
                wait_s = due_s - time.monotonic()
                if wait_s > 0:
                    self._changed.wait(None if wait_s == float("inf") else wait_s)
                elif self._due and self._due[0][0] <= due_s:
                    return heapq.heappop(self._due)[2]
                else:
                    return None
        return None
