"""Resolves races between a list and its watch: the newer resourceVersion wins.

And from where they begin, which is where the first full list has ended; and how far they have come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from gpuledger.model.json_object import Json


class EventsDuringList:
    """The events of a watch while a full list is read: they are newer than the list."""

    def __init__(self) -> None:
        self._keys: set[str] | None = None  # None while no list is read

    def note(self, key: str) -> None:
        """Record that the watch has shown something."""
        if self._keys is not None:
            self._keys.add(key)

    @contextmanager
    def since_now(self) -> Iterator[set[str]]:
        """Yield the keys of what is shown from here on, a set that grows."""
        self._keys = set()
        try:
            yield self._keys
        finally:
            self._keys = None


class FirstList:
    """The first full list of a kind: its watch goes on from there, instead of listing all of it once more."""

    def __init__(self) -> None:
        self._is_read = asyncio.Event()
        self._version = ""

    def read(self, version: str) -> None:
        """Record that a full list has been read, and of which version it is."""
        if not self._is_read.is_set():
            self._version = version
            self._is_read.set()

    async def version(self) -> str:
        """Wait until it is read, and return its version."""
        await self._is_read.wait()
        return self._version


class WatchedUpTo:
    """How far a plain watch has come: all that was written up to this version is known, whoever has written it.

    A watch shows its kind's objects in the order in which etcd has stored them; a list shows them in the order of their
    names, and counts once it is complete.
    """

    def __init__(self) -> None:
        self._version = 0
        self._of_list: int | None = None  # the newest version of a list that is being read
        self._moved = asyncio.Event()

    def note(self, version: int) -> None:
        """Record that an object was shown, as it is or was in this version."""
        if self._of_list is not None:
            self._of_list = max(self._of_list, version)
        elif version > self._version:
            self._version = version
            self._moved.set()

    def listing(self) -> Callable[[set[str]], None]:
        """Record that the watch lists everything anew; return what notes that it has."""
        self._of_list = 0

        def listed(_: set[str]) -> None:
            version, self._of_list = self._of_list or 0, None
            self.note(version)

        return listed

    async def reaches(self, version: int) -> None:
        """Wait until the watch has come so far."""
        while self._version < version:
            self._moved.clear()
            await self._moved.wait()


class NodeVersions:
    """The newest version that was shown of each Node: a watch that starts again may begin with what it was before."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}  # name -> version, also of a Node that has gone since the last full list

    def is_news(self, node: Json) -> bool:
        """Observe a version of a Node; return whether it is not older than what was shown before."""
        name, version = node["metadata"]["name"], version_of(node)
        if version < self._newest.get(name, 0):
            return False
        self._newest[name] = version
        return True

    def known(self) -> dict[str, int]:
        """Return them: name -> version."""
        return dict(self._newest)

    def keep(self, names: AbstractSet[str]) -> None:
        """Forget all other Nodes."""
        self._newest = {name: version for name, version in self._newest.items() if name in names}


def version_of(found: Json) -> int:
    """Return the version of an object, as a number."""
    return int(found["metadata"].get("resourceVersion") or 0)
