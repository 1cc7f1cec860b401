"""Long work in slices: the event loop has kube-scheduler to answer, too."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.002
"""How long the event loop is kept at a stretch."""


class Pace:
    """Lets others have the event loop whenever a slice is over."""

    def __init__(self) -> None:
        self._end_s = time.perf_counter() + SLICE_S

    async def keep(self) -> None:
        """Be called after each step of the work; go on at once, or when others have had their turn."""
        if time.perf_counter() >= self._end_s:
            await asyncio.sleep(0)
            self._end_s = time.perf_counter() + SLICE_S
