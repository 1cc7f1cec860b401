"""How late the event loop is: whatever waits in it, a Filter or an object from a watch, waits as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 1.0


class LoopLag:
    """Looks once a second by how much a timer comes late. Nothing is sent or written."""

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe  # is called with seconds
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Measure from now on, in the running loop."""
        self._next(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + INTERVAL_S
        self._timer = loop.call_at(self._due_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._observe(max(0.0, loop.time() - self._due_s))
        self._next(loop)
