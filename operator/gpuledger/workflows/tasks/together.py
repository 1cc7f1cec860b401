"""Several steps at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

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
