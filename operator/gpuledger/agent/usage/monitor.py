"""Runtime priority: decides every few seconds which containers pause and which go on.

HAMi-core waits before a kernel as long as its region says so, and nothing in it ends that. So every end of the monitor
has to end the pauses: it resumes all when it stops or is switched off, and one that begins decides anew at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.usage.regions import RegionLook, RegionPlace, Regions, region_place
from gpuledger.formats.runtime.cdi import Grant

logger = logging.getLogger(__name__)

MARGIN_S = 1.0
"""A kernel counts for one interval and this long: HAMi-core notes the second, and at most once in each."""

HANGS_S = 30.0
"""A pass that takes longer has met a disk that hangs; what the regions said before counts no longer."""

EXCESS_INTERVAL_S = 1.0
"""How long a container can write more into its file than a region has, before that is taken back."""

STOP_PATIENCE_S = 2.0
"""How long a stop waits until all are resumed: less than the parent gives the process."""

Result = TypeVar("Result")


class Monitor:
    """Looks at the regions of this node's containers. While there are none, it opens nothing and waits."""

    def __init__(
        self, grants: Callable[[], Iterable[Grant]], interval_s: float, regions: Regions | None = None
    ) -> None:
        """Make one; `interval_s` is 0 for one that only resumes what an earlier one has paused."""
        self._grants, self._interval_s = grants, interval_s
        self.regions = regions or Regions(interval_s + MARGIN_S)
        self.looks: dict[str, RegionLook] = {}  # name of a grant -> its region, as of the last pass
        self._changed = asyncio.Event()
        self._known: dict[str, tuple[Grant, RegionPlace | None]] = {}  # name of a grant -> what was read of it

    def wake(self) -> None:
        """Observe that there are other grants."""
        self._changed.set()

    async def run(self) -> None:
        """Look until cancelled, and have nothing pause then."""
        try:
            while self._interval_s:
                places = self.places()
                if places:
                    await self._pass(places)
                    await asyncio.sleep(self._interval_s)
                else:
                    self.looks = {}
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self.looks = {}
            await self._release()

    async def keep_small(self) -> None:
        """Take back what containers' files have of the node's disk beyond a region, again and again until cancelled."""
        while True:
            await asyncio.sleep(EXCESS_INTERVAL_S)
            if places := self.places():
                await _in_thread(partial(self.regions.cut_off_excess, places))

    def places(self) -> list[RegionPlace]:
        """Return where the regions of this node's containers are."""
        before, self._known = self._known, {}
        for grant in self._grants():
            known = before.get(grant.name)
            self._known[grant.name] = known if known and known[0] is grant else (grant, region_place(grant))
        return [place for _, place in self._known.values() if place is not None]

    async def _pass(self, places: list[RegionPlace]) -> None:
        looking = _in_thread(lambda: self.regions.look(places))
        await asyncio.wait([looking], timeout=HANGS_S)
        if not looking.done():
            logger.error("the disk with the shared regions of HAMi-core hangs: nobody is paused or resumed")
            self.looks = {}
        self.looks = await looking

    async def _release(self) -> None:
        places = self.places()
        if not places:
            return
        releasing = _in_thread(lambda: self.regions.release(places, STOP_PATIENCE_S))
        await asyncio.wait([releasing], timeout=STOP_PATIENCE_S)
        if releasing.done() and releasing.result():
            logger.info("%d paused containers go on: nobody looks after their priorities now", releasing.result())


async def resume_all(cdi_directory: Path) -> None:
    """Resume what an agent that was killed has left paused: what this one needs to begin may take its time to come."""
    grants = GrantFiles(cdi_directory)
    try:
        grants.load()
    except OSError as error:
        logger.warning("paused containers can't be looked for: %s", error)
        return
    await Monitor(grants.all, interval_s=0).run()


def _in_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Return the result of work in a thread that nothing waits for: a process that ends does not, either."""
    result: Future[Result] = Future()
    result.set_running_or_notify_cancel()  # from here on, it can't be cancelled

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            result.set_exception(error)

    threading.Thread(target=do, name="regions", daemon=True).start()
    return asyncio.wrap_future(result)
