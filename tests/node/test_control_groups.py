"""The kernel's own control groups of version 2: whose they are, and that their last process' end is told at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.agent.isolation.driver_limits import VERSION_1, ControlGroups
from requirements import require

PATIENCE_S = 20.0


@pytest.fixture
def tree() -> Path:
    """Return where a tree of version 2 is mounted: beside those of version 1, it has no controllers, but all groups."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return Path(line.split()[4])
    require("control groups", "no tree of version 2 is mounted here")
    raise AssertionError


@pytest.fixture
def group(tree: Path) -> Iterator[Path]:
    """Yield a group with another one below."""
    directory = tree / f"gpuledger-test-{secrets.token_hex(4)}"
    (directory / "below").mkdir(parents=True)
    yield directory
    remove(directory)


def remove(group: Path) -> None:
    for each in (group / "below", group):
        with contextlib.suppress(FileNotFoundError):
            each.rmdir()


def enter(group: Path) -> subprocess.Popen[bytes]:
    """Start a process in a group."""
    process = subprocess.Popen(["sleep", "3600"])
    (group / "cgroup.procs").write_text(str(process.pid))
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(PATIENCE_S)


def test_a_process_finds_its_own_group(tree: Path) -> None:
    groups = ControlGroups(tree)
    assert groups.why_no_limits() == ""
    own = groups.own()
    assert own is not None
    assert str(os.getpid()) in (own / "cgroup.procs").read_text().split()
    assert ControlGroups(Path("/proc")).why_no_limits() == VERSION_1


async def test_the_end_of_the_last_process_is_told_at_once_whatever_groups_are_below(tree: Path, group: Path) -> None:
    groups, told = ControlGroups(tree), asyncio.Event()
    changed: list[Path] = []
    first, last = enter(group), enter(group / "below")
    watch = groups.watch(lambda directory: (changed.append(directory), told.set())[1])  # type: ignore[func-returns-value]
    watch.add(group)
    assert groups.is_populated(group) is True
    end(first)
    assert groups.is_populated(group) is True
    end(last)
    async with asyncio.timeout(PATIENCE_S):
        await told.wait()
    assert groups.is_populated(group) is False
    assert set(changed) == {group}
    remove(group)
    assert groups.is_populated(group) is None
    with pytest.raises(FileNotFoundError):
        watch.add(group)
    watch.close()
