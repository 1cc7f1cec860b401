"""What became of a pod that was to be placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuledger.model.share import Share


class PodStatus(StrEnum):
    """What became of a pod."""

    PLACED = "placed"
    BOUND = "bound"
    """It was there before, with the cards that its annotation names."""
    NO_ROOM = "no-room"
    NO_GPU = "no-gpu"
    """It asks for none: kube-scheduler places it, and nothing is said of it here."""


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """Where a pod is placed, or why it is not: reason and sentence -> nodes for which it holds."""

    pod: str
    status: PodStatus
    node_name: str = ""
    shares: tuple[Share, ...] = ()
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)
