"""The node's control groups of version 2: which there are, and when the last process of one has ended.

Source: cgroups(7), inotify(7), and the kernel's `cgroup-v2.rst`: a change of `cgroup.events` shows as one of the file.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

from gpuledger.formats.runtime.limit_request import group_path

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
        """Tell whether a group, or one below, has processes; None: it is gone."""
        try:
            return "populated 1" in (directory / EVENTS).read_text()
        except OSError:
            return None

    def watch(self, on_change: Callable[[Path], None]) -> GroupWatch:
        """Return who tells of changes, in the event loop. Raises OSError."""
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
        """Tell of a group from now on, until it is gone. Raises OSError."""
        path = os.fsencode(directory / EVENTS)
        self._watched[self._check(self._libc.inotify_add_watch(self._file, path, IN_MODIFY))] = directory

    def close(self) -> None:
        """Tell of nothing any more."""
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
