"""Opens, reads and writes containers' shared regions. Every call can block, as disks can.

A container can do what it likes in its directory: put a device, a pipe or a link there, truncate the file while it is
read, or have another one in its place. So a name is first looked at without opening what it stands for, nothing is
mapped into memory, and each read and write is of a few numbers at places that the file's layout names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpuledger.agent.usage.granted import RegionPlace
from gpuledger.agent.usage.priorities import Controls
from gpuledger.formats.runtime.shared_region import (
    LAYOUTS,
    START_BYTES,
    RegionLayout,
    SharedRegion,
    layout_of,
    packed,
    read_shared_region,
)
from gpuledger.model.errors import BadInput

SIZES = frozenset(size for layout in LAYOUTS for size in (layout.size_bytes, layout.size_bytes + 1))

MOST_BYTES = 4 * 2**20
"""Of a container's file: twice what the largest region of a known version has, so that a later one's is left whole."""

REASONS = ("unreadable", "not-a-file", "size", "version", "content")
"""Why a region is skipped, as metrics have it."""


class RegionSkipped(Exception):  # noqa: N818 - reads as what it is
    """A region is of no use; `reason` is one of REASONS, the text a sentence about it."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class Effort:
    """What was done with regions, in all."""

    opened: int = 0
    bytes_read: int = 0
    written: int = 0


class RegionFile:
    """One open region."""

    def __init__(self, descriptor: int, effort: Effort) -> None:
        self._descriptor, self._effort = descriptor, effort
        found = os.fstat(descriptor)
        self.identity = found.st_dev, found.st_ino
        self._size_bytes = found.st_size

    def read(self, most_processes: int) -> SharedRegion | None:
        """Return what it has; None if no program has set it up yet. Raises RegionSkipped, OSError."""
        if not any(self._read(0, 4)):
            return None
        self._layout()
        try:
            return read_shared_region(self._size_bytes, self._read, most_processes)
        except BadInput as error:
            raise RegionSkipped("content", str(error)) from error

    def write(self, before: SharedRegion, controls: Controls) -> None:
        """Have these controls in place of those that it had. Raises RegionSkipped, OSError.

        It writes nothing to a file that has become another one meanwhile.
        """
        layout = self._layout()
        # First the switch, without which a pause has no effect.
        if controls.utilization_switch != before.utilization_switch:
            os.pwrite(self._descriptor, packed(controls.utilization_switch), layout.utilization_switch_at)
        if controls.recent_kernel != before.recent_kernel:
            os.pwrite(self._descriptor, packed(controls.recent_kernel), layout.recent_kernel_at)
        self._effort.written += 1

    def cut_off(self) -> None:
        """Give back to the disk what is too much, also what is reserved behind the file's end. Raises OSError."""
        size_bytes = min(os.fstat(self._descriptor).st_size, MOST_BYTES)
        os.ftruncate(self._descriptor, size_bytes + 1)  # not every file system looks where the size stays as it is
        os.ftruncate(self._descriptor, size_bytes)

    def _layout(self) -> RegionLayout:
        size_bytes = os.fstat(self._descriptor).st_size
        if size_bytes != self._size_bytes or size_bytes not in SIZES:
            raise RegionSkipped("size", f"a file of {size_bytes} bytes is no shared region")
        try:
            return layout_of(size_bytes, self._read(0, START_BYTES).ljust(START_BYTES, b"\0"))
        except BadInput as error:
            raise RegionSkipped("version", str(error)) from error

    def _read(self, offset: int, length: int) -> bytes:
        found = os.pread(self._descriptor, length, offset)
        self._effort.bytes_read += len(found)
        return found


@contextmanager
def open_region(place: RegionPlace, effort: Effort) -> Iterator[RegionFile]:
    """Open a container's region for reading and writing. Raises RegionSkipped, FileNotFoundError, other OSError."""
    directory = os.open(place.directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        name = os.open(place.file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        found = os.fstat(name)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise RegionSkipped("not-a-file", "it is not a plain file with one name")
        # What was looked at is what is opened, whatever has the name now. Another's lease on it is not waited for.
        descriptor = os.open(f"/proc/self/fd/{name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(name)
    try:
        effort.opened += 1
        yield RegionFile(descriptor, effort)
    finally:
        os.close(descriptor)


def cut_off_excess(place: RegionPlace, effort: Effort) -> int:
    """Cut a container's file off where it is far too large; return how much of the disk it took then, or 0.

    Raises RegionSkipped, OSError.
    """
    found = os.stat(os.path.join(place.directory, place.file), follow_symlinks=False)
    taken_bytes = found.st_blocks * 512
    if found.st_size <= MOST_BYTES and taken_bytes <= 2 * MOST_BYTES:  # file systems reserve some beyond the end
        return 0
    with open_region(place, effort) as file:
        file.cut_off()
    return taken_bytes
