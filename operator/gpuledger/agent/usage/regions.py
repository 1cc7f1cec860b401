"""One pass over the regions of all containers: read, decide, write. It runs in a thread of its own, as disks can hang.

The work of a pass is bounded by the number of containers, whatever they write: of the processes that they list, a fixed
number is read, and nobody's claim takes another one's part of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuledger.agent.usage.granted import RegionPlace
from gpuledger.agent.usage.priorities import Controls, Observed, decide
from gpuledger.agent.usage.region_files import Effort, RegionFile, RegionSkipped, cut_off_excess, open_region
from gpuledger.formats.runtime.shared_region import IDLE, LIMITER_ON, SharedRegion

logger = logging.getLogger(__name__)

MOST_PROCESSES = 1024
"""How many processes of all containers together are read in one pass."""


def is_on_node(pid: int) -> bool:
    """Tell whether a process is there, by its number on the node."""
    return os.path.exists(f"/proc/{pid}")


@dataclass(frozen=True, slots=True)
class RegionLook:
    """A region as it was last seen, with what was written to it since."""

    place: RegionPlace
    identity: tuple[int, int]
    """Of the file: device and inode."""
    region: SharedRegion
    """Without processes that have ended, where that can be seen."""

    @property
    def paused(self) -> bool:
        """Whether the container's programs wait before they launch a kernel."""
        return self.region.recent_kernel < IDLE


class Regions:
    """The regions of this node."""

    def __init__(
        self, recent_s: float, unix_s: Callable[[], float] = time.time, alive: Callable[[int], bool] = is_on_node
    ) -> None:
        """Make one; `recent_s` is for how long a kernel counts after its launch."""
        self._recent_s, self._unix_s, self._alive = recent_s, unix_s, alive
        self.effort = Effort()
        self.skipped: Counter[str] = Counter()  # reason -> how often
        self._told: set[tuple[str, str]] = set()  # name of a grant, reason: what is in the log already
        self._listed: dict[str, int] = {}  # name of a grant -> processes that its region listed last
        self._seen: set[tuple[str, int]] = set()  # name of a grant, process of its last list that was there once
        self._turn = threading.Lock()
        self._closed = False

    def look(self, places: Sequence[RegionPlace]) -> dict[str, RegionLook]:
        """Read all regions, have each pause or go on, and return them: name of the grant -> look."""
        with self._turn:
            self._forget({place.name for place in places})
            before, self._seen = self._seen, set()
            looks = [self._without_ended(look, before) for look in self._read_all(places)]
            wanted = decide(map(_observed, looks), self._unix_s(), self._recent_s)
            return {
                look.place.name: self._have(look, controls)
                for look, controls in zip(looks, wanted, strict=True)
                if not self._closed
            }

    def release(self, places: Sequence[RegionPlace], patience_s: float) -> int:
        """Have nothing pause, and every limit be enforced, as without a monitor; return how many paused.

        After it, nothing is written any more. A pass that is under way and hangs is not waited for.
        """
        self._closed = True
        if not self._turn.acquire(timeout=patience_s):
            logger.error("paused containers can't be resumed: the disk with their shared regions hangs")
            return 0
        try:
            looks = self._read_all(places)
            for look in looks:
                self._have(look, Controls(max(look.region.recent_kernel, IDLE), LIMITER_ON))
            return sum(look.paused for look in looks)
        finally:
            self._turn.release()

    def cut_off_excess(self, places: Sequence[RegionPlace]) -> None:
        """Take back what containers have put into their files beyond a region: the node's disk is everybody's."""
        for place in places:
            try:
                taken_bytes = cut_off_excess(place, Effort())
            except (RegionSkipped, OSError):  # whoever reads it says so
                continue
            if taken_bytes and (place.name, "excess") not in self._told:
                self._told.add((place.name, "excess"))
                logger.warning("%s: HAMi-core's file took %d MiB, and was cut off", place.owner, taken_bytes >> 20)

    def _forget(self, names: set[str]) -> None:
        """Forget all containers but these."""
        self._told = {each for each in self._told if each[0] in names}
        self._listed = {name: number for name, number in self._listed.items() if name in names}

    def _read_all(self, places: Sequence[RegionPlace]) -> list[RegionLook]:
        """Return all regions that can be used. Those that listed few processes come first: all of theirs are read."""
        left, looks = MOST_PROCESSES, []
        in_order = sorted(places, key=lambda place: self._listed.get(place.name, 0))
        for done, place in enumerate(in_order):
            look = self._read(place, left // (len(in_order) - done))
            if look is not None:
                self._listed[place.name] = look.region.process_count
                left -= len(look.region.processes)
                looks.append(look)
        return looks

    def _read(self, place: RegionPlace, most_processes: int) -> RegionLook | None:
        def read(file: RegionFile) -> RegionLook | None:
            region = file.read(most_processes)
            return None if region is None else RegionLook(place, file.identity, region)

        return self._with_file(place, read)

    def _have(self, look: RegionLook, controls: Controls) -> RegionLook:
        """Write what differs; return what the region has then."""
        before = look.region
        if (before.recent_kernel, before.utilization_switch) == (controls.recent_kernel, controls.utilization_switch):
            return look

        def write(file: RegionFile) -> RegionLook:
            if file.identity != look.identity:  # the container has put another one there since it was read
                return look
            file.write(before, controls)
            written = replace(
                before, recent_kernel=controls.recent_kernel, utilization_switch=controls.utilization_switch
            )
            return replace(look, region=written)

        after = self._with_file(look.place, write) or look
        if after.paused != look.paused:
            logger.debug(
                "%s %s", look.place.owner, "pauses: a more important one computes" if after.paused else "goes on"
            )
        return after

    def _without_ended(self, look: RegionLook, seen: set[tuple[str, int]]) -> RegionLook:
        """Leave out processes that were killed: the library keeps them until the next one starts.

        One that was never seen stays: its container may know processes by other numbers than the node.
        """
        name, processes = look.place.name, []
        for process in look.region.processes:
            key, lives = (name, process.host_pid), self._alive(process.host_pid)
            if lives or key in seen:
                self._seen.add(key)
            if lives or key not in seen:
                processes.append(process)
        if len(processes) == len(look.region.processes):
            return look
        return replace(look, region=replace(look.region, processes=tuple(processes)))

    def _with_file(self, place: RegionPlace, use: Callable[[RegionFile], RegionLook | None]) -> RegionLook | None:
        """Return what comes of a region; None for one that is not there, and for one that is skipped."""
        try:
            with open_region(place, self.effort) as file:
                return use(file)
        except FileNotFoundError:
            return None  # no program has called CUDA yet, or its container is gone
        except RegionSkipped as error:
            self._skip(place, error.reason, str(error))
        except OSError as error:
            self._skip(place, "unreadable", error.strerror or str(error))
        return None

    def _skip(self, place: RegionPlace, reason: str, text: str) -> None:
        self.skipped[reason] += 1
        if (place.name, reason) not in self._told:
            self._told.add((place.name, reason))
            logger.warning("the shared region of %s is skipped: %s", place.owner, text)


def _observed(look: RegionLook) -> Observed:
    region, place = look.region, look.place
    return Observed(
        uuids=place.uuids,
        priority=place.priority,
        recent_kernel=region.recent_kernel,
        utilization_switch=region.utilization_switch,
        last_kernel_s=region.last_kernel_s,
        lives=bool(region.processes),
    )
