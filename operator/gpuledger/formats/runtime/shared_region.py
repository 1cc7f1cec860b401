"""HAMi-core's shared region: the file in which the processes of one container keep what they use of its cards.

Source: HAMi-core's `src/multiprocess/multiprocess_memory_limit.h`, whose structures it writes as they lie in memory.
One version number stands for two layouts, which differ in size (`LAYOUTS`). HAMi's vGPUmonitor reads the first, second
and last of them (`pkg/monitor/nvidia`).

The container can write to its file, so nothing in it is more than what the container claims: not the priority, not the
UUIDs, not the amounts. The file may change while it is read; one number is read whole, two may be of different moments.

ELF: whether a file is a shared library that programs of this machine can load, and all of it is there. Pure.

Source: the System V ABI's chapters on object files ("ELF Header", "Section Header", "Program Header"), 64 bits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.model.errors import BadInput

Read = Callable[[int, int], bytes]
"""(offset, length) -> what the file has there; less than `length` where the file ends."""

MAGIC = 19920718
"""`initialized_flag` once the library has set the file up, 0 before."""

MAX_DEVICES, MAX_PROCESSES = 16, 1024

PAUSED, IDLE, ACTIVE = -1, 0, 2
"""Values of `recent_kernel`: while it is negative, processes whose cores are limited wait before a kernel. Before each
kernel that they start they set it to 2; a monitor counts it down to 0, and is the only one to make it negative."""

LIMITER_OFF, LIMITER_ON = 0, 1
"""Values of `utilization_switch`: whether a core limit below 100 % is enforced, where the container's
GPU_CORE_UTILIZATION_POLICY says neither `force` nor `disable`. The library sets it to 1 at the start."""

_VERSION = struct.Struct("<iII")
_CONTROL = struct.Struct("<i")
START_BYTES = _VERSION.size
"""How much of the start of a file `layout_of` wants; the first four are 0 before the library has set the file up."""

_UUID_BYTES = 96
_UUID = re.compile(rb"([!-~]*)\0")


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """Where the fields are, in bytes from the start of the file. Numbers are little-endian."""

    name: str
    size_bytes: int
    """Of the structure. The library's file is one byte longer."""
    head: struct.Struct
    """From the start: device_num, uuids, limit[16], sm_limit[16]."""
    process: struct.Struct
    """pid, hostpid, used[16] of 5 numbers, monitorused[16], device_util[16] of 3 numbers, status."""
    controls: struct.Struct
    """proc_num, utilization_switch, recent_kernel, priority, and last_kernel_time where there is one."""

    @property
    def processes_at(self) -> int:
        """Where the first process is; the others follow."""
        return self.head.size

    @property
    def controls_at(self) -> int:
        """Where the numbers behind the processes are."""
        return self.head.size + MAX_PROCESSES * self.process.size

    @property
    def utilization_switch_at(self) -> int:
        """Where a monitor writes `packed(LIMITER_ON)` or `packed(LIMITER_OFF)`."""
        return self.controls_at + 4

    @property
    def recent_kernel_at(self) -> int:
        """Where a monitor writes `packed(PAUSED)`, or a lower count."""
        return self.controls_at + 8


_HEAD_WITH_VERSION = struct.Struct("<24x 32x Q 1536s 16Q 16Q")  # flags and owner_pid; sem
_CONTROLS_WITH_TIME = struct.Struct("<4i Q")
_AMOUNTS = "Q" * 5 + "24x"
_UTILIZATION = "Q" * 3 + "24x"

LAYOUTS = (
    RegionLayout(  # HAMi 2.4.0 and before
        "1.0",
        1197896,
        struct.Struct("<16x 32x Q 1536s 16Q 16Q"),
        struct.Struct("<ii 80Q 16Q 48Q i4x"),
        struct.Struct("<4i"),
    ),
    RegionLayout(  # HAMi 2.4.1 to 2.8.0
        "1.1",
        2008952,
        _HEAD_WITH_VERSION,
        struct.Struct("<ii" + _AMOUNTS * 16 + "16Q" + _UTILIZATION * 16 + "i4x 24x"),
        _CONTROLS_WITH_TIME,
    ),
    RegionLayout(  # HAMi 2.8.1: a second semaphore before device_num, and a seqlock before the amounts
        "1.1",
        2008984,
        struct.Struct("<24x 64x Q 1536s 16Q 16Q"),
        struct.Struct("<ii 8x" + _AMOUNTS * 16 + "16Q" + _UTILIZATION * 16 + "i4x 16x"),
        _CONTROLS_WITH_TIME,
    ),
    RegionLayout(  # HAMi 2.8.2 and later: both moved to where 1.1 had unused bytes
        "1.2",
        2008952,
        _HEAD_WITH_VERSION,
        struct.Struct("<ii" + _AMOUNTS * 16 + "16Q" + _UTILIZATION * 16 + "i4x 24x"),
        _CONTROLS_WITH_TIME,
    ),
)


@dataclass(frozen=True, slots=True)
class RegionDevice:
    """One card of the container, in the order of NVML."""

    uuid: str
    memory_limit_bytes: int
    """0: none."""
    cores_limit_percent: int
    """100 or more: none."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of one card by one process, as it counts itself. Counts that went below zero are 0."""

    context_bytes: int
    module_bytes: int
    data_bytes: int
    total_bytes: int
    """The sum that is compared with the limit."""
    monitored_bytes: int
    """By NVML; 0 where no core limit made the library ask."""
    cores_percent: int
    """By NVML, of the last tenths of a second; 0 where no core limit made the library ask."""


@dataclass(frozen=True, slots=True)
class RegionProcess:
    """One process of the container that uses CUDA. One that was killed stays until the next one starts."""

    pid: int
    """In the container's PID namespace."""
    host_pid: int
    """As NVML reports it; 0: not known."""
    swapped_out: bool
    """Whether it waits since a SIGUSR2; SIGUSR1 ends that."""
    uses: tuple[DeviceUse, ...]
    """In the order of the devices."""


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """The content of a container's file."""

    layout: RegionLayout
    devices: tuple[RegionDevice, ...]
    """None until a process has asked NVML."""
    processes: tuple[RegionProcess, ...]
    process_count: int
    """How many places of its list are in use; more than `processes` if not all were read, or some have ended."""
    priority: int
    """CUDA_TASK_PRIORITY of the process that made the file: 0 high; 1 low, and where there is none."""
    recent_kernel: int
    utilization_switch: int
    last_kernel_s: int | None
    """Unix time of the last kernel, or of the last start of a process. None in layout 1.0, which has no such field."""

    def used_bytes(self, device: int) -> int:
        """Return the use of a card by all processes, by its position in `devices`."""
        return sum(process.uses[device].total_bytes for process in self.processes)


def packed(value: int) -> bytes:
    """Return a control number as a monitor writes it."""
    return _CONTROL.pack(value)


def read_shared_region(size_bytes: int, read: Read, most_processes: int = MAX_PROCESSES) -> SharedRegion:
    """Return the content of a file of this size, reading some kilobytes of its two megabytes.

    The first `most_processes` of its processes are read: their number is the container's word.

    Raises BadInput for a file that is none, is not set up yet, or is of a version that is not known.
    """
    layout = layout_of(size_bytes, _exactly(read, 0, _VERSION.size))
    device_num, uuids, *limits = layout.head.unpack(_exactly(read, 0, layout.head.size))
    if device_num > MAX_DEVICES:
        raise BadInput(f"the shared region has {device_num} devices, and room for {MAX_DEVICES}")
    process_num, switch, recent_kernel, priority, *times = layout.controls.unpack(
        _exactly(read, layout.controls_at, layout.controls.size)
    )
    if not 0 <= process_num <= MAX_PROCESSES:
        raise BadInput(f"the shared region has {process_num} processes, and room for {MAX_PROCESSES}")
    processes = _exactly(read, layout.processes_at, min(process_num, most_processes) * layout.process.size)
    return SharedRegion(
        layout=layout,
        devices=tuple(
            RegionDevice(_uuid(uuids, device), limits[device], limits[MAX_DEVICES + device])
            for device in range(device_num)
        ),
        processes=tuple(
            process for numbers in layout.process.iter_unpack(processes) if (process := _process(numbers, device_num))
        ),
        process_count=process_num,
        priority=priority,
        recent_kernel=recent_kernel,
        utilization_switch=switch,
        last_kernel_s=times[0] if times else None,
    )


def layout_of(size_bytes: int, start: bytes) -> RegionLayout:
    """Return the layout of a file of this size that starts so. Raises BadInput if none has it."""
    magic, major, minor = _VERSION.unpack(start)
    if magic == 0:
        raise BadInput("the shared region is not set up yet: the library does that when a program calls CUDA")
    if magic != MAGIC:
        raise BadInput(f"this is no shared region of HAMi-core: it starts with {magic}, not with {MAGIC}")
    of_size = [layout for layout in LAYOUTS if size_bytes in (layout.size_bytes, layout.size_bytes + 1)]
    if of_size == [LAYOUTS[0]]:  # which has no version: sm_init_flag and owner_pid are in its place
        return of_size[0]
    for layout in of_size:
        if layout.name == f"{major}.{minor}":
            return layout
    known = ", ".join(f"{layout.name} of {layout.size_bytes}" for layout in LAYOUTS)
    raise BadInput(f"a shared region of version {major}.{minor} and {size_bytes} bytes is not known; known are {known}")


def _exactly(read: Read, offset: int, length: int) -> bytes:
    found = read(offset, length)
    if len(found) != length:
        raise BadInput(f"the shared region ends early: {len(found)} of {length} bytes at {offset}")
    return found


def _uuid(uuids: bytes, device: int) -> str:
    """Return a device's UUID. It must be printable ASCII, as NVIDIA's are: it goes into names and labels."""
    found = _UUID.match(uuids, device * _UUID_BYTES, (device + 1) * _UUID_BYTES)
    if found is None:
        raise BadInput(f"the shared region has no readable UUID for device {device}")
    return found[1].decode("ascii")


def _process(numbers: tuple[int, ...], device_num: int) -> RegionProcess | None:
    """Return the process of one place in the list; None if it has ended, and no other has taken its place."""
    pid, host_pid, *amounts, status = numbers
    if pid == 0 or status == 0:
        return None
    used, monitored, utilization = amounts[:80], amounts[80:96], amounts[96:]
    return RegionProcess(
        pid=pid,
        host_pid=host_pid,
        swapped_out=status == 2,
        uses=tuple(
            _use(used[5 * device : 5 * device + 5], monitored[device], utilization[3 * device + 2])
            for device in range(device_num)
        ),
    )


def _use(used: list[int], monitored: int, cores_percent: int) -> DeviceUse:
    context, module, data, _offset, total = (_from_zero(amount) for amount in used)
    return DeviceUse(context, module, data, total, _from_zero(monitored), _from_zero(cores_percent))


def _from_zero(count: int) -> int:
    """Return an unsigned count; 0 for one that was counted down too far, and so came out near 2**64."""
    return count if count < 1 << 63 else 0


MACHINES = {"x86_64": 62, "aarch64": 183}
"""The kernel's name of a machine -> e_machine."""

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
