"""The trail in files: one that others read, and one from which the next process goes on.

Records are lines of JSON, written as they happen by a thread of their own: a slow disk, a full one, or one that hangs
delays no pod. What can't be written is counted, and left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Full, Queue

from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput
from gpuledger.reports.record_reader import LONGEST_LINE_BYTES, record_of
from gpuledger.reports.records import Record
from gpuledger.workflows.reporting import Counts
from gpuledger.workflows.trail import Trail

STANDARD_OUTPUT = "-"

QUEUED = 10_000
"""Lines that wait for the disk; further ones are left out."""

STOP_S = 2.0
"""How long the operator's end waits for the disk."""

FILE_NAME = "history.jsonl"

RECORD_BYTES = 1024
"""More than a record has on average: a file has room for as many records as are kept in memory."""

LEAST_BYTES = 16 * LONGEST_LINE_BYTES

logger = logging.getLogger(__name__)


class LineFile:
    """A file to which a thread appends lines. One that was moved away, as by logrotate, is opened again."""

    def __init__(self, path: str, counts: Counts, most_bytes: int = 0, begin: Callable[[], object] = tuple) -> None:
        """With `most_bytes`, a file that has so many makes room: it gets the ending .1, in the place of the last such.

        `begin` is called by the thread before it writes.
        """
        self._path, self._most_bytes, self._begin = path, most_bytes, begin
        self._count_failure = counts.trail_lines_lost.inc
        self._queue = Queue[bytes | None](QUEUED)
        self._file: int | None = None
        self._is_torn = False  # what was written last has no end
        self._fails = False
        self._thread = threading.Thread(target=self._run, name=f"append to {path}", daemon=True)

    def put(self, line: bytes) -> None:
        """Have a line written."""
        try:
            self._queue.put_nowait(line)
        except Full:
            self._failed(f"the disk is slow: {QUEUED:,} lines wait for it")

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Write as long as this lasts, and then all that was put."""
        self._thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(Full):
                self._queue.put(None, timeout=STOP_S)
            self._thread.join(STOP_S)

    def open(self) -> int:
        """Return the open file at the path. Raises OSError."""
        if self._path == STANDARD_OUTPUT:
            return 1
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                    return self._file
            self._close()
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._is_torn = _has_torn_end(self._path)
        return self._file

    def _run(self) -> None:
        self._begin()
        while (line := self._queue.get()) is not None:
            try:
                self._write(line)
                self._fails = False
            except OSError as error:
                self._failed(str(error))
        self._close()

    def _write(self, line: bytes) -> None:
        file = self.open()
        whole = b"%s%s\n" % (b"\n" if self._is_torn else b"", line)
        written = os.write(file, whole)
        self._is_torn = written < len(whole)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        if self._most_bytes and os.fstat(file).st_size >= self._most_bytes:
            os.replace(self._path, f"{self._path}.1")
            self._close()

    def _failed(self, why: str) -> None:
        self._count_failure()
        if not self._fails:
            logger.warning("records of the history can't be written to %s: %s", self._path, why)
        self._fails = True

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _has_torn_end(path: str) -> bool:
    """Return whether a file has a last line without an end, as after a crash or on a full disk."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


@contextlib.contextmanager
def trail_written(file: str, counts: Counts) -> Iterator[Callable[[bytes], None]]:
    """Yield what appends a line to a file, or to standard output, as long as this lasts. Raises OSError."""
    lines = LineFile(file, counts)
    lines.open()
    with lines.written():
        yield lines.put


class HistoryFile:
    """The file from which the next process goes on, and from which this one does."""

    def __init__(self, directory: Path, trail: Trail, counts: Counts, clock: Clock) -> None:
        self._trail, self._counts, self._clock = trail, counts, clock
        path, self._most_bytes = str(directory / FILE_NAME), max(trail.most * RECORD_BYTES, LEAST_BYTES)
        self._paths = (f"{path}.1", path)
        self._lines = LineFile(path, counts, self._most_bytes, self._read)
        self._loop = asyncio.get_running_loop()
        self.read = asyncio.Event()
        """Set when the trail has what the file had."""
        self.put, self.written = self._lines.put, self._lines.written

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the first line that can't be written says so
            os.makedirs(os.path.dirname(self._paths[-1]), exist_ok=True)
        records, skipped = records_in(self._paths, self._most_bytes, self._trail.most, self._clock.wall().timestamp())
        with contextlib.suppress(RuntimeError):  # the operator has ended meanwhile
            self._loop.call_soon_threadsafe(self._take, records, skipped)

    def _take(self, records: Sequence[Record], skipped: int) -> None:
        self._trail.merge(records)
        skipped_records(self._counts, skipped, self._paths[-1])
        self.read.set()


def skipped_records(counts: Counts, skipped: int, where: str) -> None:
    """Count lines that are no records, and log them together."""
    if skipped:
        counts.trail_lines_skipped.inc(skipped)
        logger.warning("%s: %d lines are no records of this release, and are skipped", where, skipped)


def records_in(paths: Sequence[str], most_bytes: int, most: int, now_s: float) -> tuple[list[Record], int]:
    """Return the last records of files, the oldest file first, and how many of the lines looked at are none.

    Of each file the last bytes are read, of them the last lines: whatever is there, it takes no longer.
    """
    lines: list[bytes] = []
    for path in paths:
        try:
            lines += _last_lines(path, most_bytes, most)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("the history can't be read from %s: %s", path, error)
    records: list[Record] = []
    lines = lines[-most:] if most else []
    for line in lines:
        with contextlib.suppress(BadInput):
            records.append(record_of(line, now_s))
    return records, len(lines) - len(records)


def _last_lines(path: str, most_bytes: int, most: int) -> list[bytes]:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would not answer
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file", path)
        begin = max(0, found.st_size - most_bytes)
        opened.seek(begin)
        lines = opened.read(most_bytes).rsplit(b"\n", most + 1)
    is_cut = begin > 0 or len(lines) > most + 1
    return [line for line in lines[1 if is_cut else 0 :] if line]
