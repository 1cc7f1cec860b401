"""HAMi-core's shared regions are read as the library writes them, in each layout, and nothing else is.

`regions/` has files that HAMi-core itself wrote, built from its source at the commits of HAMi 2.4.0 (fb11ec3), 2.8.0
(ec8979d), 2.8.1 (94fff56) and at 8f3a89c, whose layout is that of HAMi 2.8.2 and later. Over the stand-in driver, with
two cards whose contexts take 300 MiB, and CUDA_DEVICE_MEMORY_LIMIT_0=3000m, CUDA_DEVICE_MEMORY_LIMIT_1=5000m,
CUDA_DEVICE_SM_LIMIT=30 and CUDA_TASK_PRIORITY=0, two processes allocated 1000 MiB, and 500 and 700 MiB on both cards.
"""

import contextlib
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from gpuledger.formats.runtime.shared_region import (
    ACTIVE,
    IDLE,
    LAYOUTS,
    LIMITER_OFF,
    LIMITER_ON,
    MAGIC,
    MAX_PROCESSES,
    PAUSED,
    DeviceUse,
    RegionDevice,
    RegionLayout,
    SharedRegion,
    packed,
    read_shared_region,
)
from gpuledger.model.errors import BadInput

MIB = 1024 * 1024
OF_HAMI_2_4_0, OF_HAMI_2_8_0, OF_HAMI_2_8_1, CURRENT = LAYOUTS

WRITTEN_BY_HAMI_CORE = {
    path.stem: lzma.decompress(path.read_bytes()) for path in Path(__file__).with_name("regions").glob("*.xz")
}
LAYOUT_OF_FILE = {
    "hami-2.4.0": OF_HAMI_2_4_0,
    "hami-2.8.0": OF_HAMI_2_8_0,
    "hami-2.8.1": OF_HAMI_2_8_1,
    "hami-core-8f3a89c": CURRENT,
}

WITH_VERSION = {
    "size": 2008952, "device_num": 56, "uuids": 64, "limit": 1600, "sm_limit": 1728, "procs": 1856, "proc_num": 2008896,
    "utilization_switch": 2008900, "recent_kernel": 2008904, "priority": 2008908, "last_kernel_time": 2008912,
    "process": 1960, "hostpid": 4, "used": 8, "a use": 64, "monitorused": 1032, "device_util": 1160, "a util": 48,
    "status": 1928,
}  # fmt: skip
BY_OFFSETOF = {
    OF_HAMI_2_4_0: {
        "size": 1197896, "device_num": 48, "uuids": 56, "limit": 1592, "sm_limit": 1720, "procs": 1848,
        "proc_num": 1197880, "utilization_switch": 1197884, "recent_kernel": 1197888, "priority": 1197892,
        "process": 1168, "hostpid": 4, "used": 8, "a use": 40, "monitorused": 648, "device_util": 776, "a util": 24,
        "status": 1160,
    },
    OF_HAMI_2_8_0: WITH_VERSION,
    OF_HAMI_2_8_1: {
        "size": 2008984, "device_num": 88, "uuids": 96, "limit": 1632, "sm_limit": 1760, "procs": 1888,
        "proc_num": 2008928, "utilization_switch": 2008932, "recent_kernel": 2008936, "priority": 2008940,
        "last_kernel_time": 2008944, "process": 1960, "hostpid": 4, "used": 16, "a use": 64, "monitorused": 1040,
        "device_util": 1168, "a util": 48, "status": 1936,
    },
    CURRENT: WITH_VERSION,
}  # fmt: skip
"""What a C program with the header of the same commits printed: sizeof, and offsetof in bytes, on x86-64 with glibc."""


def read(data: bytes | bytearray) -> SharedRegion:
    return read_shared_region(len(data), lambda offset, length: bytes(data[offset : offset + length]))


def an_empty_region(layout: RegionLayout = CURRENT) -> bytearray:
    data = bytearray(layout.size_bytes + 1)
    major, minor = (int(part) for part in layout.name.split("."))
    data[:12] = struct.pack("<iII", MAGIC, *((0, 4711) if layout is OF_HAMI_2_4_0 else (major, minor)))
    return data


def put(data: bytearray, offset: int, form: str, *values: int) -> None:
    struct.pack_into(f"<{form}", data, offset, *values)


@pytest.mark.parametrize("name", LAYOUT_OF_FILE)
def test_a_region_that_hami_core_wrote_is_read(name: str) -> None:
    region = read(WRITTEN_BY_HAMI_CORE[name])
    assert region.layout is LAYOUT_OF_FILE[name]
    assert region.devices == (
        RegionDevice("GPU-11111111-2222-3333-4444-555555555555", 3000 * MIB, 30),
        RegionDevice("GPU-66666666-7777-8888-9999-aaaaaaaaaaaa", 5000 * MIB, 30),
    )
    assert (region.priority, region.recent_kernel, region.utilization_switch) == (0, ACTIVE, LIMITER_ON)
    assert [
        [(use.context_bytes // MIB, use.data_bytes // MIB, use.total_bytes // MIB) for use in process.uses]
        for process in region.processes
    ] == [[(300, 1000, 1300), (0, 0, 0)], [(300, 500, 800), (300, 700, 1000)]]
    assert all(process.pid == process.host_pid > 0 for process in region.processes)
    assert not any(process.swapped_out for process in region.processes)
    assert (region.used_bytes(0), region.used_bytes(1)) == (2100 * MIB, 1000 * MIB)


@pytest.mark.parametrize("name", LAYOUT_OF_FILE)
def test_the_time_of_the_last_kernel_is_known_from_1_1_on(name: str) -> None:
    last_kernel_s = read(WRITTEN_BY_HAMI_CORE[name]).last_kernel_s
    assert (last_kernel_s is None) == (name == "hami-2.4.0")
    assert last_kernel_s is None or last_kernel_s > 1_700_000_000


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.name}-{layout.size_bytes}")
def test_each_field_is_where_c_has_it(layout: RegionLayout) -> None:
    at = BY_OFFSETOF[layout]
    data = an_empty_region(layout)
    last = at["procs"] + (MAX_PROCESSES - 1) * at["process"]
    put(data, at["device_num"], "Q", 16)
    data[at["uuids"] + 15 * 96 : at["uuids"] + 15 * 96 + 5] = b"GPU-p"
    put(data, at["limit"] + 15 * 8, "Q", 101)
    put(data, at["sm_limit"] + 15 * 8, "Q", 102)
    put(data, at["proc_num"], "i", MAX_PROCESSES)
    put(data, at["utilization_switch"], "i", 103)
    put(data, at["recent_kernel"], "i", -104)
    put(data, at["priority"], "i", 105)
    put(data, last, "i", 106)
    put(data, last + at["hostpid"], "i", 107)
    put(data, last + at["used"] + 15 * at["a use"], "5Q", 108, 109, 110, 111, 112)
    put(data, last + at["monitorused"] + 15 * 8, "Q", 113)
    put(data, last + at["device_util"] + 15 * at["a util"], "3Q", 114, 115, 116)
    put(data, last + at["status"], "i", 2)
    if "last_kernel_time" in at:
        put(data, at["last_kernel_time"], "Q", 117)

    region = read(data)

    assert (layout.size_bytes, region.layout) == (at["size"], layout)
    assert region.devices[15] == RegionDevice("GPU-p", 101, 102)
    assert (region.utilization_switch, region.recent_kernel, region.priority) == (103, -104, 105)
    assert region.last_kernel_s == (117 if "last_kernel_time" in at else None)
    (process,) = region.processes
    assert (process.pid, process.host_pid, process.swapped_out) == (106, 107, True)
    assert process.uses[15] == DeviceUse(108, 109, 110, 112, 113, 116)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.name}-{layout.size_bytes}")
def test_what_a_monitor_writes_is_what_is_read_then(layout: RegionLayout) -> None:
    data = an_empty_region(layout)
    assert layout.recent_kernel_at == BY_OFFSETOF[layout]["recent_kernel"]
    assert layout.utilization_switch_at == BY_OFFSETOF[layout]["utilization_switch"]
    for recent_kernel, switch in ((PAUSED, LIMITER_ON), (IDLE, LIMITER_OFF), (ACTIVE, LIMITER_ON)):
        data[layout.recent_kernel_at : layout.recent_kernel_at + 4] = packed(recent_kernel)
        data[layout.utilization_switch_at : layout.utilization_switch_at + 4] = packed(switch)
        region = read(data)
        assert (region.recent_kernel, region.utilization_switch) == (recent_kernel, switch)
        assert (region.priority, region.processes) == (0, ())


def test_two_processes_take_less_than_eight_kilobytes_to_read() -> None:
    data = WRITTEN_BY_HAMI_CORE["hami-core-8f3a89c"]
    lengths: list[int] = []

    def counted(offset: int, length: int) -> bytes:
        lengths.append(length)
        return data[offset : offset + length]

    read_shared_region(len(data), counted)
    assert sum(lengths) < 8192


def test_processes_that_have_ended_are_left_out_and_counts_below_zero_are_zero() -> None:
    data = an_empty_region()
    put(data, 56, "Q", 1)
    put(data, 2008896, "i", 3)
    for place, (pid, status, total) in enumerate([(0, 1, 5), (7, 0, 5), (8, 1, 2**64 - MIB)]):
        put(data, 1856 + place * 1960, "i", pid)
        put(data, 1856 + place * 1960 + 1928, "i", status)
        put(data, 1856 + place * 1960 + 8 + 32, "Q", total)
    region = read(data)
    assert [process.pid for process in region.processes] == [8]
    assert region.used_bytes(0) == 0


def a_region_with(offset: int, form: str, *values: int) -> bytes:
    data = bytearray(WRITTEN_BY_HAMI_CORE["hami-core-8f3a89c"])
    put(data, offset, form, *values)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends early"),
        (b"\0" * 11, "ends early"),
        (b"\0" * 2008953, "not set up yet"),
        (b"#!/bin/sh\necho hello\n", "no shared region"),
        (a_region_with(0, "i", MAGIC)[:2008000], "version 1.2 and 2008000 bytes is not known"),
        (a_region_with(0, "i", MAGIC) + b"\0", "version 1.2 and 2008954 bytes is not known"),
        (a_region_with(8, "I", 3), "version 1.3 and 2008953 bytes is not known"),
        (a_region_with(4, "I", 2), "version 2.2 and 2008953 bytes is not known"),
        (a_region_with(56, "Q", 17), "17 devices, and room for 16"),
        (a_region_with(56, "Q", 2**64 - 1), "devices, and room for 16"),
        (a_region_with(2008896, "i", 1025), "1025 processes, and room for 1024"),
        (a_region_with(2008896, "i", -1), "-1 processes, and room for 1024"),
        (a_region_with(64, "B", 0xFF), "no readable UUID for device 0"),
        (a_region_with(64, "B", ord("\n")), "no readable UUID for device 0"),
        (a_region_with(160, "96B", *b"x" * 96), "no readable UUID for device 1"),
    ],
)
def test_anything_else_raises_bad_input(data: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read(data)


def test_a_file_that_is_cut_off_while_it_is_read_raises_bad_input() -> None:
    data = WRITTEN_BY_HAMI_CORE["hami-core-8f3a89c"]
    for length in (0, 11, 12, 1855, 1856, 5775, 2008900, 2008919):
        with pytest.raises(BadInput, match="ends early"):
            read_shared_region(len(data), part_of(data[:length]))


def part_of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


# --- any bytes -------------------------------------------------------------------------------------------------------

SIZES = st.one_of(
    st.integers(0, 2**40), st.sampled_from([layout.size_bytes + more for layout in LAYOUTS for more in (-1, 0, 1, 2)])
)


def read_or_refuse(size_bytes: int, file: Callable[[int, int], bytes]) -> None:
    """Read, and check what is read; no error but BadInput, and no offset outside the file."""

    def inside(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= max(size_bytes, 12)
        return file(offset, length)

    with contextlib.suppress(BadInput):
        region = read_shared_region(size_bytes, inside)
        assert len(region.devices) <= 16
        assert len(region.processes) <= MAX_PROCESSES
        assert all(len(process.uses) == len(region.devices) for process in region.processes)
        assert all(device.uuid.isascii() and device.uuid.isprintable() for device in region.devices)
        assert all(0 <= region.used_bytes(device) < 2**73 for device in range(len(region.devices)))


@given(st.binary(max_size=4000), SIZES)
def test_any_bytes_of_any_size_are_read_or_refused(data: bytes, size_bytes: int) -> None:
    read_or_refuse(len(data), part_of(data))
    read_or_refuse(size_bytes, part_of(data))


@given(st.sampled_from(LAYOUTS), st.data())
@settings(max_examples=times(200, 5000))
def test_any_bytes_behind_a_known_start_are_read_or_refused(layout: RegionLayout, draw: st.DataObject) -> None:
    start = bytes(an_empty_region(layout)[:12])

    def file(offset: int, length: int) -> bytes:
        if length > 200_000:
            return bytes(length)
        found = draw.draw(st.binary(min_size=min(length, 64), max_size=64)) * (length // 64 + 1)
        return (start + found[12:])[:length] if offset == 0 else found[:length]

    read_or_refuse(layout.size_bytes + 1, file)


CHANGES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 1856 + 3 * 1960), st.integers(2008890, 2008952), st.integers(1197870, 1197896)),
        st.binary(min_size=1, max_size=16),
    ),
    max_size=8,
)


@given(st.sampled_from(sorted(LAYOUT_OF_FILE)), CHANGES, st.one_of(st.none(), st.integers(0, 2008985)))
@settings(max_examples=times(200, 5000))
def test_a_damaged_region_is_read_or_refused(name: str, changes: list[tuple[int, bytes]], end: int | None) -> None:
    data = bytearray(WRITTEN_BY_HAMI_CORE[name])
    for offset, change in changes:
        data[offset : offset + len(change)] = change
    del data[end if end is not None else len(data) :]
    read_or_refuse(len(data), part_of(bytes(data)))


@given(st.sampled_from(sorted(LAYOUT_OF_FILE)), CHANGES)
@settings(max_examples=times(100, 3000))
def test_a_region_that_changes_while_it_is_read_is_read_or_refused(name: str, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(WRITTEN_BY_HAMI_CORE[name])
    left = list(changes)

    def changing(offset: int, length: int) -> bytes:
        found = bytes(data[offset : offset + length])
        if left:
            position, change = left.pop()
            data[position : position + len(change)] = change
        return found

    read_or_refuse(len(data), changing)
