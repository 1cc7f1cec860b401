"""Has the driver hold each container to its share of its cards' memory, from before its first process to its last.

A hook asks when the container's control group exists, and the container waits for the answer. The hook's script and the
FIFOs by which its runs talk to the agent are in a directory that only root can open; what comes through is bounded, and
not trusted all the same.

A limit is written down before it is set: an agent that died in between finds it. It goes with its group; where the
group outlives the container's last process, the limit is removed, and so is a guarantee, which groups further up count
as well. Source for groups and their ends: cgroups(7), inotify(7), and the kernel's `cgroup-v2.rst`: a change of
`cgroup.events` shows as one of the file.

The shares that containers of a pod have by one claim are one amount, so the pod's own group is limited, too: to the sum
for its containers, each claim counted once. Pods have no such group in common, so they can't use one claim at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import stat
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gpuledger.agent.devices.source import MemoryLimit
from gpuledger.agent.grants.files import write_whole
from gpuledger.formats.runtime.cdi import Grant, claim_of_name, pod_group, pod_uid
from gpuledger.formats.runtime.limit_hook import (
    ANSWERS,
    HOOK,
    LONGEST_LINE,
    REQUESTS,
    SCRIPT,
    TIMEOUT_S,
    LimitRequest,
    answer_line,
    group_path,
    read_request,
)
from gpuledger.model.errors import BadInput, GpuledgerError

logger = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
"""Where NVML looks for them, too."""

EVENTS, PROCESSES = "cgroup.events", "cgroup.procs"

IN_MODIFY, IN_Q_OVERFLOW, IN_IGNORED = 0x2, 0x4000, 0x8000
_EVENT = struct.Struct("iIII")
_MOST_READ = 65536

VERSION_1 = "the node has control groups of version 1, for which the driver limits no memory"
ONLY_OWN = "the agent sees only its own control group: it needs the node's /sys/fs/cgroup (agent.limitsByDriver)"


class ControlGroups:
    """The groups below a directory. Nothing here waits."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._own: Path | None = None

    def why_no_limits(self) -> str:
        """Return why groups can't be limited here, whatever the driver can; empty: they can."""
        if not (self.root / "cgroup.controllers").is_file():
            return VERSION_1
        # In a cgroup namespace of its own, the agent's own group is the topmost; that of a node has no such file.
        if (self.root / EVENTS).is_file() and os.getpid() in _processes(self.root):
            return ONLY_OWN
        return ""

    def own(self) -> Path | None:
        """Return the directory of this process' own group; None where it can't be found."""
        if self._own is None or os.getpid() not in _processes(self._own):
            places = (Path(place) for place, _, _ in os.walk(self.root))
            self._own = next((place for place in places if os.getpid() in _processes(place)), None)
        return self._own

    def directory(self, group: str) -> Path:
        """Return the directory of the group that a hook has read. Raises BadInput for one that can't be right."""
        return self.root / group_path(group).removeprefix("/")

    def is_populated(self, directory: Path) -> bool | None:
        """Return whether a group, or one below, has processes; None: it is gone."""
        try:
            return "populated 1" in (directory / EVENTS).read_text()
        except OSError:
            return None

    def watch(self, on_change: Callable[[Path], None]) -> GroupWatch:
        """Return a watch that calls `on_change` in the event loop. Raises OSError."""
        return GroupWatch(on_change)


class GroupWatch:
    """Tells that a group may have got its first process, or lost its last one."""

    def __init__(self, on_change: Callable[[Path], None]) -> None:
        self._on_change = on_change
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._watched: dict[int, Path] = {}  # inotify's number -> directory of the group
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def add(self, directory: Path) -> None:
        """Report changes of a group from now on, until it is gone. Raises OSError."""
        path = os.fsencode(directory / EVENTS)
        self._watched[self._check(self._libc.inotify_add_watch(self._file, path, IN_MODIFY))] = directory

    def close(self) -> None:
        """Stop reporting."""
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)

    def _read(self) -> None:
        news, changed = os.read(self._file, _MOST_READ), set[Path]()
        while news:
            number, mask, _, length = _EVENT.unpack_from(news)
            news = news[_EVENT.size + length :]
            if mask & IN_Q_OVERFLOW:
                changed.update(self._watched.values())
            elif number in self._watched:
                changed.add(self._watched[number])
            if mask & IN_IGNORED:  # the group is gone
                self._watched.pop(number, None)
        for directory in sorted(changed):
            self._on_change(directory)

    def _check(self, answer: int) -> int:
        if answer < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return answer


def _processes(directory: Path) -> set[int]:
    try:
        return set(map(int, (directory / PROCESSES).read_text().split()))
    except OSError:  # gone, or of threads
        return set()


class HookPipes:
    """The directory, and the FIFO that is read while hooks may ask."""

    def __init__(self, directory: Path, take: Callable[[bytes], None]) -> None:
        """Make one; `take` is given each line that a hook has written, in the event loop."""
        self._directory, self._take = directory, take
        self._file = -1
        self._rest = b""  # of a line whose end has not come yet

    def was_used(self) -> bool:
        """Return whether this agent, or one before it, has let hooks ask here."""
        return (self._directory / REQUESTS).exists()

    def open(self) -> None:
        """Put everything in place, and read requests from now on: those that wait, too. Raises OSError."""
        if self._file >= 0:
            return
        (self._directory / ANSWERS).mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        write_whole(self._directory / SCRIPT, HOOK.encode())
        _make_fifo(self._directory / REQUESTS)
        # For writing, too: so it never ends, and a hook's line waits in it while no other hook has it open.
        self._file = os.open(self._directory / REQUESTS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def close(self) -> None:
        """Read no more requests."""
        if self._file >= 0:
            self.pause()
            os.close(self._file)
            self._file = -1

    def pause(self) -> None:
        """Leave requests where they are for a while."""
        asyncio.get_running_loop().remove_reader(self._file)

    def resume(self) -> None:
        """Read on."""
        if self._file >= 0:
            asyncio.get_running_loop().add_reader(self._file, self._read)

    def expect(self, name: str) -> None:
        """Let the hook of a grant wait for its answer. Raises OSError."""
        _make_fifo(self._directory / ANSWERS / name)

    def forget(self, name: str) -> None:
        """Expect a grant's hook no more. Raises OSError."""
        (self._directory / ANSWERS / name).unlink(missing_ok=True)

    def keep(self, names: Collection[str]) -> None:
        """Expect only the hooks of these grants. Raises OSError."""
        for file in (self._directory / ANSWERS).iterdir():
            if file.name not in names:
                file.unlink(missing_ok=True)

    def answer(self, name: str, pid: int, refusal: str) -> bool:
        """Let a hook's container start, or with a sentence, keep it from that. False: the hook has not waited."""
        try:
            file = os.open(self._directory / ANSWERS / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                logger.warning("%s can't be answered: %s", name, error)
            return False
        try:
            os.write(file, answer_line(pid, refusal))
        except OSError as error:  # nobody reads it, so it is full
            logger.warning("%s can't be answered: %s", name, error)
            return False
        finally:
            os.close(file)
        return True

    def _read(self) -> None:
        try:
            news = os.read(self._file, _MOST_READ)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + news).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""  # no hook's; what comes of it later is no request either
        for line in lines:
            self._take(line)


def _make_fifo(path: Path) -> None:
    try:
        if stat.S_ISFIFO(path.lstat().st_mode):
            return
        path.unlink()
    except FileNotFoundError:
        pass
    os.mkfifo(path, 0o600)


MOST_AT_ONCE = 256
"""Requests that are answered at the same time; the others wait in the FIFO, and their hooks with them."""

DRIVER_TIMEOUT_S = TIMEOUT_S - 2.0
"""So that the hook still waits when the driver does not answer, and can say so."""

LIMITED, RECORD_SUFFIX = "limited", ".json"
"""Directory with what was set: a file for each grant, which has its groups' directories -> its cards' UUIDs."""

SetLimits = Callable[[Iterable[MemoryLimit], float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Limited:
    """A control group that has limits."""

    name: str
    """Of the grant."""
    uuids: tuple[str, ...]


class DriverLimits:
    """The limits of this node's containers. Does nothing while no container is to have any."""

    def __init__(
        self, directory: Path, grants: Callable[[], Iterable[Grant]], groups: ControlGroups, set_limits: SetLimits
    ) -> None:
        """Make one; `set_limits` has the driver set limits, within a time in seconds."""
        self.directory = directory
        self._grants, self._groups, self._set_limits = grants, groups, set_limits
        self._pipes = HookPipes(directory, self._take)
        self._limited: dict[Path, _Limited] = {}  # directory of a control group -> its limits
        self._watch: GroupWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clearing: set[Path] = set()

    def resume(self) -> None:
        """Go on where an earlier agent has left off, if there was one. To be called when the grants are known."""
        if not self._pipes.was_used():
            return
        try:
            self._load()
            self._open()
            self._pipes.keep({grant.name for grant in self._grants()})
        except OSError as error:  # tried again when a container starts
            logger.warning("limits that the driver keeps: %s", error)
        for directory in tuple(self._limited):
            self._watch_group(directory)
            self._observe(directory)

    def close(self) -> None:
        """Stop; limits stay as they are."""
        self._pipes.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for task in self._tasks:
            task.cancel()

    def expect(self, name: str) -> None:
        """Be ready for the start of a grant's container, before its runtime can know of it. Raises OSError."""
        self._open()
        self._pipes.expect(name)

    def forget(self, grant: Grant) -> None:
        """Record that a grant is over."""
        if not grant.limits:
            return
        try:
            self._pipes.forget(grant.name)
        except OSError as error:
            logger.warning("%s can't be removed yet: %s", grant.name, error)
        self.tidy()

    def tidy(self) -> None:
        """Remove the limits of groups whose last process has ended without our notice."""
        for directory in tuple(self._limited):
            self._observe(directory)

    def _open(self) -> None:
        (self.directory / LIMITED).mkdir(parents=True, exist_ok=True)
        self._pipes.open()
        if self._watch is None:
            try:
                self._watch = self._groups.watch(self._observe)
            except OSError as error:  # `tidy` looks all the same
                logger.info("control groups are not watched: %s", error)

    # A container starts.

    def _take(self, line: bytes) -> None:
        self._start(self._answer(line))
        if len(self._tasks) >= MOST_AT_ONCE:
            self._pipes.pause()

    async def _answer(self, line: bytes) -> None:
        try:
            request = read_request(line)
        except BadInput as error:
            logger.warning("%s", error)
            return
        refusal = ""
        try:
            await self._limit(request)
        except (GpuledgerError, OSError) as error:
            refusal = str(error)
            logger.warning("a container of grant %s must not start: %s", request.name, refusal)
        self._pipes.answer(request.name, request.pid, refusal)

    async def _limit(self, request: LimitRequest) -> None:
        """Set the limits that a hook asks for. Raises BadInput, LimitRefused, DriverGone, OSError."""
        grant = next((each for each in self._grants() if each.name == request.name), None)
        if grant is None:
            raise BadInput("the node agent has given the container no cards; the kubelet tries again")
        directory = self._groups.directory(request.group)
        if grant.of_one_pod and pod_uid(request.group) != grant.pod_uid:
            raise BadInput(f"the control group {request.group[:200]} is not one of the pod with UID {grant.pod_uid}")
        if not directory.is_dir():
            raise BadInput(f"the node agent does not see the control group {directory}: see docs/isolation.md")
        beside = self._running(lambda _, limited: limited.name == grant.name) - {directory}
        self._check_alone(request.group, grant, beside)
        self._note(directory, grant)
        limits = [
            MemoryLimit(each.uuid, str(directory), 0 if beside else each.guaranteed_mib, each.most_mib)
            for each in grant.limits
        ]
        await self._set_limits([*self._limits_of_pod(request.group), *limits], DRIVER_TIMEOUT_S)
        logger.info("pod %s/%s, container %s: limited in %s", grant.namespace, grant.pod, grant.container, directory)

    def _check_alone(self, group: str, grant: Grant, beside: Iterable[Path]) -> None:
        """Check that no other pod uses a claim of which a container is about to start. Raises BadInput if one does."""
        if grant.of_one_pod or grant.claim is None or not grant.limits:
            return
        uid = pod_uid(group)
        if uid is None:
            raise BadInput(f"the control group {group[:200]} does not tell which pod uses claim {grant.claim.name}")
        others = sorted({str(pod_uid(str(each))) for each in beside} - {uid})
        if others:
            raise BadInput(
                f"claim {grant.claim.name} has a part of {', '.join(each.uuid for each in grant.limits)}, and the pod "
                f"with UID {others[0]} uses it: isolation by the driver can't keep several pods to one amount. Delete "
                "one of the pods, let both be containers of one pod, or let the claim request whole GPUs"
            )

    def _limits_of_pod(self, group: str) -> list[MemoryLimit]:
        """Return the limits of a pod's own group: what its running containers have, that of each claim once.

        None where no container has its cards by a claim: then each container's own limit is enough.
        """
        uid, whole = pod_uid(group), pod_group(group)
        names = {self._limited[each].name for each in self._running(lambda path, _: pod_uid(str(path)) == uid)}
        grants = [grant for grant in self._grants() if grant.name in names]
        if whole is None or all(grant.claim is None for grant in grants):
            return []
        most_mib, guaranteed_mib = Counter[str](), Counter[str]()
        for limit in (limit for grant in grants for limit in grant.limits):
            most_mib[limit.uuid] += limit.most_mib
            guaranteed_mib[limit.uuid] += limit.guaranteed_mib
        directory = str(self._groups.directory(whole))
        return [MemoryLimit(uuid, directory, guaranteed_mib[uuid], most) for uuid, most in most_mib.items()]

    def _running(self, of: Callable[[Path, _Limited], bool]) -> set[Path]:
        """Return the groups that have limits and processes, of those that are wanted."""
        return {
            each for each, limited in self._limited.items() if of(each, limited) and self._groups.is_populated(each)
        }

    def _note(self, directory: Path, grant: Grant) -> None:
        """Remember a group whose limits are about to be set, on disk as well. Raises OSError."""
        self._limited[directory] = _Limited(grant.name, tuple(each.uuid for each in grant.limits))
        self._write(grant.name)
        self._watch_group(directory)

    def _watch_group(self, directory: Path) -> None:
        try:
            if self._watch is not None:
                self._watch.add(directory)
        except OSError as error:  # `tidy` looks at it as well
            logger.info("%s is not watched: %s", directory, error)

    # A container has ended.

    def _observe(self, directory: Path) -> None:
        if directory not in self._limited or directory in self._clearing:
            return
        populated = self._groups.is_populated(directory)
        if populated is None:
            self._drop(directory)  # and its limits with it
        elif not populated:
            self._clearing.add(directory)
            self._start(self._clear(directory))

    async def _clear(self, directory: Path) -> None:
        try:
            groups = [directory, *self._group_of_pod_at_rest(directory)]
            limits = [MemoryLimit(uuid, str(each)) for each in groups for uuid in self._limited[directory].uuids]
            await self._set_limits(limits, DRIVER_TIMEOUT_S)
            self._drop(directory)
        except GpuledgerError as error:
            if self._groups.is_populated(directory) is None:
                self._drop(directory)
            else:
                logger.info("the limits of %s can't be removed yet: %s", directory, error)
        finally:
            self._clearing.discard(directory)

    def _group_of_pod_at_rest(self, directory: Path) -> list[Path]:
        """Return the group of a container's pod, if that was limited as well, and no limited container runs there."""
        whole, uid = pod_group(str(directory)), pod_uid(str(directory))
        of_claim = claim_of_name(self._limited[directory].name) is not None
        if whole is None or not of_claim or self._running(lambda path, _: pod_uid(str(path)) == uid):
            return []
        return [Path(whole)]

    def _drop(self, directory: Path) -> None:
        limited = self._limited.pop(directory)
        try:
            self._write(limited.name)
        except OSError as error:  # read again by the next agent, which finds the group gone
            logger.info("the record of grant %s stays: %s", limited.name, error)

    # What is written down.

    def _write(self, name: str) -> None:
        groups = {str(path): limited.uuids for path, limited in self._limited.items() if limited.name == name}
        file = self.directory / LIMITED / f"{name}{RECORD_SUFFIX}"
        if groups:
            write_whole(file, orjson.dumps(groups))
        else:
            file.unlink(missing_ok=True)

    def _load(self) -> None:
        """Read what earlier agents have set. Raises OSError."""
        for file in (self.directory / LIMITED).glob(f"*{RECORD_SUFFIX}"):
            name = file.name.removesuffix(RECORD_SUFFIX)
            try:
                groups = orjson.loads(file.read_bytes())
                found = {Path(path): _Limited(name, tuple(uuids)) for path, uuids in groups.items()}
            except (ValueError, AttributeError, TypeError) as error:
                logger.warning("%s is no record of limits, and is left out: %s", file, error)
                continue
            self._limited |= found

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) == MOST_AT_ONCE - 1:
            self._pipes.resume()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("limits that the driver keeps: %r", error)
