"""One MPS control daemon as a process: started, asked, read, and ended only when everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger.formats.runtime.mps import (
    CONTROL,
    LEFT_OVER,
    NOT_STARTED,
    PID_FILE,
    SERVER_LIST,
    SOCKET,
    LogEntry,
    ServerStatus,
    daemon_command,
    daemon_environment,
    is_amount,
    is_routine,
    log_entries,
    quit_command,
    server_status,
    servers_of,
    status_of,
)
from gpuledger.formats.runtime.mps_status import MpsPlaces
from gpuledger.model.errors import GpuledgerError

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long a command may take."""

QUIT_S = 20.0
"""How long a daemon may take to end its servers when it is asked to: less than terminationGracePeriodSeconds."""

ANSWER_LENGTH = 65_536
LINES_KEPT = 1000
"""Lines of the log that nobody has taken yet: of more, the first are lost."""

LINE_LENGTH = 300

NO_MULTIUSER = (
    "this driver's MPS has no server for several users, as that of 555 and newer has: set mps_multiuser to false"
)


class NotAnswered(GpuledgerError):  # noqa: N818 - reads as what it is
    """A daemon does not answer, or it or its program can't be started; the message says why."""


@dataclass(slots=True)
class DaemonProcess:
    """One daemon. Paths are as this process sees them."""

    places: MpsPlaces
    cards: tuple[str, ...]
    multiuser: bool = True
    proc: Path = Path("/proc")
    _process: asyncio.subprocess.Process | None = None
    _output: asyncio.Task[str] | None = None  # -> the last line that it has printed
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))

    @property
    def pid(self) -> int:
        """Return its process id; 0: it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def start(self) -> int:
        """Start it, and return its process id. Raises NotAnswered."""
        try:
            self._prepare()
            self._process = await asyncio.create_subprocess_exec(
                *daemon_command(self.multiuser),
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise NotAnswered(
                f"{error.filename} is missing: it comes with the driver, where {_NEEDS} asks for it"
            ) from None
        except OSError as error:
            raise NotAnswered(f"{CONTROL} can't be started: {error.strerror or error}") from error
        self._output = asyncio.create_task(self._read_output(self._process.stdout))
        return self._process.pid

    def _prepare(self) -> None:
        """Have its directories as it needs them. Raises NotAnswered, OSError."""
        pipes = Path(self.places.pipes)
        for directory in (pipes, Path(self.places.clients), Path(self.places.logs)):
            directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        if running_daemon(pipes, self.proc):
            raise NotAnswered(f"another MPS daemon runs in {pipes}: end it, so that this one can be started")
        for name in LEFT_OVER:  # never the directory itself: it is mounted into containers
            (pipes / name).unlink(missing_ok=True)
        self._lines.clear()

    async def ended(self) -> str:
        """Wait until it has ended, and return how. Raises NotAnswered if it was not started."""
        if self._process is None or self._output is None:
            raise NotAnswered("it was not started")
        status = await self._process.wait()
        # A server that is left keeps the pipe open: what the daemon had to say is there at once.
        await asyncio.wait([self._output], timeout=0.5)
        last = self._output.result() if self._output.done() else ""
        self._output.cancel()
        if status < 0:
            return f"it has ended with signal {-status}"
        if self.multiuser and NOT_STARTED in last:
            return NO_MULTIUSER
        return f"it has ended with status {status}{last and f': {last}'}"

    async def servers(self) -> Mapping[int, ServerStatus]:
        """Return its servers, and how each is. Raises NotAnswered."""
        listed = servers_of(await self.ask(SERVER_LIST))
        return {each: server_status(await self.ask(status_of(each))) for each in listed}

    async def limit(self, commands: Sequence[tuple[str, str]]) -> None:
        """Set limits, each by a command that sets it and one that reads it. Raises NotAnswered where one is not set."""
        for set_it, read_it in commands:
            said = await self.ask(set_it)
            answer = await self.ask(read_it)
            if not is_amount(answer):
                raise NotAnswered(f"`{set_it}` was not taken: {(said or answer)[:LINE_LENGTH]!r}")

    def show(self) -> None:
        """Have containers find the socket of the daemon that runs, under the same name as one before it.

        A second name of the socket, in a directory of its own: in the daemon's directory, a container's user root could
        give the daemon commands such as `quit`, and any user write into its log. Raises NotAnswered.
        """
        socket_file, shown = Path(self.places.pipes) / SOCKET, Path(self.places.clients) / SOCKET
        unfinished = shown.with_suffix(".new")
        try:
            if shown.exists() and shown.samefile(socket_file):
                return
            unfinished.unlink(missing_ok=True)
            unfinished.hardlink_to(socket_file)
            unfinished.replace(shown)
        except OSError as error:
            raise NotAnswered(f"{shown} can't be made: {error.strerror or error}") from error

    async def ask(self, command: str, timeout_s: float | None = None) -> str:
        """Return the daemon's answer to a command. Raises NotAnswered."""
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        try:
            asking = await asyncio.create_subprocess_exec(
                CONTROL,
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise NotAnswered(f"{CONTROL} can't be started: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                answer, _ = await asking.communicate(f"{command}\n".encode())
        except TimeoutError as error:
            raise NotAnswered(f"`{command}` was not answered in {timeout_s:g} s") from error
        finally:
            if asking.returncode is None:
                asking.kill()
                await asking.wait()
        text = answer[:ANSWER_LENGTH].decode(errors="replace").strip()
        if asking.returncode:
            raise NotAnswered(f"`{command}` failed with status {asking.returncode}: {text[:LINE_LENGTH]}")
        return text

    def logged(self) -> list[LogEntry]:
        """Return what was logged since the last call."""
        lines = list(self._lines)
        self._lines.clear()
        return log_entries(lines)

    def kill(self) -> None:
        """End it at once: only where it serves nobody."""
        if self.pid and self._process is not None:
            self._process.kill()

    async def quit(self) -> None:
        """Have it end with its servers."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(NotAnswered, TimeoutError):
            async with asyncio.timeout(QUIT_S):
                await self.ask(quit_command(QUIT_S / 2), QUIT_S)
                await process.wait()
        self.kill()
        await process.wait()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return inherited | daemon_environment(str(self.places.pipes), str(self.places.logs), self.cards)

    async def _read_output(self, output: asyncio.StreamReader | None) -> str:
        """Keep what is logged, show what is not routine, and return the last of that."""
        last, begun = "", ""
        while output is not None and (text := await output.read(4096)):
            *lines, begun = (begun + text.decode(errors="replace")).split("\n")
            begun = begun[:LINE_LENGTH]
            for line in filter(None, map(str.strip, lines)):
                self._lines.append(line[:LINE_LENGTH])
                if not is_routine(line):
                    last = line[:LINE_LENGTH]
                    logger.info("MPS, %s: %s", self.places.name, last)
        return last


def running_daemon(pipes: Path, proc: Path = Path("/proc")) -> bool:
    """Tell whether an MPS daemon listens in a directory of pipes: by its process id, or by its socket."""
    with contextlib.suppress(OSError, ValueError):
        if is_mps(int(_small_file(pipes / PID_FILE)), proc):
            return True
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(pipes / SOCKET))
        except BlockingIOError:  # others wait to be heard
            return True
        except OSError:
            return False
    return True


def _small_file(path: Path) -> bytes:
    """Return what is in a file of a directory that containers have: in place of the file, they can put anything there.

    Raises OSError for what is no file: reading a named pipe would never end.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise FileNotFoundError(errno.ENOENT, "no ordinary file", str(path))
        return os.read(opened, 32)
    finally:
        os.close(opened)


def is_mps(pid: int, proc: Path = Path("/proc")) -> bool:
    """Tell whether a process of MPS has this process id, which needs the node's PID namespace."""
    with contextlib.suppress(OSError):
        return pid > 0 and "mps" in (proc / str(pid) / "comm").read_text()
    return False


_NEEDS = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
