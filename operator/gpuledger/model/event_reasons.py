"""The reasons of the Events that gpuledger posts, and of the pod condition GPUAllocated."""

from __future__ import annotations

from enum import StrEnum


class EventReason(StrEnum):
    """The reason of an Event. docs/reference/names.md lists them for users."""

    BAD_INVENTORY = "BadGPUInventory"
    """On a node: its list of cards can't be read, or contradicts the ledger."""
    USED_WITHOUT_SHARE = "GPUUsedWithoutShare"
    """On a node: processes of a pod use a card of which the pod holds no share."""
    MPS_FAULT = "MPSFault"
    """On a node: an MPS daemon, or its server, has lost the programs that used a card by it."""
    UNHEALTHY = "GPUUnhealthy"
    """On a pod: a card that it holds has a fault."""
    HEALTHY = "GPUHealthy"
    """On a pod: a card that it holds works again."""
    WAITING = "GPUWaiting"
    """On a pod: it has been pending for a while, and why."""
    WORDS_WITHOUT_EFFECT = "GPUWordsWithoutEffect"
    """On a pod: something that it says of GPUs has no effect."""
    PREEMPTING = "Preempting"
    """On a pending pod: other pods are evicted for it."""
    PREEMPTED = "Preempted"
    """On a pod: it is evicted for another one."""
    PREEMPTION_FORBIDDEN = "PreemptionForbidden"
    """On a pending pod: the pods that would have to leave are protected by PodDisruptionBudgets."""
    PREEMPTION_GIVEN_UP = "PreemptionGivenUp"
    """On a pending pod: a preemption for it has ended without cards."""


ASSIGNED = "Assigned"
"""Reason of the condition GPUAllocated where it is true. Where it is false, the reason is a refusal's: `Reason`."""
