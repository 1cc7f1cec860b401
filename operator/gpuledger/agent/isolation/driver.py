"""The driver: NVIDIA's kernel module keeps each container's control group to its memory of a card. Pure.

Source: NVML's nvmlDeviceSetMemoryLimits_v1 (driver 615), and NVIDIA's "MPS v3 Memory Partitioning". NVIDIA's toolkit
has a hook of its own for it, which takes one amount for all cards of a container: shares differ by card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.agent.isolation.ways import GrantedCard
from gpuledger.formats.runtime.cdi import CardLimit, create_runtime_hook
from gpuledger.formats.runtime.limit_request import SCRIPT, SHELL, TIMEOUT_S
from gpuledger.model.card_filter import MIG

Json = dict[str, Any]

NO_GUARANTEES: Mapping[str, int] = {}


def driver_edits(name: str, directory: str) -> Json:
    """Return the edits for the container of a grant; `directory` is the agent's for the hook, on the node."""
    return {"hooks": [create_runtime_hook(SHELL, [f"{directory}/{SCRIPT}", name, directory], TIMEOUT_S)]}


def driver_limits(
    cards: Sequence[GrantedCard], guaranteed_mib: Mapping[str, int] = NO_GUARANTEES
) -> tuple[CardLimit, ...]:
    """Return the limits of these cards: at most the share of each. MIG devices need none.

    `guaranteed_mib` is a card's UUID -> memory that is kept for the container while others may borrow the rest.
    """
    return tuple(
        CardLimit(card.uuid, min(guaranteed_mib.get(card.uuid, 0), card.memory_mib), card.memory_mib)
        for card in cards
        if card.mode != MIG
    )
