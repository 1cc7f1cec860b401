"""How long the kubelet waits here for what is not known yet, before it asks again by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpuledger.model.backoff import Backoff
from gpuledger.model.errors import NotKnownYet, Unreachable

logger = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""How long a start waits for what is not known yet; the kubelet waits 30 s, for a claim 45 s, and then tries again."""

PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

Result = TypeVar("Result")


async def retry_until(attempt: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Return what an attempt comes to, and try again while it raises NotKnownYet, Unreachable or OSError.

    Raises NotKnownYet after PATIENCE_S, and at once what else it raises. `what` is for the log.
    """
    backoff, why = Backoff(PAUSE_S, LONGEST_PAUSE_S), "no answer"
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await attempt()
                except (NotKnownYet, Unreachable, OSError) as error:
                    why = str(error)
                    logger.info("%s is retried: %s", what, why)
                await asyncio.sleep(backoff.next_s())
    except TimeoutError as error:
        raise NotKnownYet(f"{why}; tried for {PATIENCE_S:g} s") from error
