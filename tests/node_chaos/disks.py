"""Disks of a node that can be full, and that can hang: ext4 on a file, through a loop device.

A disk hangs when its file system is frozen, as `fsfreeze` does: who writes waits, and can't even be killed meanwhile.
A slow disk is one that hangs again and again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from control_plane import ControlPlaneError
from local_node import Node
from node_chaos import freeze

FILLER = "filler"
"""A directory, for a kubelet that starts removes all files beside its sockets."""


class Disk:
    """A disk at a directory of a node."""

    def __init__(self, node: Node, directory: str, size_mib: int) -> None:
        self._node, self._directory = node, directory
        self._image = node.directory / f"disk-{directory.replace('/', '-')}"
        self._size_mib = size_mib

    def mount(self) -> None:
        """Put an empty disk there, over what lies in the directory. Raises ControlPlaneError, CalledProcessError."""
        with self._image.open("wb") as image:
            image.truncate(self._size_mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(self._image)], check=True)
        self._node.execute("mkdir", "-p", self._directory)
        self._node.execute("mount", "-o", "loop,noatime", str(self._image), self._directory)

    @property
    def _root(self) -> Path:
        return self._node.path(self._directory)

    def fill(self) -> None:
        """Leave no room."""
        directory = self._root / FILLER
        directory.mkdir(exist_ok=True)
        with (directory / "file").open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def empty(self) -> None:
        """Give the room back."""
        (self._root / FILLER / "file").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self._root / FILLER).rmdir()

    def hang(self, hang_s: float, times: int) -> None:
        """Let all who write wait, so long and so often, with as long pauses; return when it is over."""
        argv = [sys.executable, "-I", "-S", freeze.__file__, str(self._root), str(hang_s), str(times)]
        subprocess.run(argv, check=True, start_new_session=True)

    def protect(self, for_s: float) -> None:
        """Let nobody write to it for so long; a disk on which a file is open for writing stays as it is."""
        try:
            self._node.execute("mount", "-o", "remount,ro", self._directory)
        except ControlPlaneError:
            return
        time.sleep(for_s)
        self._node.execute("mount", "-o", "remount,rw", self._directory)


def lacking() -> str:
    """Return what this machine lacks for such disks, in words; an empty string if nothing."""
    if not Path("/dev/loop-control").exists():
        return "loop devices"
    return "" if "\text4\n" in Path("/proc/filesystems").read_text() else "ext4"
