"""A driver without cards: CUDA programs run on it, and what they allocate is counted, not kept.

libcuda and libnvidia-ml are written in C and built when a test needs them. All processes with the same `StandInDriver`
share its cards, in containers too, if its directory and the libraries' are mounted there under the same paths.
`tests/fakes/nvml` is another one, for the agent: it says whatever a test wants of cards, and runs no programs.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from build_steps import cache_directory
from requirements import require

HERE = Path(__file__).parent
SOURCES = {"libcuda.so.1": "cuda.c", "libnvidia-ml.so.1": "nvml.c", "cuda_steps": "cuda_steps.c"}
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror")
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StandInCard:
    """A card. Its UUID has the form of NVIDIA's."""

    uuid: str
    memory_mib: int = 81920
    context_mib: int = 300
    """What each process takes that has a context on it."""
    name: str = "NVIDIA A100-SXM4-80GB"


def some_cards(count: int) -> tuple[StandInCard, ...]:
    """Return equal cards."""
    return tuple(StandInCard(f"GPU-{number:08x}-0000-4000-8000-000000000000") for number in range(count))


class StandInDriver:
    """The cards of one machine."""

    def __init__(self, directory: Path, cards: Sequence[StandInCard]) -> None:
        self.directory = directory
        self.libraries = built()
        lines = [f"{card.uuid} {card.memory_mib} {card.context_mib} {card.name}\n" for card in cards]
        (directory / "cards").write_text("".join(lines))

    def environment(self, **more: str) -> dict[str, str]:
        """Return what a program needs to use these cards, and `more`."""
        return {**os.environ, "STAND_IN_DRIVER": str(self.directory), "LD_LIBRARY_PATH": str(self.libraries), **more}

    def run(self, *steps: str, **more: str) -> list[str]:
        """Return what a program prints that takes these steps, a line for each (cuda_steps.c lists them)."""
        command = [str(self.libraries / "cuda_steps"), *steps]
        environment = self.environment(**more)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.splitlines()

    def start(self, **more: str) -> CudaProgram:
        """Start a program that takes its steps one by one."""
        return CudaProgram([str(self.libraries / "cuda_steps"), "-"], self.environment(**more))


class CudaProgram:
    """A running program. As a context manager, it ends with the block."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._steps, self._answers = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """Its number on this machine."""
        return self._process.pid

    def step(self, text: str) -> str:
        """Take a step, and return its answer."""
        self.begin(text)
        return self.answer()

    def begin(self, text: str) -> None:
        """Take a step that may last."""
        self._steps.write(f"{text}\n".encode())
        self._steps.flush()

    def has_answered(self, within_s: float) -> bool:
        """Return whether the step is done before the time is up."""
        return bool(select.select([self._answers], [], [], within_s)[0])

    def answer(self) -> str:
        """Wait for the answer of the step that was begun."""
        assert self.has_answered(ANSWER_TIMEOUT_S), "the program does not answer"
        return self._answers.readline().decode().rstrip("\n")

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> tuple[int, str]:
        """End it, and return its exit code and what it wrote to stderr."""
        errors = self._process.communicate(timeout=ANSWER_TIMEOUT_S)[1].decode()
        return self._process.returncode, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()  # which also closes the pipes of one that has ended by itself


def built() -> Path:
    """Build what is not built yet, and return its directory. Without a compiler, skip the test; in CI, fail it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        require("the stand-in driver is written in C", "there is no compiler (on Debian: apt install gcc libc6-dev)")
        raise AssertionError
    content = b"".join((HERE / name).read_bytes() for name in ("cards.h", *SOURCES.values()))
    key = hashlib.sha256(content + repr(FLAGS).encode()).hexdigest()[:16]
    directory = cache_directory().parent / f"stand-in-driver-{key}"
    directory.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        if not (directory / name).exists():
            _build(compiler, HERE / source, directory / name)
    return directory


def _build(compiler: str, source: Path, result: Path) -> None:
    kind = ["-shared", "-fPIC", f"-Wl,-soname,{result.name}"] if ".so" in result.name else []
    with tempfile.TemporaryDirectory(dir=result.parent) as scratch:
        unfinished = Path(scratch) / result.name
        command = [compiler, *FLAGS, *kind, "-o", str(unfinished), str(source), "-lpthread", "-ldl"]
        subprocess.run(command, check=True)
        unfinished.chmod(0o755)
        unfinished.replace(result)  # in one step: another test may be building, too
