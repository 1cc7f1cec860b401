"""The hook that the runtime runs, in the shells there are: what it asks, and that only "ok" lets a container start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuledger.agent.isolation.driver_limits import HookPipes
from gpuledger.formats.runtime.limit_hook import ANSWERS, LONGEST_LINE, REQUESTS, SCRIPT, LimitRequest, read_request

NAME = "slot-1-0a1b"
SHELLS = [
    argv
    for argv in (["/bin/sh"], ["/bin/dash"], ["/bin/bash", "--posix"], ["/bin/busybox", "sh"])
    if shutil.which(argv[0])
]
PATIENCE_S = 60.0


class Agent:
    """The agent's end of the pipes: it keeps what it is asked, and answers what a test says."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.lines = directory, list[bytes]()
        self.came = asyncio.Event()
        self.pipes = HookPipes(directory, self._take)

    def _take(self, line: bytes) -> None:
        self.lines.append(line)
        self.came.set()

    async def asked(self) -> LimitRequest:
        async with asyncio.timeout(PATIENCE_S):
            await self.came.wait()
        self.came.clear()
        return read_request(self.lines[-1])


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    agent = Agent(tmp_path / "limits")
    agent.pipes.open()
    agent.pipes.expect(NAME)
    yield agent
    agent.pipes.close()


def state(pid: int, **more: object) -> str:
    """Return what runc tells a hook."""
    said = {"ociVersion": "1.2.0", "id": "0123", "status": "creating", "pid": pid, "bundle": "/run/x", **more}
    return json.dumps(said, separators=(",", ":"))


def own_group() -> str:
    return Path("/proc/self/cgroup").read_text().splitlines()[0]


async def hook(shell: list[str], directory: Path, stdin: str, name: str = NAME) -> asyncio.subprocess.Process:
    """Start the hook as a runtime does: with an empty environment."""
    process = await asyncio.create_subprocess_exec(
        *shell,
        str(directory / SCRIPT),
        name,
        str(directory),
        env={},
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(stdin.encode())
    process.stdin.close()
    return process


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE_S):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
async def test_a_container_starts_when_the_agent_says_so_and_not_before(shell: list[str], agent: Agent) -> None:
    process = await hook(shell, agent.directory, state(os.getpid(), annotations={"pid": "1", "x": '"pid":2,'}))
    request = await agent.asked()
    assert request == LimitRequest(NAME, os.getpid(), own_group())
    assert process.returncode is None
    assert agent.pipes.answer(NAME, os.getpid() + 1, "for one that has given up")
    assert agent.pipes.answer(NAME, os.getpid(), "")
    assert await ended(process) == (0, "")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
async def test_a_refusal_is_what_the_runtime_is_told(shell: list[str], agent: Agent) -> None:
    stdin = json.dumps(json.loads(state(os.getpid())), indent=2) + "\n"  # as crun writes it
    process = await hook(shell, agent.directory, stdin)
    await agent.asked()
    agent.pipes.answer(NAME, os.getpid(), "card GPU-1:\nno *, no `id`, no \\n, 100 %s")
    assert await ended(process) == (1, "gpuledger: card GPU-1: no *, no `id`, no \\n, 100 %s\n")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        ("", "does not tell the hook which process"),
        ("{}", "does not tell the hook which process"),
        (state(0).replace("0,", '"x",'), "does not tell the hook which process"),
        (state(2**22 + 1), ""),
    ],
)
async def test_without_a_process_no_container_starts(shell: list[str], agent: Agent, stdin: str, said: str) -> None:
    code, words = await ended(await hook(shell, agent.directory, stdin))
    assert code != 0
    assert said in words
    assert agent.lines == []


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
async def test_a_container_that_the_agent_does_not_expect_is_told_at_once_and_leaves_nothing(
    shell: list[str], agent: Agent
) -> None:
    code, words = await ended(await hook(shell, agent.directory, state(os.getpid()), "slot-2-ffff"))
    assert (code, "does not know of this container" in words) == (1, True)
    agent.pipes.forget(NAME)
    code, words = await ended(await hook(shell, agent.directory, state(os.getpid())))
    assert (code, "does not know of this container" in words) == (1, True)
    assert list((agent.directory / ANSWERS).iterdir()) == []


async def test_a_request_waits_for_an_agent_that_is_started_again(agent: Agent) -> None:
    agent.pipes.close()
    process = await hook(["/bin/sh"], agent.directory, state(os.getpid()))
    later = Agent(agent.directory)
    while not later.lines:  # it may come before the hook has written its line, or after
        later.pipes.open()
        await asyncio.sleep(0.01)
    assert (await later.asked()).name == NAME
    later.pipes.answer(NAME, os.getpid(), "")
    assert await ended(process) == (0, "")
    later.pipes.close()


async def test_a_hook_that_was_killed_is_not_answered(agent: Agent) -> None:
    process = await hook(["/bin/sh"], agent.directory, state(os.getpid()))
    await agent.asked()
    process.kill()
    await ended(process)
    assert not agent.pipes.answer(NAME, os.getpid(), "")
    assert not agent.pipes.answer("slot-9-unknown", os.getpid(), "")


async def test_many_hooks_at_once_are_each_asked_and_answered(agent: Agent) -> None:
    names = [f"slot-{number}-00ff" for number in range(30)]
    for name in names:
        agent.pipes.expect(name)
    processes = [await hook(["/bin/sh"], agent.directory, state(os.getpid()), name) for name in names]
    answered: set[str] = set()
    async with asyncio.timeout(PATIENCE_S):
        while answered != set(names):
            for line in agent.lines:
                request = read_request(line)
                if request.name not in answered:
                    answered.add(request.name)
                    agent.pipes.answer(request.name, request.pid, "" if request.name != names[3] else "not this one")
            await asyncio.sleep(0.01)
    assert [code for code, _ in [await ended(each) for each in processes]] == [int(n == 3) for n in range(30)]


async def test_what_is_no_request_is_handed_on_line_by_line_and_kept_small(agent: Agent) -> None:
    file = os.open(agent.directory / REQUESTS, os.O_WRONLY)
    for part in (b"one\ntw", b"o\n", b"x" * LONGEST_LINE, b"x" * LONGEST_LINE, b"\nthree\n"):
        os.write(file, part)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(PATIENCE_S):
        while b"three" not in agent.lines:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert agent.lines[:2] == [b"one", b"two"]
    assert len(agent.pipes._rest) <= LONGEST_LINE
    os.close(file)


async def test_the_directory_is_roots_alone_and_a_file_in_place_of_a_pipe_is_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "limits"
    (directory / ANSWERS).mkdir(parents=True)
    (directory / REQUESTS).write_text("no pipe")
    (directory / ANSWERS / NAME).write_text("no pipe")
    agent = Agent(directory)
    assert agent.pipes.was_used()
    agent.pipes.open()
    agent.pipes.expect(NAME)
    agent.pipes.expect("slot-2-ee")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(path.is_fifo() for path in (directory / REQUESTS, directory / ANSWERS / NAME))
    agent.pipes.keep({NAME})
    assert [path.name for path in (directory / ANSWERS).iterdir()] == [NAME]
    agent.pipes.close()
