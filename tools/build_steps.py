"""What the builds have in common: a cache, one builder at a time, progress that is seen, errors that say what to do."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from child_process import dying_with_parent

FAILURE_TAIL_LINES = 25
LIVE_PROGRESS_INTERVAL_S = 0.25
BAR_WIDTH = 20
UNNOTICED_S = 2.0
"""Who only looks whether all is built holds the lock for milliseconds: no need to tell of that."""

PACKAGE = re.compile(r"[\w.~/-]+")
"""A line of progress of `go build -v`: no error is one word."""

DOWNLOAD_FAILURES = (
    *("dial tcp", "i/o timeout", "proxyconnect", "TLS handshake", "lookup disabled", "Connection"),
    *("Temporary failure resolving", "Failed to fetch", "Could not connect"),
)


class BuildError(Exception):
    """Something can't be built; the text says why and what to do."""


def cache_directory() -> Path:
    """Return the directory that keeps the built programs; it is created when something is built."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(home(), ".cache")
    return Path(root) / "gpuledger" / "control-plane"


def home() -> str:
    """Return this account's directory, also where no HOME is set."""
    return os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir


class Builder:
    """Builds one thing, named by `subject` in all that is said."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{self._subject}: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def alone(self, directory: Path) -> Iterator[None]:
        """Let one builder at a time into a cache; the kernel frees the lock however its holder ends."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle = (directory / "lock").open("w")
        except OSError as error:
            raise BuildError(
                f"The build cache can't be written: {error}. Set XDG_CACHE_HOME to a writable place."
            ) from None
        with handle:
            if not _locked_within(handle, UNNOTICED_S):
                self.say(f"another process is building the {self._subject}; waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def run(
        self,
        argv: list[str],
        label: str,
        hint: str,
        directory: Path,
        environment: Mapping[str, str],
        stdin: str | None = None,
    ) -> None:
        """Run a command that takes long. Raises BuildError with the end of its output."""
        self.run_together(label, hint, [Command(argv, directory, environment, stdin)])

    def run_together(self, label: str, hint: str, commands: Sequence[Command], at_once: int = 1) -> None:
        """Run commands, `at_once` of them at a time. Raises BuildError with the output of the first that fails."""
        self.say(f"{label} ({hint})")
        begin = time.monotonic()
        waiting, running, ended = list(commands), list[_Running](), list[_Running]()
        with self._progress(label, sum(command.lines for command in commands)) as show, contextlib.ExitStack() as stack:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(stack.enter_context(_Running.started(waiting.pop(0))))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running[0].process.wait(LIVE_PROGRESS_INTERVAL_S)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    ended.append(each)
                    if each.process.returncode != 0:
                        raise BuildError(each.failure(label))
                show(sum(each.lines() for each in (*running, *ended)), time.monotonic() - begin)
        self.say(f"{label}: done in {minutes(time.monotonic() - begin)}")

    @contextlib.contextmanager
    def _progress(self, label: str, expected: int) -> Iterator[Callable[[int, float], None]]:
        """Yield what shows that it goes on: one line that moves on a terminal, and a line at each quarter elsewhere.

        `expected` is how many lines the commands print in all if nothing was built before, 0 if that is unknown.
        """
        live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        quarters_told = 0

        def show(lines: int, elapsed_s: float) -> None:
            nonlocal quarters_told
            part = min(lines / expected, 1.0) if expected else 0.0
            if live:
                filled = round(part * BAR_WIDTH)
                bar = (
                    f" {'█' * filled}{'░' * (BAR_WIDTH - filled)} {lines:,} of {expected:,} packages"
                    if expected
                    else ""
                )
                print(f"\r\033[K  {label}{bar} {minutes(elapsed_s)}", end="", file=sys.stderr, flush=True)
            elif quarters_told < int(part * 4) < 4:
                quarters_told = int(part * 4)
                self.say(f"{label}: {part:.0%} of {expected:,} packages after {minutes(elapsed_s)}")

        try:
            yield show
        finally:
            if live:
                print("\r\033[K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Command:
    """A command that takes long."""

    argv: list[str]
    directory: Path
    environment: Mapping[str, str]
    stdin: str | None = None
    lines: int = 0
    """How many lines it prints at most, 0 if that is unknown."""


@dataclass(frozen=True)
class _Running:
    """A command that has been started. Its output goes into `log`."""

    command: Command
    process: subprocess.Popen[bytes]
    log: int

    @classmethod
    @contextlib.contextmanager
    def started(cls, command: Command) -> Iterator[_Running]:
        with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as given:
            given.write((command.stdin or "").encode())
            given.seek(0)
            process = subprocess.Popen(
                dying_with_parent(command.argv, signal.SIGINT),  # which go answers by stopping cleanly
                cwd=command.directory,
                env=command.environment,
                stdin=given,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that its compilers can be interrupted with it
            )
            try:
                yield cls(command, process, log.fileno())
            finally:
                _interrupt(process)

    def output(self) -> bytes:
        return os.pread(self.log, os.fstat(self.log).st_size, 0)

    def lines(self) -> int:
        return min(self.output().count(b"\n"), self.command.lines)

    def failure(self, label: str) -> str:
        text = self.output().decode(errors="replace").splitlines()
        lines = [line for line in text if not (self.command.lines and PACKAGE.fullmatch(line))]
        return _failure_text(label, self.command.argv, self.process.returncode, lines)


def _locked_within(handle: TextIO, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        else:
            return True


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure_text(label: str, argv: list[str], code: int, lines: list[str]) -> str:
    reason = f"signal {-code}" if code < 0 else f"exit status {code}"
    output = "\n".join(f"    {line}" for line in lines[-FAILURE_TAIL_LINES:]) or "    (it printed nothing)"
    advice = "Try again; what was finished is kept."
    text = "\n".join(lines[-FAILURE_TAIL_LINES:])
    if "killed" in text or code == -signal.SIGKILL:
        advice = "The machine probably ran out of memory: 4 GiB are needed. Close something, then try again."
    elif "no space left" in text:
        advice = (
            "The disk is full: about 4 GiB are needed. Free some, or set XDG_CACHE_HOME and GOPATH to another disk."
        )
    elif any(word in text for word in DOWNLOAD_FAILURES):
        advice = "A download failed. Check the network and the proxy settings (GOPROXY, HTTPS_PROXY), then try again."
    elif "checksum mismatch" in text or "do not match the hashes" in text.lower():
        advice = "A download is not what was pinned. Do not bypass this; look at what GOPROXY or pip's index serves."
    elif "No module named pip" in text:
        advice = "This Python has no pip. Use `make control-plane`, or put a Go of at least 1.26 on PATH."
    return f"{label} failed ({reason}): {' '.join(argv[:2])} …\n{output}\n{advice}"


def minutes(seconds: float) -> str:
    """Return a duration in words."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
