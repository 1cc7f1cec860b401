"""Shared regions as HAMi-core lays them out, at full size: sparse files of two megabytes with a few processes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from fakes.grants import a_grant
from gpuledger.formats.runtime.cdi import Grant, bind_mount
from gpuledger.formats.runtime.shared_region import LAYOUTS, MAGIC, RegionLayout, packed

NEWEST = LAYOUTS[-1]
MIB = 1 << 20


def a_hami_grant(name: str, directory: Path, priority: int | None = None, uuids: Sequence[str] = ("GPU-1",)) -> Grant:
    """Return the grant of a container with HAMi-core, whose own directory on the node is this one."""
    env = [f"CUDA_DEVICE_MEMORY_LIMIT_{place}=3000m" for place in range(len(uuids))]
    env += ["CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/usage.cache"]
    env += [
        f"GPULEDGER_MEMORY_MIB={','.join(['3000'] * len(uuids))}",
        f"GPULEDGER_CORES={','.join(['30'] * len(uuids))}",
    ]
    if priority is not None:
        env.append(f"CUDA_TASK_PRIORITY={priority}")
    mounts = [bind_mount(str(directory), "/usr/local/vgpu", "rw")]
    return a_grant(name, name, slots=frozenset({name}), uuids=tuple(uuids), edits={"env": env, "mounts": mounts})


def write_region(
    path: Path,
    uuids: Sequence[str] = ("GPU-1",),
    processes: Sequence[tuple[int, int]] = ((1, 100),),
    *,
    layout: RegionLayout = NEWEST,
    recent_kernel: int = 0,
    utilization_switch: int = 1,
    last_kernel_s: int = 0,
    claimed_priority: int = 1,
    process_count: int | None = None,
) -> None:
    """Write a region of processes: number on the node, and MiB that it uses of the first card.

    Also 7 % of that card's cores for each. `claimed_priority` and `process_count` are the file's own word.
    """
    magic = struct.pack("<i", MAGIC)
    version = (
        struct.pack("<II", *map(int, layout.name.split("."))) if layout is not LAYOUTS[0] else struct.pack("<II", 1, 42)
    )
    names = b"".join(uuid.encode().ljust(96, b"\0") for uuid in uuids)
    head = bytearray(layout.head.pack(len(uuids), names, *[3000 * MIB] * 16, *[30] * 16))
    head[:12] = magic + version
    with path.open("wb") as file:
        file.write(head)
        for pid, mib in processes:
            file.write(_process(layout, pid, mib))
        times = (last_kernel_s,) if layout is not LAYOUTS[0] else ()
        file.seek(layout.controls_at)
        count = len(processes) if process_count is None else process_count
        file.write(layout.controls.pack(count, utilization_switch, recent_kernel, claimed_priority, *times))
        file.truncate(layout.size_bytes + 1)


def _process(layout: RegionLayout, pid: int, mib: int) -> bytes:
    used = [mib * MIB // 4, mib * MIB // 4, mib * MIB // 2, 0, mib * MIB]
    return layout.process.pack(pid, pid, *used, *[0] * 75, *[0] * 16, 0, 0, 7, *[0] * 45, 1)


def controls(path: Path, layout: RegionLayout = NEWEST) -> tuple[int, int]:
    """Return recent_kernel and utilization_switch, as the file has them."""
    with path.open("rb") as file:
        file.seek(layout.controls_at)
        _, switch, recent_kernel, *_ = layout.controls.unpack(file.read(layout.controls.size))
    return recent_kernel, switch


def set_field(path: Path, offset: int, value: int) -> None:
    """Write one of a region's control numbers, as its library does."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(packed(value))
