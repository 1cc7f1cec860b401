"""A read that many ask for at once: as few as can be, and none that begins before it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SharedRead(Generic[Result]):
    """One read at a time."""

    def __init__(self, read: Callable[[], Awaitable[Result]]) -> None:
        self._read = read
        self._next: asyncio.Task[Result] | None = None
        self._last: asyncio.Task[Result] | None = None
        self.reads = 0

    async def result(self) -> Result:
        """Return what is read at some moment after this call. Raises what the read raises.

        A caller that asks while a read is on its way waits for the next one, together with all others.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._last))
            self._next.add_done_callback(_hear_out)
        return await asyncio.shield(self._next)

    async def _read_after(self, before: asyncio.Task[Result] | None) -> Result:
        if before is not None:
            await asyncio.wait([before])
        self._last, self._next = self._next, None  # from here on, others need a read that begins later
        self.reads += 1
        return await self._read()


def _hear_out(read: asyncio.Task[Result]) -> None:
    """Take note of an error that no one waits for any more: asyncio would complain."""
    if not read.cancelled():
        read.exception()
