"""Several steps at once."""

from __future__ import annotations

import asyncio
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
