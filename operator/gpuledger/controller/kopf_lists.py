"""Notices when Kopf lists anew what it watches.

A watch can break in a way that makes Kopf list everything again. What was deleted in between is in no list and gets no
event, and Kopf says nothing of it. So each of its lists is followed by a comparison of our own.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiohttp

from gpuledger.formats.gpu_allocation import PLURAL

LISTED_KINDS = ("nodes", "pods", PLURAL)


class KopfLists:
    """Which lists Kopf has read. `first` is set when it has read each kind once, `again` after any later one."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.again = asyncio.Event()
        self._missing = set(LISTED_KINDS)

    def trace(self) -> aiohttp.TraceConfig:
        """Return what makes an HTTP session tell of its lists."""
        config = aiohttp.TraceConfig()
        config.on_request_end.append(self._note)
        return config

    async def _note(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, ended: aiohttp.TraceRequestEndParams
    ) -> None:
        kind = ended.url.name
        if kind not in LISTED_KINDS or "watch" in ended.url.query or ended.response.status != 200:
            return
        if self.first.is_set():
            self.again.set()
        self._missing.discard(kind)
        if not self._missing:
            self.first.set()
