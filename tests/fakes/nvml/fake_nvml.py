"""The driver's library, faked: built from `fake_nvml.c`, and told by a file what cards there are.

A test writes a `NvmlState` as often as it likes; a program that has loaded the library sees it with its next call. The
library is loaded by whoever has its directory in LD_LIBRARY_PATH and the state's path in FAKE_NVML_STATE. Into a
container, mount both *directories*: a state is a new file each time.

    state = NvmlState(cards=some_cards(2))
    state.write(directory / "state")
    subprocess.run([...], env={**os.environ, **environment(directory / "state")})
    replace(state, failures=(Failure(15, card=state.cards[0].uuid),)).write(directory / "state")   # it is lost
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pynvml

from build_steps import cache_directory
from requirements import require

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "FAKE_NVML_STATE"
MIB = 1024 * 1024

# Nothing beyond C and POSIX: with GNU's extensions, newer C libraries give numbers functions that older ones lack.
FLAGS = ("-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")

GONE, LOST, NOT_SUPPORTED, NO_FUNCTION, UNKNOWN, NO_PERMISSION, NOT_FOUND = 9, 15, 3, 13, 999, 4, 6
"""Codes that tests use: driver not loaded, GPU is lost, not supported, function not found, unknown error, no right, not
found."""

NO_LIMIT = (1 << 64) - 1
"""A hard limit that is none."""

XID, DOUBLE_BIT_ECC = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError
SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


@dataclass(frozen=True)
class NvLink:
    """An NVLink of a card: to another card's PCI address, or to a switch."""

    bus_id: str
    kind: int = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    active: bool = True


@dataclass(frozen=True)
class Mig:
    """A MIG device. `place` is its number among those of its card."""

    uuid: str
    place: int
    memory_mib: int = 9728
    name: str = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    gpu_instance: int = 7
    compute_instance: int = 0


@dataclass(frozen=True)
class Card:
    """A card. What is None is not supported by it; its NVML index is its place in the state."""

    uuid: str
    bus_id: str | None
    name: str | None = "NVIDIA A100-SXM4-80GB"
    memory_mib: int | None = 81920
    numa_node: int | None = 0
    mig: tuple[Mig, ...] | None = None
    """None: the card knows no MIG; an empty tuple: it is in MIG mode and has no devices."""
    links: tuple[NvLink, ...] = ()
    event_types: int | None = XID | DOUBLE_BIT_ECC
    ecc_errors: int | None = 0
    remap_pending: int | None = 0
    remap_failed: int | None = 0
    retired_pending: int | None = None
    recovery_action: int | None = None
    """NVML_GPU_RECOVERY_ACTION; None: an older driver."""
    memory_used_mib: int | None = None
    """None: none is."""
    cores_percent: int | None = None
    memory_controller_percent: int | None = None
    reserved_mib: int | None = None


@dataclass(frozen=True)
class Pair:
    """What NVML says of two cards."""

    one: str
    other: str
    ancestor: int
    nvlink: int | None = None


@dataclass(frozen=True)
class Process:
    """A process on a card or MIG device, in one of NVML's three lists."""

    uuid: str
    pid: int
    memory_mib: int | None = None
    kind: Literal["compute", "graphics", "mps"] = "compute"
    cores_percent: int | None = None
    """None: it has not computed lately, so NVML has no sample of it."""


@dataclass(frozen=True)
class Event:
    """An event of a card. Ids only grow: each is delivered once."""

    id: int
    uuid: str
    data: int
    type: int = XID
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True)
class Failure:
    """Calls that fail: all, or one; of all cards, or of one."""

    code: int
    call: str = "*"
    card: str | None = None


@dataclass(frozen=True)
class NvmlState:
    """All that the library can say."""

    cards: tuple[Card, ...] = ()
    pairs: tuple[Pair, ...] = ()
    processes: tuple[Process, ...] = ()
    events: tuple[Event, ...] = ()
    failures: tuple[Failure, ...] = ()
    hangs: tuple[str, ...] = ()
    """Calls that return only when they are no longer named here; `*`: all."""
    driver_error: int | None = None
    """What every call returns while the driver is gone."""
    driver_version: str = "580.95.05"
    cuda: int | None = 13000
    limits: str | None = None
    """File to which each limit of memory is added, as the program sees its path; None: a driver that knows none."""

    def write(self, path: Path) -> None:
        """Put the state in place at once, so that no reader sees half of it."""
        new = path.with_name(f"{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in self._lines()))
        new.replace(path)

    def with_event(self, uuid: str, data: int, **more: int) -> NvmlState:
        """Return the state with one more event."""
        number = max((event.id for event in self.events), default=0) + 1
        return replace(self, events=(*self.events, Event(number, uuid, data, **more)))

    def _lines(self) -> Iterable[str]:
        yield _line("driver", version=self.driver_version, cuda=self.cuda, error=self.driver_error, limits=self.limits)
        for card in self.cards:
            yield from _card_lines(card)
        for pair in self.pairs:
            yield _line("pair", a=pair.one, b=pair.other, ancestor=pair.ancestor, nvlink=pair.nvlink)
        for process in self.processes:
            values = {"pid": process.pid, "memory": _bytes(process.memory_mib), "list": process.kind}
            yield _line("process", card=process.uuid, **values, sm=process.cores_percent)
        for event in self.events:
            instance = {"gi": event.gpu_instance, "ci": event.compute_instance}
            yield _line("event", id=event.id, card=event.uuid, type=event.type, data=event.data, **instance)
        for failure in self.failures:
            yield _line("fail", call=failure.call, card=failure.card, code=failure.code)
        for call in self.hangs:
            yield _line("hang", call=call)


def _card_lines(card: Card) -> Iterable[str]:
    yield _line(
        "card",
        uuid=card.uuid,
        bus=card.bus_id,
        name=card.name,
        memory=_bytes(card.memory_mib),
        numa=card.numa_node,
        mig=None if card.mig is None else 1,
        migs=None if card.mig is None else 7,
        events=card.event_types,
        ecc=card.ecc_errors,
        remap_pending=card.remap_pending,
        remap_failed=card.remap_failed,
        retired=card.retired_pending,
        recovery=card.recovery_action,
        used=_bytes(card.memory_used_mib),
        gpu=card.cores_percent,
        controller=card.memory_controller_percent,
        reserved=_bytes(card.reserved_mib),
    )
    for mig in card.mig or ():
        instance = {"gi": mig.gpu_instance, "ci": mig.compute_instance}
        memory = _bytes(mig.memory_mib)
        yield _line("mig", card=card.uuid, place=mig.place, uuid=mig.uuid, name=mig.name, memory=memory, **instance)
    for number, link in enumerate(card.links):
        active = int(link.active)
        yield _line("nvlink", card=card.uuid, link=number, active=active, bus=link.bus_id, type=link.kind)


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _line(kind: str, **values: object) -> str:
    return "\t".join([kind, *(f"{key}={value}" for key, value in values.items() if value is not None)])


def bus_id(number: int) -> str:
    """Return a PCI address as NVML writes it."""
    return f"00000000:{number + 7:02X}:00.0"


def some_cards(count: int) -> tuple[Card, ...]:
    """Return equal cards without NVLinks, on two NUMA nodes."""
    return tuple(Card(f"GPU-{number:08d}", bus_id(number), numa_node=number * 2 // count) for number in range(count))


@dataclass(frozen=True)
class SetLimit:
    """A limit that was set, as the library has noted it. Amounts are in bytes."""

    uuid: str
    group: str
    soft: int
    hard: int


def limit_lines(text: str) -> list[SetLimit | str]:
    """Return what a file of limits says, in order; lines that others have added as they are."""
    found: list[SetLimit | str] = []
    for line in text.splitlines():
        kind, *rest = line.split("\t")
        found.append(SetLimit(rest[0], rest[1], int(rest[2]), int(rest[3])) if kind == "set" else line)
    return found


def all_pairs(cards: tuple[Card, ...], ancestor: int, nvlink: int | None = None) -> tuple[Pair, ...]:
    """Return the same answer for all pairs."""
    uuids = [card.uuid for card in cards]
    return tuple(Pair(one, other, ancestor, nvlink) for n, one in enumerate(uuids) for other in uuids[n + 1 :])


def library_directory() -> Path:
    """Build the library if need be, and return its directory. Without a compiler, skip the test; in CI, fail it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        require("the fake NVML is written in C", "there is no compiler (on Debian: apt install gcc libc6-dev)")
        raise AssertionError
    key = hashlib.sha256(SOURCE.read_bytes() + repr(FLAGS).encode()).hexdigest()[:16]
    directory = cache_directory().parent / f"fake-nvml-{key}"
    if not (directory / LIBRARY).exists():
        directory.mkdir(parents=True, exist_ok=True)
        _build(compiler, directory / LIBRARY)
    return directory


def _build(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / LIBRARY
        command = [compiler, *FLAGS, f"-Wl,-soname,{LIBRARY}", "-o", str(built), str(SOURCE)]
        subprocess.run(command, check=True)
        built.chmod(0o755)
        built.replace(library)  # in one step: another test may be building, too


def environment(state: Path) -> dict[str, str]:
    """Return what a program needs in its environment to take the fake for the driver."""
    paths = [str(library_directory()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(paths), STATE_VARIABLE: str(state)}


def load() -> None:
    """Make this process take the fake for the driver, whatever else is installed.

    The loader finds a library that is there already by its soname, so pynvml gets this one. There is no way back.
    """
    ctypes.CDLL(str(library_directory() / LIBRARY), mode=ctypes.RTLD_GLOBAL)
