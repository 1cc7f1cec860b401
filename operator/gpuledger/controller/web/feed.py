"""The data that the page gets: every node encoded once after it has changed, and only while a page is open.

The event loop has kube-scheduler to answer, too. So all that grows with the cluster is done in slices of a few
milliseconds, and a client that reads slowly gets one message with everything that has changed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

import orjson

from gpuledger.controller.web.source import LedgerSource
from gpuledger.model.clock import BoundedMap

SLICE_S = 0.002
"""How long the event loop is kept at a stretch."""

INTERVAL_S = 0.5
"""How often it is looked what has changed: two messages a second at most."""

TIMER_S = 0.01
"""How much too early a timer may ring."""

FAULT_PAUSE_S = 5.0
"""After an unexpected error: the page must not end the operator, nor fill its log."""

KEPT_S = 60.0
"""How long encoded nodes stay after the last look: some 5 kB for eight cards."""

GONE_KNOWN = 1_000
"""Nodes that are gone, kept for clients that are behind; a client further behind gets everything."""

CHUNK_BYTES = 64 * 1024


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedChange:
    """What a client lacks. `nodes` and `waiting` are names and encoded JSON as they were when it was asked."""

    edition: int
    full: bool
    """Everything: what the client knows beside it is no longer so."""
    nodes: tuple[str, ...]
    gone: tuple[str, ...]
    waiting: bytes | None
    """None: as before."""


class Feed:
    """The encoded cluster, with an edition that grows by one whenever something in it has changed.

    Editions begin with the time, in microseconds: those of an earlier process, or of another replica, are unknown.
    """

    def __init__(self, source: LedgerSource, first_edition: int | None = None) -> None:
        self._source = source
        self._first = time.time_ns() // 1000 if first_edition is None else first_edition
        self.edition = self._first
        self._seen = -1  # edition of the source
        self._nodes: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        """Node name -> edition of its last change and JSON, the latest last."""
        self._gone: BoundedMap[str, int] = BoundedMap(GONE_KNOWN)  # node name -> edition
        self._forgotten = self._first  # clients behind this edition may have missed that a node is gone
        self._waiting, self._waiting_edition = b"[]", self._first
        self._elsewhere = source.active_elsewhere()
        self._refreshing = asyncio.Lock()
        self._refreshed_s = float("-inf")
        self._changed = asyncio.Event()  # replaced by a new one with each edition
        self._watchers = 0
        self._ticker: asyncio.Task[None] | None = None
        self._dropping: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()

    @property
    def watchers(self) -> int:
        """How many follow the changes now."""
        return self._watchers

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Keep the feed up to date as long as this context lasts."""
        self._watchers += 1
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._ticker is not None:
                self._ticker.cancel()
                self._ticker = None
            self._drop_later()

    async def refresh(self) -> None:
        """Encode what has changed, unless that was just done: what is known is half a second old, then."""
        async with self._refreshing:
            if _now_s() - self._refreshed_s < INTERVAL_S:
                return
            edition, seen, pace = self.edition + 1, self._source.edition, Pace()
            names = [] if seen == self._seen else list(self._source.touched_since(self._seen))
            changed = False
            try:
                for name in names:
                    changed |= self._encode(name, edition)
                    await pace.keep()
                self._seen = seen
                elsewhere = self._source.active_elsewhere()
                changed |= elsewhere != self._elsewhere
                self._elsewhere = elsewhere
                changed |= await self._encode_waiting(edition, pace)
                self._refreshed_s = _now_s()
            finally:  # what is encoded by then is news, even if the last client leaves in the middle of it
                if changed:
                    self.edition = edition
                    self._changed.set()
                    self._changed = asyncio.Event()
                self._drop_later()

    def since(self, edition: int | None) -> FeedChange:
        """Return what a client lacks that has seen an edition; everything, if it is none of ours."""
        if edition is None or not self._forgotten <= edition <= self.edition or edition == self._first:
            return FeedChange(self.edition, True, tuple(self._nodes), (), self._waiting)
        nodes = tuple(name for name, (changed, _) in _newer(reversed(self._nodes.items()), edition))
        gone = tuple(name for name, gone_since in self._gone.items() if gone_since > edition)
        return FeedChange(self.edition, False, nodes, gone, self._waiting if self._waiting_edition > edition else None)

    async def next(self, edition: int, timeout_s: float) -> bool:
        """Wait until there is a later edition; return False if there is none for so long, or no more will come."""
        changed = self._changed
        if self.edition == edition and not self.closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
        return self.edition != edition and not self.closed.is_set()

    def chunks(self, change: FeedChange) -> Iterator[bytes]:
        """Yield the JSON of a change piece by piece, each node as it is when its turn comes.

        A node that is gone by then is left out, and named as gone by the next change.
        """
        yield b'{"edition":%d,"full":%s,"gone":%s,"activeElsewhere":%s,"waiting":%s,"nodes":[' % (
            change.edition,
            b"true" if change.full else b"false",
            orjson.dumps(change.gone),
            orjson.dumps(self._elsewhere),
            change.waiting or b"null",
        )
        parts, size, first = [], 0, True
        for name in change.nodes:
            known = self._nodes.get(name)
            if known is None:
                continue
            if not first:
                parts.append(b",")
            first = False
            parts.append(known[1])
            size += len(known[1])
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        yield b"".join([*parts, b"]}"])

    def close(self) -> None:
        """Let everybody who waits for a change go."""
        self.closed.set()
        self._changed.set()
        if self._dropping is not None:
            self._dropping.cancel()

    async def _tick(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:
                logger.exception("the page's data can't be updated")
                await asyncio.sleep(FAULT_PAUSE_S)
            await asyncio.sleep(INTERVAL_S + TIMER_S)

    def _encode(self, name: str, edition: int) -> bool:
        report = self._source.node(name)
        known = self._nodes.get(name)
        if report is None:
            if known is None:
                return False
            del self._nodes[name]
            forgotten = self._gone.note(name, edition)
            if forgotten is not None:
                self._forgotten = forgotten
            return True
        encoded = orjson.dumps(report.json())
        if known is not None and known[1] == encoded:
            return False
        self._nodes[name] = (edition, encoded)
        self._nodes.move_to_end(name)
        self._gone.drop(name)
        return True

    async def _encode_waiting(self, edition: int, pace: Pace) -> bool:
        parts = []
        for pod in self._source.waiting():
            parts.append(orjson.dumps(pod))
            await pace.keep()
        encoded = b"[" + b",".join(parts) + b"]"
        if encoded == self._waiting:
            return False
        self._waiting, self._waiting_edition = encoded, edition
        return True

    def _drop_later(self) -> None:
        """Forget everything when no page was open for a while; a client that comes back then gets everything."""
        if self._dropping is not None:
            self._dropping.cancel()
        if not self.closed.is_set():
            self._dropping = asyncio.get_running_loop().call_later(KEPT_S, self._drop)

    def _drop(self) -> None:
        if self._watchers or self._refreshing.locked():
            self._drop_later()
            return
        self._dropping = None
        self.edition += 1
        self._forgotten = self._first = self.edition
        self._nodes.clear()
        self._gone = BoundedMap(GONE_KNOWN)
        self._waiting, self._waiting_edition = b"[]", self.edition
        self._seen, self._refreshed_s = -1, float("-inf")


class Pace:
    """Lets others have the event loop whenever a slice is over."""

    def __init__(self) -> None:
        self._end_s = time.perf_counter() + SLICE_S

    async def keep(self) -> None:
        """Be called after each step of the work; go on at once, or when others have had their turn."""
        if time.perf_counter() >= self._end_s:
            await asyncio.sleep(0)
            self._end_s = time.perf_counter() + SLICE_S


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _newer(nodes: Iterable[tuple[str, tuple[int, bytes]]], edition: int) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for name, known in nodes:
        if known[0] <= edition:
            return
        yield name, known
