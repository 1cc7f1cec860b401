"""ELF: whether a file is a shared library that programs of this machine can load, and all of it is there. Pure.

Source: the System V ABI's chapters on object files ("ELF Header", "Section Header", "Program Header"), 64 bits.
"""

from __future__ import annotations

import struct

from gpuledger.model.errors import BadInput

MACHINES = {"x86_64": 62, "aarch64": 183}
"""What the kernel calls a machine -> e_machine."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SHARED_OBJECT = 3
_LITTLE_ENDIAN_64_BITS = b"\x7fELF\x02\x01\x01"


def check_shared_library(data: bytes, machine: str) -> None:
    """Raise BadInput unless these bytes are a whole shared library for a machine, such as x86_64.

    A machine of a kind that isn't known here takes any.
    """
    if len(data) < _HEADER.size or not data.startswith(_LITTLE_ENDIAN_64_BITS):
        raise BadInput(f"it is no ELF file of 64 bits; it has {len(data)} bytes")
    (_, kind, machine_code, _, _, segments, sections, _, _, segment_size, count, section_size, listed, _) = (
        _HEADER.unpack_from(data)
    )
    if kind != _SHARED_OBJECT:
        raise BadInput("it is no shared library")
    if machine_code != MACHINES.get(machine, machine_code):
        raise BadInput(f"it is for another machine than {machine} (e_machine {machine_code})")
    ends = [segments + count * segment_size, sections + listed * section_size]
    if not count or segment_size != _SEGMENT.size or max(ends) > len(data):
        raise BadInput(f"it is not whole: it has {len(data)} bytes of {max(ends)}")
    for number in range(count):
        _, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(data, segments + number * segment_size)
        if offset + size > len(data):
            raise BadInput(f"it is not whole: it has {len(data)} bytes of {offset + size}")
