"""The driver: NVIDIA's kernel module keeps each container's control group to its memory of a card. Pure.

Source: NVML's nvmlDeviceSetMemoryLimits_v1 (driver 615), and NVIDIA's "MPS v3 Memory Partitioning". NVIDIA's toolkit
(1.20.1) has a hook of its own for it, which takes one amount for all cards of a container, from its environment: shares
differ by card, and what a pod's user writes there must not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger.agent.isolation.kinds import GrantedCard
from gpuledger.formats.runtime.cdi import CardLimit, create_runtime_hook
from gpuledger.formats.runtime.limit_request import SCRIPT, SHELL, TIMEOUT_S
from gpuledger.model.card_filter import MIG

Json = dict[str, Any]

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


def driver_limits(cards: Sequence[GrantedCard], guarantees: bool = False) -> tuple[CardLimit, ...]:
    """Return the limits of these cards: the share of each, or what a container may borrow. MIG devices need none.

    With `guarantees`, where others on the node may borrow, its share is kept for each container.
    """
    return tuple(
        CardLimit(card.uuid, card.memory_mib if guarantees else 0, card.most_mib) for card in cards if card.mode != MIG
    )
