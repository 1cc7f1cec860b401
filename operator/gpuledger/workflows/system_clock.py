"""The clocks of this machine: the only place in the workflows where the time is read."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """The `Clock` of programs. To be made where their event loop runs."""

    def __init__(self) -> None:
        self.now_s = asyncio.get_running_loop().time  # as it is, for it is asked at every Filter
        self.work_s = time.perf_counter

    @staticmethod
    def wall() -> datetime:
        """Return the time of day, in UTC."""
        return datetime.now(UTC)
