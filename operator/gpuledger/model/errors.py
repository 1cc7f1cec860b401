"""Errors, in one tree, and the reasons why a node refuses a pod.

GpuledgerError
├── BadInput            a person's or another program's input can't be read; the text says what to do
├── NotReady            the operator has not read the ledger yet; kube-scheduler asks again
├── ShareRefused        the ledger does not enter a share: its card has no room for it, is gone, or takes no pods
│   └── QuotaExceeded   with it, the pods of a namespace would have more than a ResourceQuota of it allows
├── BindFailed          a pod can't be bound now; the text goes into its event
│   ├── BindAbandoned   kube-scheduler does not wait for its Binding any more
│   └── GangIncomplete  other members of its gang can't be bound
├── BindInProgress      an earlier attempt to bind the pod is not over, so the pod can't be placed anew
├── WorkLimitExceeded   an answer takes more work than one question may cost; asked again, there is less left to do
├── DriverGone          the node agent can't talk to the driver of its cards (agent/devices/source.py)
├── StartRefused        a container must not start on a node; the text goes into its pod's events
├── StateRolledBack     the API server has less than it had: its data comes from an older copy
├── Busy                others' reports are being made; asked again soon, there is time (controller/web/reports.py)
├── NotKnownYet         what a container needs to start is not known yet; asked again soon, it may be
└── ApiError            the API server said no, or said nothing
    ├── NotFound        404
    │   └── Replaced    the write is for an object of another UID than the one that has the name by now
    ├── Conflict        409
    ├── Invalid         422: for the ledger, a share that does not fit or a stale total
    ├── Denied          401, 403
    ├── AnswerTooLong   200, and more of it than was allowed
    ├── EvictionForbidden  429 to an eviction: a PodDisruptionBudget forbids it now
    └── Unreachable     429, 5xx, no answer: the request may have been carried out

Refusals are a fixed set of reasons, which kube-scheduler shows in the pod's event. A text never contains a live number,
such as what is free now: kube-scheduler patches the pod and writes a new event whenever its message changes. Numbers of
the request itself are constant, so they may appear. Nor does it contain a percent sign: kube-scheduler takes the text
of an event for a format.

The reasons of Events that gpuledger posts itself, and of the condition GPUAllocated, are here as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple

from gpuledger.model.card import NOTHING, Amounts, Card
from gpuledger.model.gang import QuotaLimit


class GpuledgerError(Exception):
    """Any error of this project."""


class BadInput(GpuledgerError):  # noqa: N818 - reads as what it is
    """Input that can't be understood. `str()` says what is wrong, where, and what to do."""


class NotReady(GpuledgerError):  # noqa: N818
    """The operator has not read the ledger yet."""


class ShareRefused(GpuledgerError):  # noqa: N818
    """A share that the ledger does not enter: its card has no room for it, is gone, or takes no pods."""


class QuotaExceeded(ShareRefused):
    """A share with which the pods of a namespace would have more than its quota allows."""

    def __init__(self, limit: QuotaLimit) -> None:
        self.limit = limit
        super().__init__(f"{limit.refuses('the namespace')}: {limit.key} of ResourceQuota {limit.quota}")


class BindFailed(GpuledgerError):  # noqa: N818
    """A pod that can't be bound to the node now."""


class BindAbandoned(BindFailed):
    """kube-scheduler does not wait for a pod's Binding any more; that says nothing of the pod or its node."""


class GangIncomplete(BindFailed):
    """Other members of a pod's gang can't be bound with it now; that says nothing of the pod or its node."""


class BindInProgress(GpuledgerError):  # noqa: N818
    """An earlier attempt to bind the pod is not over: a Binding is on its way, or its shares are being given back."""


class WorkLimitExceeded(GpuledgerError):  # noqa: N818
    """An answer takes more work than one question may cost; what was done is kept, so asking again leads on."""


class StartRefused(GpuledgerError):  # noqa: N818
    """A container that must not start. `str()` says why, and what to do."""


class NotKnownYet(GpuledgerError):  # noqa: N818
    """Something that has to be known before a container starts, and may be in a moment."""


class StateRolledBack(GpuledgerError):  # noqa: N818
    """An object that is older than it was. An operator that went on from memory would write what never happened."""


class ApiError(GpuledgerError):
    """The API server refused a request. `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class AnswerTooLong(ApiError):  # noqa: N818
    """The API server's answer is longer than was allowed; less can be asked for."""


class NotFound(ApiError):  # noqa: N818
    """There is no such object."""


class Replaced(NotFound):
    """The object of this UID is gone: another one has its name."""


class Conflict(ApiError):  # noqa: N818
    """The object is not in the state that the request presumes."""


class Invalid(ApiError):  # noqa: N818
    """The object would break a rule of its schema."""


class Denied(ApiError):  # noqa: N818
    """The account may not do this."""


class EvictionForbidden(ApiError):  # noqa: N818
    """A PodDisruptionBudget forbids an eviction now."""


class Unreachable(ApiError):  # noqa: N818
    """No answer, or one that says "later". The request may have been carried out all the same."""


ALIKE = 0.6
"""Similarity, of 1, from which on a word is taken for a misspelling of another."""

LONGEST_WORD = 96
"""Of longer ones, no near one is looked for: that takes time with the square of their length."""


def nearest(word: str, known: Iterable[str], alike: float = ALIKE) -> str:
    """Return the known word that a word is most likely a misspelling of; empty if there is none."""
    found = get_close_matches(word, list(known), n=1, cutoff=alike) if len(word) <= LONGEST_WORD else ()
    return found[0] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return what to append to a sentence about an unknown word: ": did you mean binpack?"; empty if none is near."""
    near = nearest(word, known)
    return f": did you mean {near}?" if near else ""


class Reason(StrEnum):
    """The kinds of refusal, in the order in which they are looked for."""

    KUBE_SCHEDULER = "kube-scheduler"
    """kube-scheduler itself has no node for the pod, and asks about none: the text is its own."""
    BAD_REQUEST = "bad-request"
    QUOTA = "quota"
    """The pods of its namespace have what they may have together, or nearly."""
    BUDGET = "budget"
    """The card hours that the pods of its namespace may have in this day, week or month are spent."""
    NO_INVENTORY = "no-inventory"
    AGENT_NOT_READY = "agent-not-ready"
    NODE_NOT_STARTING = "node-not-starting"
    NODE_ARRIVING = "node-arriving"
    """The node has come for pods that wait, and takes some as soon as its stand-in is gone."""
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


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Whether a card takes one container as it is now; if not, the first reason why."""

    card: Card
    reason: Reason | None
    """None if it takes the container."""
    text: str
    short: Amounts = NOTHING
    """How much more would have to be free, or there at all; never negative."""
    by: tuple[str, ...] = ()
    """The pods that hold the lacking amounts, the largest first: UIDs, and in a report for people their names."""

    @property
    def shortage(self) -> tuple[int, int, int]:
        """Sort key: less of memory is nearer to enough, then less of cores."""
        return self.short.memory_mib, self.short.cores, self.short.number


class SchedulerReason(NamedTuple):
    """Why kube-scheduler itself does not take a node for a pod, whatever its cards."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Whether a node takes a pod as it is now; if not, why, and what would change that."""

    name: str
    refusal: Refusal | None
    """None if its cards take the pod."""
    remedy: str = ""
    """The change that would make the pod fit; empty if it does."""
    cards: tuple[CardVerdict, ...] = ()
    """By index. None of them, too, where there are many nodes that are nearer to taking the pod."""
    container: int = 0
    """Position in the pod's request of the container that the cards were compared with."""
    offered: bool | None = None
    """Whether kube-scheduler would let the pod go there, as of its last try; None if it has not said."""
    would_have_to_leave: tuple[str, ...] = ()
    """The pods without which it would fit, namespace/name: one way of several. Nothing says that they do leave."""
    scheduler: SchedulerReason | None = None
    """Why it is not offered; None where it is, or where that is not known."""

    @property
    def reason(self) -> Reason | None:
        """Return why its cards do not take the pod; None if they do."""
        return self.refusal.reason if self.refusal else None

    @property
    def refused_by_scheduler(self) -> bool:
        """Return whether kube-scheduler does not let the pod go there."""
        return self.offered is False


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

ROOM_IS_NO_HELP = frozenset(
    {
        Reason.BAD_REQUEST,
        Reason.QUOTA,
        Reason.BUDGET,
        Reason.NO_INVENTORY,
        Reason.ONLY_WHOLE_GPUS,
        Reason.OTHER_RESOURCE,
        Reason.PLUGIN_LIMIT,
        Reason.CLAIM_ELSEWHERE,
        Reason.TOO_FEW_CARDS,
        Reason.NOT_WANTED,
        Reason.CARD_TOO_SMALL,
    }
)
"""The reasons that no other pod and no repaired card can end: the pod has to change, or its quota, or the node."""


class EventReason(StrEnum):
    """The reason of an Event. docs/reference/names.md lists them for users."""

    BAD_INVENTORY = "BadGPUInventory"
    """On a node: its list of cards can't be read, or contradicts the ledger."""
    USED_WITHOUT_SHARE = "GPUUsedWithoutShare"
    """On a node: processes of a pod use a card of which the pod holds no share."""
    SHARES_NOT_ENFORCED = "GPUSharesNotEnforced"
    """On a node: nothing keeps containers to their shares, and the settings do not say that this is meant."""
    MPS_FAULT = "MPSFault"
    """On a node: an MPS daemon, or its server, has lost the programs that used a card by it."""
    UNHEALTHY = "GPUUnhealthy"
    """On a pod: a card that it holds has a fault."""
    EVICTED_FROM_CARD = "GPUFailureEviction"
    """On a pod: it is evicted, because a card that it holds has failed."""
    STAYS_ON_CARD = "GPUFailureEvictionHeld"
    """On a pod: a card that it holds has failed, and why it is not evicted."""
    IDLE = "GPUIdle"
    """On a pod: its shares of GPUs have not been used for long, and what becomes of it."""
    EVICTED_FOR_IDLENESS = "GPUIdleEviction"
    """On a pod: it is evicted, because its shares of GPUs have not been used for too long."""
    STAYS_IDLE = "GPUIdleEvictionHeld"
    """On a pod: the same, and why it is not evicted."""
    BUDGET_LOW = "GPUBudgetLow"
    """On a ResourceQuota: most of a budget of it is spent."""
    BUDGET_SPENT = "GPUBudgetSpent"
    """On a ResourceQuota: a budget of it is spent, and new pods get no cards."""
    EVICTED_FOR_BUDGET = "GPUBudgetEviction"
    """On a pod: it is evicted, because its namespace's budget is spent."""
    STAYS_BEYOND_BUDGET = "GPUBudgetEvictionHeld"
    """On a pod: the same, and why it is not evicted."""
    EVICTED_FOR_OLDER = "GPUConflictEviction"
    """On a pod: it is evicted from a card on which there is no room for all pods that use it."""
    STAYS_BESIDE_OLDER = "GPUConflictEvictionHeld"
    """On a pod: the same, and why it is not evicted."""
    HEALTHY = "GPUHealthy"
    """On a pod: a card that it holds works again."""
    WAITING = "GPUWaiting"
    """On a pod: it has been pending for a while, and why."""
    WORDS_WITHOUT_EFFECT = "GPUWordsWithoutEffect"
    """On a pod: something that it says of GPUs has no effect."""
    NOT_ADMITTED = "GPUPodNotAdmitted"
    """On a pod that has failed: its kubelet found no device plugin, as after a restart of the node."""
    NOT_IN_LEDGER = "GPUNotInLedger"
    """On a bound pod: the ledger has no cards for it."""
    PREEMPTING = "Preempting"
    """On a pending pod: other pods are evicted for it."""
    PREEMPTED = "Preempted"
    """On a pod: it is evicted for another one."""
    PREEMPTION_FORBIDDEN = "PreemptionForbidden"
    """On a pending pod: the pods that would have to leave are protected by PodDisruptionBudgets."""
    NODES_NOT_COMING = "GPUNodesNotComing"
    """On a pending pod: nodes were asked for it, and did not come in time."""
    PREEMPTION_GIVEN_UP = "PreemptionGivenUp"
    """On a pending pod: a preemption for it has ended without cards."""


ASSIGNED = "Assigned"
"""Reason of the condition GPUAllocated where it is true. Where it is false, the reason is a refusal's: `Reason`."""
