"""Reads that may fail: what can't be read is noted as such."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpuledger.doctor.facts import Unread
from gpuledger.model.errors import ApiError, BadInput, Denied, NotFound

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


async def tried(what: str, needs: str, read: Callable[[], Awaitable[Value]]) -> Value | Unread:
    """Return what is read, or why it is not."""
    try:
        return await read()
    except (ApiError, BadInput) as error:
        logger.debug("%s: %s", what, error)
        return Unread(what, _why(error, what), needs)


async def or_none(what: str, needs: str, read: Callable[[], Awaitable[Value]]) -> Value | Unread | None:
    """Return the same, None for what is not there."""

    async def found() -> Value | None:
        try:
            return await read()
        except NotFound:
            return None

    return await tried(what, needs, found)


def _why(error: Exception, what: str) -> str:
    if isinstance(error, Denied) and error.status == 403:
        return f"your account may not read {what}"
    return f"{what} can't be read: {error}"
