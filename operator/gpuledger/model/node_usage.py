"""What is really used of a node's cards, as its agent measures it; what is held is the ledger's to say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardUsage:
    """One card. None: the driver does not say."""

    uuid: str
    memory_used_mib: int | None
    utilization_percent: int | None


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """What one container uses of one card. None: nobody knows."""

    pod_uid: str
    container: str
    uuid: str
    memory_used_mib: int | None
    memory_limit_mib: int | None
    """What it can't get beyond; None where nothing is enforced."""
    utilization_percent: int | None
    last_kernel_s: int | None
    """How many seconds ago it began its last kernel."""
    paused: bool
    """Whether it stands still for a container of higher priority."""
    source: str
    """Who measured it: `region`, the shared memory of HAMi-core, or `nvml`, the driver."""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What one agent has measured."""

    node_name: str
    at: str
    """When, RFC 3339."""
    cards: tuple[CardUsage, ...]
    containers: tuple[ContainerUsage, ...]
