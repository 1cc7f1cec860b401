"""Parts of the process that go on for ever: what fails in one of them ends neither it nor the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpuledger.model.clock import Backoff, Clock
from gpuledger.model.errors import GpuledgerError, StateRolledBack

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Pauses double up to this; a part that has run for so long begins with short ones again."""


async def started_again(name: str, part: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Run a part until it ends by itself; when it fails, start it again after a pause. Raises StateRolledBack."""
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        begin_s = clock.now_s()
        try:
            await part()
            return
        except StateRolledBack:
            raise
        except Exception as error:
            if clock.now_s() > begin_s + LONGEST_PAUSE_S:
                backoff.reset()
            pause_s = backoff.next_s()
            if isinstance(error, GpuledgerError):
                logger.error("%s failed, restarting it in %g s: %s", name, pause_s, error)
            else:
                logger.exception("%s failed, which is a bug in gpuledger; restarting it in %g s", name, pause_s)
            await asyncio.sleep(pause_s)
