"""What the builds have in common: a cache, one builder at a time, progress that is seen, errors that say what to do."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from child_process import dying_with_parent

FAILURE_TAIL_LINES = 25
PLAIN_PROGRESS_INTERVAL_S = 15.0
LIVE_PROGRESS_INTERVAL_S = 0.5
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
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
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
        self.say(f"{label} ({hint})")
        begin = time.monotonic()
        with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as given:
            given.write((stdin or "").encode())
            given.seek(0)
            command = dying_with_parent(argv, signal.SIGINT)  # which go answers by stopping cleanly
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=given,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that its compilers can be interrupted with it
            )
            try:
                self._watch(process, label, begin)
            except BaseException:
                _interrupt(process)
                raise
            if process.returncode != 0:
                raise BuildError(_failure_text(label, argv, process.returncode, log.fileno()))
        self.say(f"{label}: done in {minutes(time.monotonic() - begin)}")

    def _watch(self, process: subprocess.Popen[bytes], label: str, begin: float) -> None:
        """Wait for a process and show that time passes: a counter on a terminal, now and then a line elsewhere."""
        live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        interval_s = LIVE_PROGRESS_INTERVAL_S if live else PLAIN_PROGRESS_INTERVAL_S
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(interval_s)
                    return
                elapsed = minutes(time.monotonic() - begin)
                if live:
                    print(f"\r\033[K  {label} … {elapsed}", end="", file=sys.stderr, flush=True)
                else:
                    self.say(f"{label}: {elapsed} so far")
        finally:
            if live:
                print("\r\033[K", end="", file=sys.stderr, flush=True)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure_text(label: str, argv: list[str], code: int, log: int) -> str:
    size = os.fstat(log).st_size
    lines = os.pread(log, size, 0).decode(errors="replace").splitlines()
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
