"""The agent on a node whose driver limits memory: `limiting_agent.py [POINT] agent ...`. Run by tests, in a node's box.

With a point, it is killed the moment it first gets there. On a machine with control groups of version 1, those of one
of its trees stand in for the groups that NVIDIA's driver wants: nothing else of the agent is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.agent import agent as startup
from gpuledger.agent import config
from gpuledger.agent.devices.watcher import DeviceWatcher
from gpuledger.agent.isolation import driver_limits as limiter
from gpuledger.agent.isolation.driver_limits import ROOT, ControlGroups, HookPipes
from gpuledger.command_line.program import main
from node.crashing_agent import after, before

LOOK_INTERVAL_S = 0.01

POINTS: dict[str, Callable[[], None]] = {
    "before the request is read": lambda: before(HookPipes, "_read"),
    "before the limits are set": lambda: before(DeviceWatcher, "limit_memory"),
    "after the limits are set": lambda: after(DeviceWatcher, "limit_memory"),
    "after the hook is answered": lambda: after(HookPipes, "answer"),
    "before the limits are removed": lambda: before(limiter.DriverLimits, "_clear"),
}


class OneTree(ControlGroups):
    """A tree of version 1, as it is in a process' first line of /proc/PID/cgroup."""

    def __init__(self) -> None:
        options = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[1]
        super().__init__(ROOT / options.removeprefix("name="))

    def why_no_limits(self) -> str:
        """Return nothing: that they are of version 1 is what is not tested here."""
        return ""

    def directory(self, group: str) -> Path:
        """Return the directory of the group that a hook has read."""
        return super().directory(f"0::{group.split(':', 2)[2]}")

    def is_populated(self, directory: Path) -> bool | None:
        """Return whether a group has processes; None: it is gone."""
        with contextlib.suppress(OSError):
            return bool((directory / "cgroup.procs").read_text())
        return None

    def watch(self, on_change: Callable[[Path], None]) -> Any:
        """Return who tells of changes: these groups have no file that does."""
        return _Looking(self, on_change)


class _Looking:
    def __init__(self, groups: OneTree, on_change: Callable[[Path], None]) -> None:
        self._groups, self._on_change = groups, on_change
        self._watched: set[Path] = set()
        self._task = asyncio.create_task(self._look())

    def add(self, directory: Path) -> None:
        self._watched.add(directory)

    def close(self) -> None:
        self._task.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for directory in [each for each in self._watched if not self._groups.is_populated(each)]:
                self._watched.discard(directory)
                self._on_change(directory)


def use_the_groups_there_are() -> None:
    """Have the agent of this process take groups of version 1 where there are no others."""
    if not (ROOT / "cgroup.controllers").exists():
        for module in (config, startup):
            vars(module)["ControlGroups"] = OneTree


if __name__ == "__main__":
    use_the_groups_there_are()
    if sys.argv[1] in POINTS:
        POINTS[sys.argv.pop(1)]()
    main()
