"""Memory of its own for what programs under MPS put into /dev/shm, so that no container can fill the node's /run."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path

from gpuledger.formats.runtime.mps_status import SHARED_MEMORY
from gpuledger.model.errors import BadInput

logger = logging.getLogger(__name__)

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
"""sys/mount.h."""


def mount_shared_memory(directory: Path, size: str, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Mount a tmpfs in mps_directory, and return whether it had to: one that is there has users, and stays.

    `size` is as tmpfs has it, such as 50% or 8g. Raises BadInput if it can't be mounted.
    """
    place = directory / SHARED_MEMORY
    place.mkdir(parents=True, exist_ok=True)
    if any(line.split()[1:3] == [str(place), "tmpfs"] for line in mounts.read_text().splitlines()):
        logger.info("%s is there", place)
        return False
    options = f"size={size},mode=1777".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"gpuledger-mps", os.fsencode(place), b"tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options):
        raise BadInput(f"{place} can't be mounted with size={size}: {os.strerror(ctypes.get_errno())}")
    logger.info("%s is mounted, with size=%s", place, size)
    return True
