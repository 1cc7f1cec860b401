"""The agent's view of a driver: cards, their faults, their processes.

Every call of a `DeviceSource` blocks, and may never return where the hardware hangs. So one thread owns a source, and
makes all of its calls (`device_watcher.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.model.errors import GpuledgerError

NOT_ASKED = "no driver was asked to limit memory on the card"
"""Of cards that do not come from a driver that could."""


@dataclass(frozen=True, slots=True)
class Device:
    """Hardware as it is, before a node's configuration (scaling, splits) is applied."""

    uuid: str
    index: int
    """Unique on the node. For a whole card it is the driver's own number."""
    model: str
    memory_mib: int
    vendor: str = "nvidia"
    numa_node: int | None = None
    """None where the machine does not say."""
    pcie_root: str = ""
    """Its PCIe root complex, such as `pci0000:16`; empty where the machine does not say."""
    bus_id: str = ""
    """PCI address, in lower case; empty where there is none. A MIG device has both of its card."""
    links: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Peer card's UUID -> link score, higher is faster."""
    mode: str = ""
    """`mig` for a MIG device; empty for a whole card."""
    parent_uuid: str = ""
    """The physical card of a MIG device."""
    number: int | None = None
    """Slots, where the source fixes them, such as 1 for a MIG device; None: the node's configuration says it."""
    fault: str = ""
    """Why the card takes no pods; empty: it works. Without live numbers: it stays the same while nothing changes."""
    reserved_mib: int = 0
    """Of its memory, what the driver keeps for itself."""
    why_no_limits: str = NOT_ASKED
    """Why the driver can't hold a container to an amount of the card's memory; empty: it can. Without live numbers."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All cards of the node at one moment, in the order of their indexes."""

    devices: tuple[Device, ...]
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong on a card."""

    uuid: str
    """The card's, or that of the physical card of MIG devices; empty: every card, for an event that names none."""
    code: int
    """NVIDIA's Xid; 0 for a fault that the next snapshot shows, and that is over when it no longer does."""
    text: str
    """For people, without live numbers."""


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process with a context on a card."""

    pid: int
    """As the driver says it: in the PID namespace of the machine."""
    uuid: str
    memory_mib: int | None
    """None where the driver does not tell."""
    cores_percent: int | None = None
    """Of the card's multiprocessors' time in the last second; None where the driver does not tell."""


@dataclass(frozen=True, slots=True)
class CardUse:
    """What is used of a card, by whomever. None where the driver does not tell."""

    uuid: str
    memory_mib: int | None
    cores_percent: int | None
    """The part of the last moments in which a kernel ran."""
    memory_controller_percent: int | None = None
    """The part of them in which the card's memory was read or written."""


@dataclass(frozen=True, slots=True)
class DeviceUses:
    """All that is used, at one moment."""

    cards: tuple[CardUse, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What the processes of a control group may take of a card's memory."""

    uuid: str
    group: str
    """Path of the control group's directory, in a tree of version 2."""
    guaranteed_mib: int = 0
    most_mib: int | None = None
    """None: all there is. Then, and with no guarantee, the group is as if it had never been limited."""


class LimitRefused(GpuledgerError):  # noqa: N818 - reads as what it is
    """The driver does not limit memory. `str()` says which card's, why, and what to do."""


class DriverGone(GpuledgerError):  # noqa: N818 - reads as what it is
    """The driver can't be talked to: every card is out. Opening the source again may help."""


class DriverReplaced(DriverGone):
    """The library that this process has loaded is that of an older driver: only a new process can load another."""


class DeviceSource(Protocol):
    """Where cards come from. All calls come from one thread, and `open` comes first."""

    def open(self) -> None:
        """Connect; after `close`, connect again. Raises DriverGone, and BadInput for a configuration of no use."""

    def snapshot(self) -> Snapshot:
        """Return all cards; `fault` is filled in for those that don't work right now. Raises DriverGone."""

    def wait_for_faults(self, timeout_s: float) -> Sequence[Fault]:
        """Wait for faults; return early when there are some, and nothing when there are none. Raises DriverGone."""

    def uses(self) -> DeviceUses:
        """Return what is used of the cards, and each process once per card. Raises DriverGone."""

    def limit_memory(self, limit: MemoryLimit) -> None:
        """Have a control group keep to a limit, in place of its earlier one. Raises LimitRefused, DriverGone."""

    def close(self) -> None:
        """Let go of the driver. Raises nothing, also when the driver is gone or nothing was open."""
