"""When to write what others may write as well: what is new at once, the same again later and later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from gpuledger.model.backoff import Backoff

Value = TypeVar("Value")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between two writes of the same value."""

QUIET_S = 60.0
"""A client that leaves it alone for so long, beyond the pause, does not fight."""


class WritePace(Generic[Value]):
    """Spaces the writes of one thing. Times are those of the event loop."""

    def __init__(self) -> None:
        self._tried: Value | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._tried_s, self._pause_s = -QUIET_S - LONGEST_PAUSE_S, FIRST_PAUSE_S

    def due_s(self, wanted: Value) -> float:
        """Return when to write this."""
        # What is new is written at once: a card that is broken must not wait because another client fights.
        return self._tried_s + self._pause_s if self._tried == wanted else 0.0

    @contextlib.contextmanager
    def trying(self, wanted: Value) -> Iterator[None]:
        """Note that this is written, from when to when."""
        now_s = asyncio.get_running_loop().time()
        if now_s > self._tried_s + self._pause_s + QUIET_S:
            self._backoff.reset()
        self._pause_s = self._backoff.next_s()
        self._tried, self._tried_s = wanted, now_s
        try:
            yield
        finally:
            self._tried_s = asyncio.get_running_loop().time()
