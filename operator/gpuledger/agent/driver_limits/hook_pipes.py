"""The hook's script on the node, and the FIFOs by which its runs talk to the agent.

All of it is in a directory that only root can open. What comes through is bounded, and not trusted all the same.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from gpuledger.agent.delivery.grant_files import write_whole
from gpuledger.formats.runtime.limit_request import ANSWERS, HOOK, LONGEST_LINE, REQUESTS, SCRIPT, answer_line

logger = logging.getLogger(__name__)

_MOST_READ = 65536


class HookPipes:
    """The directory, and the FIFO that is read while somebody may ask."""

    def __init__(self, directory: Path, take: Callable[[bytes], None]) -> None:
        """Make one; `take` is given each line that a hook has written, in the event loop."""
        self._directory, self._take = directory, take
        self._file = -1
        self._rest = b""  # of a line whose end has not come yet

    def was_used(self) -> bool:
        """Tell whether this agent, or one before it, has let hooks ask here."""
        return (self._directory / REQUESTS).exists()

    def open(self) -> None:
        """Put everything in place, and read requests from now on: those that wait, too. Raises OSError."""
        if self._file >= 0:
            return
        (self._directory / ANSWERS).mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        write_whole(self._directory / SCRIPT, HOOK.encode())
        _make_fifo(self._directory / REQUESTS)
        # For writing, too: so it never ends, and a hook's line waits in it while no other hook has it open.
        self._file = os.open(self._directory / REQUESTS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._file, self._read)

    def close(self) -> None:
        """Read no more requests."""
        if self._file >= 0:
            self.pause()
            os.close(self._file)
            self._file = -1

    def pause(self) -> None:
        """Leave requests where they are for a while."""
        asyncio.get_running_loop().remove_reader(self._file)

    def resume(self) -> None:
        """Read on."""
        if self._file >= 0:
            asyncio.get_running_loop().add_reader(self._file, self._read)

    def expect(self, name: str) -> None:
        """Let the hook of a grant wait for its answer. Raises OSError."""
        _make_fifo(self._directory / ANSWERS / name)

    def forget(self, name: str) -> None:
        """Expect a grant's hook no more. Raises OSError."""
        (self._directory / ANSWERS / name).unlink(missing_ok=True)

    def keep(self, names: Collection[str]) -> None:
        """Expect only the hooks of these grants. Raises OSError."""
        for file in (self._directory / ANSWERS).iterdir():
            if file.name not in names:
                file.unlink(missing_ok=True)

    def answer(self, name: str, pid: int, refusal: str) -> bool:
        """Let a hook's container start, or with a sentence, keep it from that. False: the hook has not waited."""
        try:
            file = os.open(self._directory / ANSWERS / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                logger.warning("%s can't be answered: %s", name, error)
            return False
        try:
            os.write(file, answer_line(pid, refusal))
        except OSError as error:  # nobody reads it, so it is full
            logger.warning("%s can't be answered: %s", name, error)
            return False
        finally:
            os.close(file)
        return True

    def _read(self) -> None:
        try:
            news = os.read(self._file, _MOST_READ)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + news).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""  # no hook's; what comes of it later is no request either
        for line in lines:
            self._take(line)


def _make_fifo(path: Path) -> None:
    try:
        if stat.S_ISFIFO(path.lstat().st_mode):
            return
        path.unlink()
    except FileNotFoundError:
        pass
    os.mkfifo(path, 0o600)
