"""Watches that lag behind, stall, break, or leave something out."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp
import orjson

from simulation.api_server import Change, Json, Kind, Selector
from simulation.changes import watch_event
from simulation.item import LATE_S, SOON, SOON_S, Item

if TYPE_CHECKING:
    from simulation.operator_process import OperatorProcess
    from simulation.world import World


class Watch(Item):
    """Events on their way to one watcher, in order. It is itself what is on its way: its next event."""

    __slots__ = ("_after", "_moving", "closed", "kind", "name", "queue", "selector")

    def __init__(self, world: "World", name: str, kind: Kind, selector: Selector) -> None:
        super().__init__(world)
        self.name = name
        self.kind = kind
        self.selector = selector
        self.queue: deque[tuple[str, Json]] = deque()
        self.closed = False
        self._after = 0  # what has happened up to this version is not shown
        self._moving = False  # in the world, as an item, or put off

    @property
    def group(self) -> str:
        return "watch"

    def start(self, version: int | None) -> None:
        """Begin to watch: with all that there is, or with what has happened since a version.

        Nothing is shown up to a version that the API server has yet to reach: that of a time that was undone.
        """
        if version is None:
            self.queue.extend(self._listed())
        else:
            self._after = version
            for change in self.world.api.history:
                self._take(change)
        self.world.api.listeners.append(self._hear)
        self._move()

    def stop(self) -> None:
        """Watch no more."""
        if not self.closed:
            self.closed = True
            self.world.api.listeners.remove(self._hear)

    def show(self, kind: str, found: Json) -> None:
        """Have the watcher take in an event."""
        raise NotImplementedError

    def break_off(self) -> None:
        """Let the connection break."""
        raise NotImplementedError

    def end(self) -> None:
        """Let the connection break with the API server, which ends; nothing arrives that was under way."""
        self.break_off()
        self._move()

    def what(self) -> str:
        kind, found = self.queue[0]
        metadata = found["metadata"]
        return f"{self.name}: sees {kind} {self.kind} {metadata['name']} version {metadata['resourceVersion']}"

    def is_void(self) -> bool:
        return self.closed or not self.queue

    def ways(self) -> int:
        return 5 if self._is_superseded() else 4

    def way(self, number: int) -> str:
        return ("", SOON, f"stalls for {LATE_S:.0f} s", "breaks", "is skipped for a later one")[number]

    def happen(self, way: int) -> None:
        self._moving = False
        if way in (1, 2):
            self._moving = True
            self.world.put_off(self, SOON_S if way == 1 else LATE_S)
            return
        if way == 3:
            self.break_off()
        else:
            kind, found = self.queue.popleft()
            if way == 0:
                self.show(kind, found)
        self._move()

    def _listed(self) -> list[tuple[str, Json]]:
        return [("ADDED", found) for found in self.world.api.objects[self.kind].values() if self.selector(found)]

    def _hear(self, change: Change) -> None:
        if not self.world.api.is_down:
            self._take(change)

    def _take(self, change: Change) -> None:
        if change.kind is self.kind and change.version > self._after:
            event = watch_event(change, self.selector)
            if event is not None:
                self.queue.append(event)
                self._move()

    def _move(self) -> None:
        if self.queue and not self._moving and not self.closed:
            self._moving = True
            self.world.pend(self)

    def _is_superseded(self) -> bool:
        """Return whether a later event of the same object is there: then a watcher may leave this one out."""
        uid = self.queue[0][1]["metadata"]["uid"]
        return any(found["metadata"]["uid"] == uid for _, found in list(self.queue)[1:])


class KopfWatch(Watch):
    """A watch of Kopf, which begins anew when it breaks, and never learns what is gone by then."""

    __slots__ = ("_process", "_taker")

    def __init__(
        self,
        world: "World",
        process: "OperatorProcess",
        kind: Kind,
        selector: Selector,
        taker: Callable[[Json, bool], None],
    ) -> None:
        super().__init__(world, process.name, kind, selector)
        self._process = process
        self._taker = taker

    def show(self, kind: str, found: Json) -> None:
        if self.kind is Kind.NODE:
            self._process.view.show(found)
        self._process.loop.call(self._taker, found, kind == "DELETED")

    def break_off(self) -> None:
        """Begin anew: of pods with what happens from now on.

        Of others with what the API server's cache has, which may be behind, and all since: more than Kopf does by now.
        """
        self.queue.clear()
        self._process.operator.lists.again.set()
        if self.kind is Kind.POD:
            return
        objects, version = self.world.api.as_of(self.kind, self.world.scenario.behind)
        self.queue.extend(("ADDED", found) for found in objects.values() if self.selector(found))
        for change in self.world.api.history:
            if change.version > version:
                self._take(change)


class PlainWatch(Watch):
    """A watch of the operator's own, as lines of JSON."""

    __slots__ = ("_error", "_lines", "_process", "_waiter")

    def __init__(self, world: "World", process: "OperatorProcess", kind: Kind, selector: Selector) -> None:
        super().__init__(world, process.name, kind, selector)
        self._process = process
        self._lines: deque[bytes] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def ways(self) -> int:
        return 4 if self.kind is Kind.CARD else super().ways()

    def __aiter__(self) -> "PlainWatch":
        return self

    async def __anext__(self) -> bytes:
        while not self._lines:
            if self._error:
                raise self._error
            self._waiter = self._process.loop.create_future()
            await self._waiter
        return self._lines.popleft()

    def show(self, kind: str, found: Json) -> None:
        self._lines.append(orjson.dumps({"type": kind, "object": found}))
        self._wake()

    def break_off(self) -> None:
        self._error = aiohttp.ClientPayloadError("the watch breaks")
        self.queue.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
