"""Files that look like HAMi-core's library to whoever checks them, and that no program can run."""

from __future__ import annotations

import platform
import struct

from gpuledger.agent.isolation.hami_core import KNOWS
from gpuledger.formats.runtime.shared_region import MACHINES

HEADER_BYTES, SEGMENT_BYTES, SHARED_OBJECT = 64, 56, 3


def a_library(
    text: bytes = b"", machine: str = platform.machine(), kind: int = SHARED_OBJECT, knows: bytes = KNOWS
) -> bytes:
    """Return a shared library of one segment, which ends where the file does."""
    content = knows + text
    size = HEADER_BYTES + SEGMENT_BYTES + len(content)
    identification = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        identification,
        kind,
        MACHINES[machine],
        1,
        0,
        HEADER_BYTES,  # where the segments are listed
        0,
        0,
        HEADER_BYTES,
        SEGMENT_BYTES,
        1,
        64,
        0,
        0,
    )
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096) + content
