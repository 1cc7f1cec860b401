"""The agent's view of a driver: cards, their faults, their processes, their links, their place in the PCI tree.

Every call of a `DeviceSource` blocks, and may never return where the hardware hangs. So one thread owns a source, and
makes all of its calls (`watcher.py`). What is made of the answers is pure: the cards that the node offers, and one
number for the connection of two cards. Its table is that of HAMi 2.10 (`calculate_score.go`, `links.go`), so scores
mean the same for every agent: a number for the closest PCIe ancestor, and 100 for each NVLink between the two. Cards
behind NVSwitches have no links to each other, but each of them to the switches: the smaller count is what the pair has.

Source of the PCI tree: Linux, Documentation/ABI/testing/sysfs-bus-pci; spelled as by Kubernetes' standard attribute
`resource.kubernetes.io/pcieRoot` (k8s.io/dynamic-resource-allocation, deviceattribute/pci_linux.go), so that a network
card of another driver has the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Protocol

from gpuledger.model.card import ALL_CORES, MIG, Amounts, Card
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.failure import Failure
from gpuledger.model.node import NodeConfig

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
    failure: Failure | None = None
    """The fault's class; since when is for `health.py` to say. None: `other`, if there is a fault."""
    needs_reset: bool | None = None
    """Whether the driver asks for a reset of the card; None where it can't tell."""
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
    """The use of a card, by all processes. None where the driver does not tell."""

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
    """How much of a card's memory the processes of a control group may take."""

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
        """Return the use of the cards, and each process once per card. Raises DriverGone."""

    def limit_memory(self, limit: MemoryLimit) -> None:
        """Have a control group keep to a limit, in place of its earlier one. Raises LimitRefused, DriverGone."""

    def close(self) -> None:
        """Let go of the driver. Raises nothing, also when the driver is gone or nothing was open."""


WHOLE_CARDS = "none"
"""Mode of a card that is not cut into MIG devices, on a node that keeps shares apart by MIG alone."""


DRIVER = "driver"
"""Mode of a card on a node whose driver is to limit memory."""


def node_cards(snapshot: Snapshot, node_name: str, config: NodeConfig, keep_reserved: bool = False) -> tuple[Card, ...]:
    """Return the cards as the node offers them, in the order of their indexes.

    The configuration's `mode` is how the node keeps shares apart. A MIG device is always one share, whatever it says;
    and where it says `mig`, a card that is not cut into MIG devices is one share, too: nothing would keep two apart.
    Where it says `driver`, a card that the driver can't limit memory on takes no pods. With `keep_reserved`, what the
    driver itself takes of a card's memory is not offered.
    """
    devices = (_usable(device, keep_reserved) for device in snapshot.devices)
    return tuple(_offered(devices, node_name, config))


def why_no_limits(snapshot: Snapshot) -> str:
    """Return why the driver can't limit memory on one of the node's cards, whole ones; empty: it can on all."""
    return next((each.why_no_limits for each in snapshot.devices if each.mode != MIG and each.why_no_limits), "")


def _usable(device: Device, keep_reserved: bool) -> Device:
    left_mib = device.memory_mib - device.reserved_mib
    return replace(device, memory_mib=left_mib) if keep_reserved and left_mib > 0 else device


def _offered(devices: Iterable[Device], node_name: str, config: NodeConfig) -> Iterable[Card]:
    own = replace(config, mode="")  # MIG devices keep their mode
    whole = replace(config, mode=WHOLE_CARDS, split_count=1, memory_scaling=1.0, core_scaling=1.0)
    for device in devices:
        card = _card(device, node_name, config.split_count)
        its_config = own if device.mode == MIG else whole if config.mode == MIG else config
        for offered in its_config.offered([card]):  # none, if the configuration hides the card
            yield _closed_without_limits(_with_its_number(offered, device), device)


def _card(device: Device, node_name: str, split_count: int) -> Card:
    return Card(
        uuid=device.uuid,
        node_name=node_name,
        index=device.index,
        capacity=Amounts(device.memory_mib, ALL_CORES, split_count),
        vendor=device.vendor,
        model=device.model,
        mode=device.mode,
        numa_node=device.numa_node,
        pcie_root=device.pcie_root,
        healthy=not device.fault,
        fault=device.fault,
        failure=device.failure,
        links=dict(device.links),
    )


def _with_its_number(card: Card, device: Device) -> Card:
    if device.number is None:
        return card
    return replace(card, capacity=replace(card.capacity, number=device.number))


def _closed_without_limits(card: Card, device: Device) -> Card:
    if card.mode != DRIVER or not device.why_no_limits or not card.healthy:
        return card
    return replace(card, healthy=False, fault=f"isolation is driver, and {device.why_no_limits}")


ANCESTOR_SCORES: Mapping[int, int] = {
    0: 60,  # same board
    10: 50,  # one PCIe switch (PIX)
    20: 40,  # several PCIe switches (PXB)
    30: 30,  # the PCIe host bridge (PHB)
    40: 20,  # the same CPU (NODE)
    50: 10,  # across CPUs (SYS)
}
"""NVML's `nvmlGpuTopologyLevel_t` -> points."""

NVLINK_SCORE = 100
"""Points for each NVLink of a pair."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The active NVLinks of one card."""

    uuid: str
    bus_id: str
    peers: tuple[str, ...] = ()
    """PCI address of the card at the other end, once for each link that ends at a card."""
    switch_links: int = 0
    """Links that end at an NVSwitch."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The driver's report on two cards."""

    ancestor: int | None = None
    """The closest common ancestor, as NVML counts; None where it is unknown."""
    nvlink_usable: bool = True
    """Whether they may reach each other's memory over NVLink; a switch alone is no path between two cards."""


@dataclass(frozen=True, slots=True)
class Links:
    """The scores of all pairs, the same in both directions, and a sentence on what is odd."""

    scores: Mapping[str, Mapping[str, int]]
    """Card's UUID -> peer's UUID -> score. Pairs without any score are left out."""
    problems: tuple[str, ...] = ()


def link_scores(cards: Sequence[Wiring], pairs: Mapping[frozenset[str], Pair]) -> Links:
    """Return the score of each pair of cards; `pairs` is keyed by both UUIDs."""
    scores: dict[str, dict[str, int]] = {card.uuid: {} for card in cards}
    problems: list[str] = []
    for one, other in combinations(cards, 2):
        pair = pairs.get(frozenset((one.uuid, other.uuid)), Pair())
        there, back = _nvlinks(one, other), _nvlinks(other, one)
        if there != back:
            problems.append(
                f"cards {one.uuid} and {other.uuid} count {there} and {back} NVLinks to each other: "
                "a link may be broken; the lower count is used"
            )
        links = min(there, back) or min(one.switch_links, other.switch_links)
        score = ANCESTOR_SCORES.get(pair.ancestor, 0) if pair.ancestor is not None else 0
        score += NVLINK_SCORE * links if pair.nvlink_usable else 0
        if score:
            scores[one.uuid][other.uuid] = scores[other.uuid][one.uuid] = score
    return Links(scores, tuple(problems))


def wired(cards: Iterable[Wiring]) -> bool:
    """Return whether any card has NVLinks at all."""
    return any(card.peers or card.switch_links for card in cards)


def _nvlinks(one: Wiring, other: Wiring) -> int:
    return sum(peer == other.bus_id for peer in one.peers)


_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_DEPTH = 2
"""Of a root below the directory of sysfs: devices/pci0000:16."""


def pcie_root(sysfs: Path, bus_id: str) -> str:
    """Return the root complex of a PCI device, such as "pci0000:16"; empty where the kernel does not show it."""
    if not bus_id:
        return ""
    directory = Path("bus", "pci", "devices")
    try:
        target = os.readlink(sysfs / directory / bus_id)
    except OSError:
        return ""
    parts = Path(os.path.normpath(directory / target)).parts  # of the link alone: sysfs may be a mount of the machine's
    if len(parts) <= _DEPTH or parts[0] != "devices" or parts[-1] != bus_id or not _ROOT.fullmatch(parts[1]):
        return ""
    return parts[1]
