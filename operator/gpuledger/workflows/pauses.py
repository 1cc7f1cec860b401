"""How long to wait before a request is repeated."""

from __future__ import annotations

import asyncio

from gpuledger.model.errors import ApiError, GpuledgerError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


async def pause(attempt: int, error: GpuledgerError) -> None:
    """Wait after a failed attempt, counted from 0: twice as long each time, and as long as the server asks for."""
    asked_for_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
    await asyncio.sleep(max(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 10)), asked_for_s))
