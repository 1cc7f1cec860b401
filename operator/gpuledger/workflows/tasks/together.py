"""Several steps at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_of(steps: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all steps, even when one fails; then raise the first error there was, or return the results."""
    done: list[T] = []
    errors: list[BaseException] = []
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            errors.append(result)
        else:
            done.append(result)
    if errors:
        raise errors[0]
    return done


async def first_to_end(*parts: Awaitable[None]) -> None:
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
