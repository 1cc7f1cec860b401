"""Level-based work: a key is marked as changed, and one task brings it up to date, however often it was marked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from gpuledger.model.clock import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0


class KeyedWorker:
    """Runs `work(key)` for marked keys: never twice at once for a key, again if it was marked meanwhile.

    Work that raises is repeated after a pause that doubles. At most `parallel` keys at once. An inactive replica does
    nothing, and leaves it to who is; marks are dropped then. With `group_of`, only so many keys of one group wait for
    their turn beside those of others: who has marked a thousand does not keep the others waiting.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        parallel: int,
        is_active: Callable[[], bool] = lambda: True,
        group_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._work = work
        self._is_active = is_active
        self._marked: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group_of = group_of
        self._parallel = parallel
        self._places = asyncio.Semaphore(parallel)
        self._group_places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def mark(self, key: str) -> None:
        """Have the key's work done, soon."""
        if not self._is_active():
            return
        self._marked.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"bring {key} up to date")

    async def idle(self) -> None:
        """Wait until there is nothing to do."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def stop(self) -> None:
        """Drop what is not done."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _places_of(self, group: str) -> asyncio.Semaphore:
        places = self._group_places.get(group)
        if places is None:
            places = self._group_places[group] = asyncio.Semaphore(self._parallel)
        return places

    async def _run(self, key: str) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        try:
            while key in self._marked:
                self._marked.discard(key)
                try:
                    async with self._places_of(self._group_of(key)), self._places:
                        if self._is_active():
                            await self._work(key)
                    backoff.reset()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                    pause_s = backoff.next_s()
                    logger.warning("%s: retrying in %.1f s after %r", key, pause_s, error)
                    self._marked.add(key)
                    await asyncio.sleep(pause_s)
        finally:
            del self._tasks[key]
