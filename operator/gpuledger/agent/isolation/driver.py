"""The driver: NVIDIA's kernel module keeps each container's control group to its memory of a card. Pure.

Source: NVML's nvmlDeviceSetMemoryLimits_v1 (driver 615), and NVIDIA's "MPS v3 Memory Partitioning". NVIDIA's toolkit
(1.20.1) has a hook of its own for it, which takes one amount for all cards of a container, from its environment: shares
differ by card, and what a pod's user writes there must not count.
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

VENDORS_HOOK = "apply-cuda-memory-limits"
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
"""What the toolkit's hook reads, in MiB."""


def driver_edits(name: str, directory: str, limits: Sequence[CardLimit]) -> Json:
    """Return the edits for the container of a grant; `directory` is the agent's for the hook, on the node.

    Where NVIDIA's container runtime brings its own hook in later than ours, that one reads amounts that are no more
    than any of the container's shares.
    """
    edits: Json = {"hooks": [create_runtime_hook(SHELL, [f"{directory}/{SCRIPT}", name, directory], TIMEOUT_S)]}
    if limits:
        most_mib = min(limit.most_mib for limit in limits)
        guaranteed_mib = min(most_mib, *(limit.guaranteed_mib for limit in limits))
        edits["env"] = [f"{REQUEST}={guaranteed_mib}", f"{LIMIT}={most_mib}"]
    return edits


def without_vendors_limits(edits: Json) -> Json:
    """Return edits without the toolkit's hook: it would only set what ours sets after it."""
    hooks = [hook for hook in edits.get("hooks") or () if VENDORS_HOOK not in (hook.get("args") or ())]
    return {**edits, "hooks": hooks} if "hooks" in edits else edits


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
