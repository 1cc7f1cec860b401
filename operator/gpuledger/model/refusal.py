"""Why a node can't take a pod: the fixed set of reasons that kube-scheduler shows in the pod's event.

A text never contains a live number, such as what is free now: kube-scheduler patches the pod and writes a new event
whenever its message changes. Numbers of the request itself are constant, so they may appear. Nor does it contain a
percent sign: kube-scheduler takes the text of an event for a format.

The reasons of Events that gpuledger posts itself, and of the condition GPUAllocated, are here as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuledger.model.gang import QuotaLimit


class Reason(StrEnum):
    """The kinds of refusal, in the order in which they are looked for."""

    KUBE_SCHEDULER = "kube-scheduler"
    """kube-scheduler itself has no node for the pod, and asks about none: the text is its own."""
    BAD_REQUEST = "bad-request"
    QUOTA = "quota"
    """The pods of its namespace have what they may have together, or nearly."""
    NO_INVENTORY = "no-inventory"
    AGENT_NOT_READY = "agent-not-ready"
    NODE_NOT_STARTING = "node-not-starting"
    ONLY_WHOLE_GPUS = "only-whole-gpus"
    OTHER_RESOURCE = "other-resource"
    PLUGIN_LIMIT = "plugin-limit"
    CLAIM_ELSEWHERE = "claim-elsewhere"
    """A ResourceClaim that the pod shares with others is allocated on another node."""
    TOO_FEW_CARDS = "too-few-cards"
    NOT_WANTED = "not-wanted"
    CARD_TOO_SMALL = "card-too-small"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    UNACCOUNTED = "unaccounted"
    GANG = "gang"
    NO_GPU_LEFT = "no-gpu-left"
    NO_WHOLE_CARD = "no-whole-card"
    NO_MEMORY = "no-memory"
    NO_CORES = "no-cores"
    NO_SLOT = "no-slot"
    NO_COMBINATION = "no-combination"
    NUMA = "numa"
    CONSTRAINT = "constraint"
    """Of a ResourceClaim: cards that match, or that differ."""
    CONTAINERS_TOGETHER = "containers-together"
    PREEMPTING = "preempting"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason with the text that a person reads in the pod's FailedScheduling event."""

    reason: Reason
    text: str
    limit: QuotaLimit | None = None
    """The limit of the pod's namespace that is in the way, if one is."""


BEING_FREED = Refusal(Reason.PREEMPTING, "cards are being freed for the pod: others have to leave them first")
"""Of the node on which room is promised to the pod."""

NEEDS_ROOM = frozenset(
    {
        Reason.NO_WHOLE_CARD,
        Reason.NO_MEMORY,
        Reason.NO_CORES,
        Reason.NO_SLOT,
        Reason.NO_COMBINATION,
        Reason.NUMA,
        Reason.CONSTRAINT,
        Reason.CONTAINERS_TOGETHER,
        Reason.PREEMPTING,
    }
)
"""The reasons that can end when other pods leave."""


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
