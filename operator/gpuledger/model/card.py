"""One GPU as a node reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuledger.model.amounts import Amounts

ALL_CORES = 100
"""Percent: a request for all cores of a card means that no other pod may be on it."""


class CardPhase(StrEnum):
    """A card's state, as `kubectl get gpuallocations` shows it."""

    PENDING = "Pending"
    """Known, but its first status is not written yet: nothing is placed on it."""
    READY = "Ready"
    CORDONED = "Cordoned"
    """A person wants no new pods on the card. Holders stay."""
    UNACCOUNTED = "Unaccounted"
    """A pod may use the card without a share in the ledger. Holders stay, no new pod comes."""
    UNHEALTHY = "Unhealthy"
    """The node reports a fault. Holders stay, no new pod comes."""
    UNAVAILABLE = "Unavailable"
    """The node, its agent or the card is gone. Holders stay, no new pod comes."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card, without its holders. `index` is its place on the node, as CUDA and NVML count."""

    uuid: str
    node_name: str
    index: int
    capacity: Amounts
    vendor: str = "nvidia"
    model: str = ""
    mode: str = ""
    numa_node: int | None = None
    pcie_root: str = ""
    """The PCIe root complex, such as "pci0000:16"; empty where the machine does not report it."""
    healthy: bool = True
    links: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Peer card's UUID -> link score, higher is faster."""
    fault: str = field(default="", compare=False)
    """Why the card is not healthy, in its node's words, without numbers that change. Not stored with the card, so it is
    no difference: the reason for its phase shows it."""

    @property
    def place(self) -> tuple[int, str]:
        """Sort key: the order of a node's cards, also when two claim one index."""
        return (self.index, self.uuid)

    @property
    def object_name(self) -> str:
        """Name of the card's GPUAllocation object."""
        return self.uuid.lower()
