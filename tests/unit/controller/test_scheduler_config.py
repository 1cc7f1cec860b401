"""kube-scheduler's configuration comes through a pipe, and only from an operator whose event loop runs."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpuledger.configuration.settings import Settings
from gpuledger.controller.scheduler_pipe import given_through, make_pipe, scheduler_config_text

CONTENT = "kind: KubeSchedulerConfiguration\n"
OPERATOR = """
import asyncio, sys
from pathlib import Path
from gpuledger.controller.scheduler_pipe import given_through

async def run():
    async with given_through(Path(sys.argv[1]), sys.argv[2]):
        print("runs", flush=True)
        await asyncio.Event().wait()

asyncio.run(run())
"""


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return the path of a pipe that the init container has made."""
    path = tmp_path / "scheduler.yaml"
    make_pipe(path)
    return path


async def read(path: Path) -> str:
    """Read it to its end, as kube-scheduler does."""
    return await asyncio.to_thread(path.read_text)


def test_a_pipe_for_which_somebody_may_wait_is_not_replaced(pipe: Path) -> None:
    before = pipe.stat().st_ino
    make_pipe(pipe)
    assert pipe.stat().st_ino == before


def test_a_file_is_replaced_by_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text("old")
    make_pipe(path)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_the_content_is_the_configuration_of_the_settings() -> None:
    found = yaml.safe_load(scheduler_config_text(Settings(scheduler_name="own"), leader_elect=True))
    assert [profile["schedulerName"] for profile in found["profiles"]] == ["own"]
    assert found["leaderElection"]["leaderElect"] is True


async def test_each_reader_gets_the_content_once(pipe: Path) -> None:
    async with given_through(pipe, CONTENT):
        assert [await read(pipe) for _ in range(20)] == [CONTENT] * 20


async def test_a_reader_that_was_there_first_gets_the_content_when_the_operator_runs(pipe: Path) -> None:
    early = asyncio.create_task(read(pipe))
    async with given_through(pipe, CONTENT):
        assert await early == CONTENT


async def test_a_reader_that_leaves_keeps_the_next_one_from_nothing(pipe: Path) -> None:
    async with given_through(pipe, CONTENT):
        os.close(os.open(pipe, os.O_RDONLY))
        assert await read(pipe) == CONTENT


async def test_nothing_is_given_while_the_event_loop_hangs(pipe: Path) -> None:
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    async with given_through(pipe, CONTENT):
        reader.start()
        reader.join(0.2)  # the loop stands still
        assert got == []
        await asyncio.to_thread(reader.join)
    assert got == [CONTENT]


def test_an_operator_that_was_stopped_gives_nothing_and_its_successor_does(pipe: Path) -> None:
    argv = [sys.executable, "-c", OPERATOR, str(pipe), CONTENT]
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as first:
        assert first.stdout
        assert first.stdout.readline() == b"runs\n"
        first.send_signal(signal.SIGSTOP)
        os.waitpid(first.pid, os.WUNTRACED)
        reader.start()
        reader.join(0.2)
        assert got == []
        first.kill()
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as second:
        reader.join(60)
        if got == [""]:  # it had begun to read from the first: kube-scheduler takes that for an error, and starts again
            got = [pipe.read_text()]
        assert got == [CONTENT]
        second.kill()


async def test_an_operator_with_other_settings_knows_that_kube_scheduler_has_the_old_ones(pipe: Path) -> None:
    """It asks with names that may mean something else by now, and has to start again."""
    async with given_through(pipe, CONTENT) as first:
        assert not first.is_outdated  # nobody has read anything
        assert await read(pipe) == CONTENT
    async with given_through(pipe, CONTENT) as same:
        assert not same.is_outdated
    async with given_through(pipe, "other") as second:
        assert second.is_outdated
        assert await read(pipe) == "other"
        await asyncio.to_thread(until, lambda: not second.is_outdated)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does next."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
