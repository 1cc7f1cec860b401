"""Reads and writes the shared regions of all containers: one pass over them, in a thread of its own, as disks can hang.

The work of a pass is bounded by the number of containers, whatever they write: of the processes that they list, a fixed
number is read, and no container's claim takes another one's part of it. A container's grant (its parts of the cards,
its isolation, its region) is the agent's own record, which no container can change.

A container can do what it likes in its directory: put a device, a pipe or a link there, truncate the file while it is
read, or have another one in its place. So a name is first looked at without opening what it stands for, nothing is
mapped into memory, and each read and write is of a few numbers at places that the file's layout names.

Priorities decide which containers pause while others compute, and whose core limits are enforced. Source: HAMi's
vGPUmonitor, cmd/vGPUmonitor/feedback.go. A container that launches kernels stops those of lower priority on its cards,
and a core limit is only enforced where another container of at least its priority computes. Two differences:

- HAMi-core from 2026-04 on sets `recent_kernel` only where it limits cores, so the time of the last kernel counts, too.
- A container whose processes have all ended is idle at once.

The containers' own records decide only whether they are active. Priorities and cards are those of the grants.

The amounts that a container uses come from the container's region where there is one that can be read, else from the
driver's processes.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from gpuledger.formats.runtime.cdi import Grant
from gpuledger.formats.runtime.shared_region import (
    ACTIVE,
    IDLE,
    LAYOUTS,
    LIMITER_OFF,
    LIMITER_ON,
    PAUSED,
    START_BYTES,
    RegionLayout,
    SharedRegion,
    layout_of,
    packed,
    read_shared_region,
)
from gpuledger.model.errors import BadInput


@dataclass(frozen=True, slots=True)
class Observed:
    """One container, as its grant and its region say."""

    uuids: tuple[str, ...]
    priority: int
    """Lower is more important."""
    recent_kernel: int
    utilization_switch: int
    last_kernel_s: int | None
    """Unix time, by the container's word; None where it does not say."""
    lives: bool
    """Whether it has a process that can launch kernels."""


@dataclass(frozen=True, slots=True)
class Controls:
    """The wanted values of a region."""

    recent_kernel: int
    utilization_switch: int


ALONE = Controls(IDLE, LIMITER_ON)
"""Without a monitor nothing pauses, and limits are enforced: what HAMi-core itself begins with, but for `IDLE`."""


def decide(containers: Iterable[Observed], now_s: float, recent_s: float) -> list[Controls]:
    """Return the wanted values of each container's region, in the same order.

    `recent_s` is for how long a kernel counts after its launch. Each call decrements `recent_kernel`, so it says how
    many calls ago there was one.
    """
    containers = list(containers)
    active: dict[
        str, list[tuple[int, int]]
    ] = {}  # card -> priority, and place in the list, of those that compute there
    for place, each in enumerate(containers):
        if _is_active(each, now_s, recent_s):
            for uuid in each.uuids:
                active.setdefault(uuid, []).append((each.priority, place))
    return [
        _controls(each, [priority for uuid in each.uuids for priority, other in active.get(uuid, ()) if other != place])
        for place, each in enumerate(containers)
    ]


def _is_active(each: Observed, now_s: float, recent_s: float) -> bool:
    if not each.lives or each.recent_kernel < IDLE:  # one that pauses launches nothing
        return False
    # A time to come is none: the clock was set back, or the container makes it up.
    launched = each.last_kernel_s is not None and -1 < now_s - each.last_kernel_s <= recent_s
    return each.recent_kernel > 1 or launched


def _controls(each: Observed, others: list[int]) -> Controls:
    """Return the wanted values of one region; `others` are the priorities of those that compute on its cards."""
    important = min(others, default=each.priority + 1)
    recent_kernel = PAUSED if important < each.priority else max(min(each.recent_kernel, ACTIVE) - 1, IDLE)
    return Controls(recent_kernel, LIMITER_ON if important <= each.priority else LIMITER_OFF)


LOW = 1
"""The priority of a container whose grant names none, as HAMi-core itself has it."""

MIG_PREFIX = "MIG-"

_MIB = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1, "g": 1024}
"""Endings of an amount, as HAMi-core and MPS read them, in MiB."""


@dataclass(frozen=True, slots=True)
class GrantedPart:
    """A container's part of one card."""

    uuid: str
    position: int
    """The container's own number of the card."""
    memory_mib: int
    cores: int
    """Percent; 0: none were promised."""
    memory_limit_mib: int | None
    """The enforced limit; None: none is enforced."""


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """Where a container's shared region is, and whose it is."""

    name: str
    """Of the grant: no two are the same."""
    directory: str
    """On the node; the container can write to it."""
    file: str
    uuids: tuple[str, ...]
    priority: int
    """Lower is more important."""
    owner: str
    """For the log."""


def granted_parts(grant: Grant) -> list[GrantedPart]:
    """Return the parts that a grant gives, in the order in which the container sees its cards."""
    env = _environment(grant)
    memory, cores = (env.get(name, "").split(",") for name in ("GPULEDGER_MEMORY_MIB", "GPULEDGER_CORES"))
    pinned = dict(
        each.split("=", 1) for each in env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",") if "=" in each
    )
    by_driver = {limit.uuid: limit.most_mib for limit in grant.limits}
    parts = []
    for position, uuid in enumerate(grant.uuids):
        memory_mib = _number(memory, position)
        if uuid.startswith(MIG_PREFIX):
            limit: int | None = memory_mib
        elif uuid in by_driver:
            limit = by_driver[uuid]
        else:
            limit = _amount_mib(env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{position}") or pinned.get(str(position), ""))
        parts.append(GrantedPart(uuid, position, memory_mib, _number(cores, position), limit))
    return parts


def region_place(grant: Grant) -> RegionPlace | None:
    """Return where HAMi-core keeps what this container uses; None for a container that has no HAMi-core."""
    env = _environment(grant)
    path = _on_node(grant, PurePosixPath(env.get("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")))
    if path is None:
        return None
    priority = env.get("CUDA_TASK_PRIORITY", "")
    return RegionPlace(
        name=grant.name,
        directory=str(path.parent),
        file=path.name,
        uuids=grant.uuids,
        priority=int(priority) if priority.isdecimal() else LOW,
        owner=f"pod {grant.namespace}/{grant.pod}, container {grant.container}",
    )


def _on_node(grant: Grant, path: PurePosixPath) -> PurePosixPath | None:
    """Return where a file of the container is on the node, if it is mounted, or its directory; None if neither is."""
    mounts = {PurePosixPath(mount["containerPath"]): mount["hostPath"] for mount in grant.edits.get("mounts") or ()}
    for mounted in (path, path.parent) if path.name else ():
        if mounted in mounts:
            return PurePosixPath(mounts[mounted]) / path.relative_to(mounted)
    return None


def _environment(grant: Grant) -> Mapping[str, str]:
    pairs = (str(each).partition("=") for each in grant.edits.get("env") or ())
    return {name: value for name, _, value in pairs}


def _number(values: list[str], position: int) -> int:
    return int(values[position]) if position < len(values) and values[position].isdecimal() else 0


def _amount_mib(text: str) -> int | None:
    """Return 3000 for `3000m`; None for what is no amount, and for 0, which means no limit."""
    number, ending = text.rstrip("kmgKMG"), text[len(text.rstrip("kmgKMG")) :].lower()
    if not number.isdecimal() or ending not in _MIB:
        return None
    return int(int(number) * _MIB[ending]) or None


SIZES = frozenset(size for layout in LAYOUTS for size in (layout.size_bytes, layout.size_bytes + 1))

MOST_BYTES = 4 * 2**20
"""Of a container's file: twice what the largest region of a known version has, so that a later one's is left whole."""

REASONS = ("unreadable", "not-a-file", "size", "version", "content")
"""Why a region is skipped, as metrics have it."""


class RegionSkipped(Exception):  # noqa: N818 - reads as what it is
    """A region is of no use; `reason` is one of REASONS, the text a sentence about it."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class Effort:
    """Counts of the work with regions."""

    opened: int = 0
    bytes_read: int = 0
    written: int = 0


class RegionFile:
    """One open region."""

    def __init__(self, descriptor: int, effort: Effort) -> None:
        self._descriptor, self._effort = descriptor, effort
        found = os.fstat(descriptor)
        self.identity = found.st_dev, found.st_ino
        self._size_bytes = found.st_size

    def read(self, most_processes: int) -> SharedRegion | None:
        """Return the region; None if no program has set it up yet. Raises RegionSkipped, OSError."""
        if not any(self._read(0, 4)):
            return None
        self._layout()
        try:
            return read_shared_region(self._size_bytes, self._read, most_processes)
        except BadInput as error:
            raise RegionSkipped("content", str(error)) from error

    def write(self, before: SharedRegion, controls: Controls) -> None:
        """Have these controls in place of those that it had. Raises RegionSkipped, OSError.

        It writes nothing to a file that has become another one meanwhile.
        """
        layout = self._layout()
        # First the switch, without which a pause has no effect.
        if controls.utilization_switch != before.utilization_switch:
            os.pwrite(self._descriptor, packed(controls.utilization_switch), layout.utilization_switch_at)
        if controls.recent_kernel != before.recent_kernel:
            os.pwrite(self._descriptor, packed(controls.recent_kernel), layout.recent_kernel_at)
        self._effort.written += 1

    def cut_off(self) -> None:
        """Give back to the disk what is too much, also what is reserved behind the file's end. Raises OSError."""
        size_bytes = min(os.fstat(self._descriptor).st_size, MOST_BYTES)
        os.ftruncate(self._descriptor, size_bytes + 1)  # not every file system looks where the size stays as it is
        os.ftruncate(self._descriptor, size_bytes)

    def _layout(self) -> RegionLayout:
        size_bytes = os.fstat(self._descriptor).st_size
        if size_bytes != self._size_bytes or size_bytes not in SIZES:
            raise RegionSkipped("size", f"a file of {size_bytes} bytes is no shared region")
        try:
            return layout_of(size_bytes, self._read(0, START_BYTES).ljust(START_BYTES, b"\0"))
        except BadInput as error:
            raise RegionSkipped("version", str(error)) from error

    def _read(self, offset: int, length: int) -> bytes:
        found = os.pread(self._descriptor, length, offset)
        self._effort.bytes_read += len(found)
        return found


@contextmanager
def open_region(place: RegionPlace, effort: Effort) -> Iterator[RegionFile]:
    """Open a container's region for reading and writing. Raises RegionSkipped, FileNotFoundError, other OSError."""
    directory = os.open(place.directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        name = os.open(place.file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        found = os.fstat(name)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise RegionSkipped("not-a-file", "it is not a plain file with one name")
        # What was looked at is what is opened, whatever has the name now. Another's lease on it is not waited for.
        descriptor = os.open(f"/proc/self/fd/{name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(name)
    try:
        effort.opened += 1
        yield RegionFile(descriptor, effort)
    finally:
        os.close(descriptor)


def cut_off_excess(place: RegionPlace, effort: Effort) -> int:
    """Cut a container's file off where it is far too large; return how much of the disk it took then, or 0.

    Raises RegionSkipped, OSError.
    """
    found = os.stat(os.path.join(place.directory, place.file), follow_symlinks=False)
    taken_bytes = found.st_blocks * 512
    if found.st_size <= MOST_BYTES and taken_bytes <= 2 * MOST_BYTES:  # file systems reserve some beyond the end
        return 0
    with open_region(place, effort) as file:
        file.cut_off()
    return taken_bytes


logger = logging.getLogger(__name__)

MOST_PROCESSES = 1024
"""How many processes of all containers together are read in one pass."""


def is_on_node(pid: int) -> bool:
    """Return whether a process is there, by its number on the node."""
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
        """Truncate files that containers have grown beyond a region: the node's disk is shared."""
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
        """Return the result of `use` on a region; None for one that is not there, and for one that is skipped."""
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


MIB = 1 << 20

MOST_CLAIMED_BYTES = 1 << 50
"""A million GiB. No card has that much."""

REGION, NVML = "region", "nvml"
"""Where amounts come from."""

ContainerKey = tuple[str, str, str]
"""A card's UUID, a pod's, and the name of a container."""


@dataclass(frozen=True, slots=True)
class ProcessesUse:
    """The use of one card by the processes of one container, from the driver. None where it does not tell."""

    memory_mib: int | None
    cores_percent: int | None


NOTHING = ProcessesUse(0, 0)


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container and one card that it holds a part of. None where nothing tells."""

    grant: Grant
    part: GrantedPart
    memory_used_bytes: int | None
    cores_percent: int | None
    source: str
    """REGION or NVML."""
    last_kernel_s_ago: int | None = None
    paused: bool = False
    context_bytes: int = 0
    module_bytes: int = 0
    data_bytes: int = 0
    """Parts of the memory used, where a region tells; the rest is of other kinds."""


def container_uses(
    grants: Iterable[Grant],
    looks: Mapping[str, RegionLook],
    processes: Mapping[ContainerKey, ProcessesUse] | None,
    now_s: float,
) -> list[ContainerUse]:
    """Return one for each container and card, whether it is used or not.

    `looks` is name of the grant -> its region; `processes` is None while the driver does not answer.
    """
    found: dict[ContainerKey, ContainerUse] = {}
    for grant in grants:
        look = looks.get(grant.name)
        for part in granted_parts(grant):
            key = part.uuid, grant.pod_uid, grant.container
            if look is None and key in found:  # a container that asks by several names has several grants
                continue
            # What several pods use that share a claim is of each of them, and of no container of this name.
            told = processes if grant.of_one_pod else None
            use = _by_driver(grant, part, None if told is None else told.get(key, NOTHING))
            found[key] = use if look is None else _by_region(use, look.region, now_s)
    return list(found.values())


def _by_driver(grant: Grant, part: GrantedPart, use: ProcessesUse | None) -> ContainerUse:
    memory_mib, cores_percent = (None, None) if use is None else (use.memory_mib, use.cores_percent)
    return ContainerUse(grant, part, None if memory_mib is None else memory_mib * MIB, cores_percent, NVML)


def _by_region(use: ContainerUse, region: SharedRegion, now_s: float) -> ContainerUse:
    kernel_s = region.last_kernel_s
    use = replace(
        use,
        paused=region.recent_kernel < IDLE,
        last_kernel_s_ago=max(int(now_s - kernel_s), 0) if kernel_s else None,
    )
    place = next((place for place, device in enumerate(region.devices) if device.uuid == use.part.uuid), None)
    if place is None:  # no program has asked NVML for the card
        return use
    counted = [process.uses[place] for process in region.processes]
    # The library puts its own number to 0 for a moment, several times in a second.
    cores = max(sum(each.cores_percent for each in counted), use.cores_percent or 0)
    return replace(
        use,
        memory_used_bytes=_sum(each.total_bytes for each in counted),
        cores_percent=min(cores, 100),
        source=REGION,
        context_bytes=_sum(each.context_bytes for each in counted),
        module_bytes=_sum(each.module_bytes for each in counted),
        data_bytes=_sum(each.data_bytes for each in counted),
    )


def _sum(claims: Iterable[int]) -> int:
    """Return the sum of the processes' claims, capped: a claim can be any number."""
    return min(sum(claims), MOST_CLAIMED_BYTES)
