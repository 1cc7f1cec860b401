"""The monitor's life: nothing where nobody has HAMi-core, and nobody left paused whatever ends it."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.grants import a_grant
from gpuledger.agent.grants.files import GrantFiles
from gpuledger.agent.usage import monitor as monitor_module
from gpuledger.agent.usage.monitor import Monitor, resume_all
from gpuledger.formats.runtime.shared_region import IDLE, LIMITER_ON, PAUSED
from unit.agent.usage.conftest import Node

INTERVAL_S = 0.01


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - a file is what changes
            await asyncio.sleep(0.001)


async def stopped(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def a_monitor(node: Node, interval_s: float = INTERVAL_S) -> Monitor:
    return Monitor(node.grants.values, interval_s, node.regions)


async def test_it_pauses_and_resumes_and_a_stop_resumes_all(node: Node) -> None:
    node.active("high", 0)
    node.active("low", 1)
    running = asyncio.create_task(a_monitor(node).run())
    await until(lambda: node.controls("low")[0] == PAUSED)
    node.now_s += 60
    await until(lambda: node.controls("low")[0] == IDLE)
    node.active("high", 0)
    await until(lambda: node.controls("low")[0] == PAUSED)
    await stopped(running)
    assert node.controls("low") == (IDLE, LIMITER_ON)


async def test_without_such_containers_it_opens_nothing_starts_no_thread_and_waits(node: Node) -> None:
    node.grants["plain"] = a_grant("plain")
    monitor = a_monitor(node)
    running = asyncio.create_task(monitor.run())
    for _ in range(20):
        await asyncio.sleep(INTERVAL_S)
    assert node.regions.effort.opened == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "regions"]
    node.active("high", 0)
    node.active("low", 1)
    monitor.wake()
    await until(lambda: monitor.looks)
    node.grants.clear()
    await until(lambda: not monitor.looks)
    opened = node.regions.effort.opened
    for _ in range(20):
        await asyncio.sleep(INTERVAL_S)
    assert node.regions.effort.opened == opened
    await stopped(running)


async def test_a_grant_that_comes_wakes_it(node: Node, tmp_path: Path) -> None:
    monitor = Monitor(lambda: grants.all(), INTERVAL_S, node.regions)
    grants = GrantFiles(tmp_path / "cdi", changed=monitor.wake)
    grants.load()
    running = asyncio.create_task(monitor.run())
    await asyncio.sleep(0)
    node.container("low")
    grants.write(node.grants["low"])
    await until(lambda: monitor.looks)
    await stopped(running)


async def test_switched_off_it_only_resumes_what_an_earlier_one_has_paused(node: Node) -> None:
    node.active("high", 0)
    node.active("low", 1, recent_kernel=PAUSED)
    async with asyncio.timeout(30):
        await a_monitor(node, 0).run()
    assert node.controls("low") == (IDLE, LIMITER_ON)
    assert node.regions.effort.opened == 2 + 1  # to look at both, and to resume one


async def test_one_that_begins_decides_at_once_whom_a_killed_one_has_left_paused(node: Node) -> None:
    node.active("high", 0)
    node.container("low", 1, recent_kernel=PAUSED)
    node.container("alone", 1, ("GPU-2",), recent_kernel=PAUSED)
    monitor = a_monitor(node, interval_s=3600)
    running = asyncio.create_task(monitor.run())
    await until(lambda: monitor.looks)
    assert (node.controls("low")[0], node.controls("alone")[0]) == (PAUSED, IDLE)
    await stopped(running)


async def test_what_was_left_paused_is_resumed_before_anything_else_is_asked_for(node: Node, tmp_path: Path) -> None:
    node.container("low", 1, recent_kernel=PAUSED)
    grants = GrantFiles(tmp_path / "cdi")
    grants.load()
    grants.write(node.grants["low"])
    await resume_all(tmp_path / "cdi")
    assert node.controls("low") == (IDLE, LIMITER_ON)


async def test_a_directory_that_cannot_be_read_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file")
    await resume_all(tmp_path / "cdi")


async def test_a_disk_that_hangs_stops_neither_the_event_loop_nor_the_end(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    real = os.pread

    def hang(descriptor: int, length: int, offset: int) -> bytes:
        goes_on.wait(60)
        return real(descriptor, length, offset)

    node.active("low", 1)
    monkeypatch.setattr(os, "pread", hang)
    monkeypatch.setattr(monitor_module, "HANGS_S", 0.01)
    monkeypatch.setattr(monitor_module, "STOP_PATIENCE_S", 0.05)
    running = asyncio.create_task(a_monitor(node).run())
    try:
        await until(lambda: "hangs" in caplog.text)
        assert [thread.name for thread in threading.enumerate()].count("regions") == 1
        async with asyncio.timeout(30):
            await stopped(running)
    finally:
        goes_on.set()
    await until(lambda: not [thread for thread in threading.enumerate() if thread.name == "regions"])


async def test_files_are_kept_small_also_where_nobody_monitors(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "EXCESS_INTERVAL_S", INTERVAL_S)
    file = node.active("greedy")
    running = asyncio.create_task(a_monitor(node, 0).keep_small())
    for _ in range(2):
        os.truncate(file, 200 << 30)
        await until(lambda: file.stat().st_size <= 4 << 20)
    await stopped(running)
