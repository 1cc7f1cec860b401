"""Notices when Kopf lists anew what it watches, and when the plain watch of the cards does.

A watch can break in a way that makes Kopf list everything again. What was deleted in between is in no list and gets no
event, and Kopf says nothing of it. So each of its lists is followed by a comparison of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp

from gpuledger.formats.custom_resource.gpu_allocation import PLURAL

LISTED_KINDS = ("nodes", "pods", PLURAL)


class KopfLists:
    """Which lists have been read. `first` is set when each kind was read once, `again` after any later one."""

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
        if kind in LISTED_KINDS and "watch" not in ended.url.query and ended.response.status == 200:
            self._read(kind)

    def listing(self) -> Callable[[set[str]], None]:
        """Note that the cards are being listed by a plain watch; return what notes that they have been."""
        return lambda _: self._read(PLURAL)

    def _read(self, kind: str) -> None:
        if self.first.is_set():
            self.again.set()
        self._missing.discard(kind)
        if not self._missing:
            self.first.set()
