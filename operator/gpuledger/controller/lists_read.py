"""Notices when a watch lists, Kopf's or a plain one.

A watch can break in a way that makes it list everything again. What was deleted in between is in no list and gets no
event. So each such list is followed by a comparison of memory with full lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

NODES = "nodes"
"""The kind that Kopf watches, as its path ends."""


class ListsRead:
    """Which lists have been read. `first` is set when Kopf was first given that of nodes, `again` after any later list.

    A plain watch begins where the operator itself has read the first list.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.again = asyncio.Event()

    def read(self, kind: str) -> None:
        """Record that Kopf was given a list."""
        if self.first.is_set():
            self.again.set()
        elif kind == NODES:
            self.first.set()

    def listing(self) -> Callable[[set[str]], None]:
        """Record that a plain watch is listing; return what notes that it has."""
        return lambda _: self.again.set()
