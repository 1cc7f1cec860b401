"""Notices when a watch lists again, Kopf's or a plain one.

A watch can break in a way that makes it list everything again. What was deleted in between is in no list and gets no
event. So each such list is followed by a comparison of memory with full lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuledger.formats.custom_resource.resource import PLURAL

NODES, PODS, CARDS = "nodes", "pods", PLURAL
"""The kinds whose lists count, as their paths end."""


class ListsRead:
    """Which lists have been read. `first` is set when each kind was read once, `again` after any later one."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.again = asyncio.Event()
        self._missing = {NODES, PODS, CARDS}

    def read(self, kind: str) -> None:
        """Note that a list has been read."""
        if self.first.is_set():
            self.again.set()
        self._missing.discard(kind)
        if not self._missing:
            self.first.set()

    def listing(self, kind: str) -> Callable[[set[str]], None]:
        """Note that a plain watch is listing; return what notes that it has."""
        return lambda _: self.read(kind)
