"""Groups and limits of pods: gangs, which are bound together or not at all, workloads, and quotas of namespaces."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from gpuledger.model.card import Amounts, Card

MOST_MEMBERS = 256
"""That a gang can wait for: so many pods are planned in one answer."""


class GangWay(StrEnum):
    """How a pod names its gang. formats/kubernetes/gang.py has where."""

    LABELS = "labels"
    """By two labels of ours, one of which says how many members it needs."""
    LIGHTWEIGHT = "lightweight"
    """The same by labels that others have. All further ways name an object, mostly a PodGroup, which says so."""
    KUBERNETES = "kubernetes"
    COSCHEDULING = "coscheduling"
    KOORDINATOR = "koordinator"
    VOLCANO = "volcano"
    JOB_SET = "jobset"
    """By our label with the name alone, on pods of a JobSet."""


class GangName(NamedTuple):
    """Which gang: pods of one namespace that name the same, in the same way."""

    namespace: str
    name: str
    way: GangWay = GangWay.LABELS

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WorkloadName(NamedTuple):
    """Which of Kueue's workloads."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ReservationName(NamedTuple):
    """Which GPUReservation."""

    namespace: str
    name: str
    kind: str = "reservation"
    """Tells it from a workload of the same name: tuples of equal parts are equal."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


SeatGroup = GangName | WorkloadName | ReservationName
"""Pods for which room is kept together."""


class GroupSeat(NamedTuple):
    """A place that is kept for a pod of a group before that pod exists."""

    group: SeatGroup
    member: str
    """Which one: unique within the group."""

    def __str__(self) -> str:
        """Return the name to show where other seats have that of a pod."""
        return f"{self.group} ({_WHY_KEPT[type(self.group)]})"


_WHY_KEPT: dict[type[SeatGroup], str] = {
    GangName: "kept for a member",
    WorkloadName: "reserved for a pod of this workload",
    ReservationName: "a reservation",
}

SeatKey = str | GroupSeat
"""Whose seat: a pod's UID, or a pod that is to come."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod's gang, as the pod says."""

    name: GangName
    minimum: int
    """How many members have to be bound at once; 0 where a PodGroup says it."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The content of the object that a gang is named after."""

    minimum: int
    """How many members have to be bound at once; 0: each pod is placed by itself."""
    leaves_whole: bool = False
    """Whether its pods are of use only together: an eviction of one evicts all."""
    priority_class: str = ""
    """The priority that it states, empty if it states none."""
    problem: str = ""
    """Why its pods can't be placed: it does not exist, or says what can't be had."""


class GangStage(StrEnum):
    """How far a gang has come on its way to cards."""

    INCOMPLETE = "incomplete"
    """Fewer members have been created than it needs."""
    WAITING = "waiting"
    """Its members do not find cards at once."""
    OTHERS_TURN = "others-turn"
    """Another gang is tried alone."""
    HELD_BACK = "held-back"
    """A gang that comes before it goes first."""
    ROOM_FOUND = "room-found"
    """Cards are kept for all that it needs."""
    GATHERING = "gathering"
    """Members stand in Bind."""
    RUNNING = "running"
    """As many are bound as it needs."""


class GatherEnd(StrEnum):
    """Why members that stood in Bind, or had entered their shares, gave it up."""

    LATE = "late"
    """The others did not come in time: kube-scheduler has not found CPU, memory or volumes for them."""
    INCOMPLETE = "incomplete"
    """Members were asked for while others were being created, and too few were."""
    NO_CARDS = "no-cards"
    """Others' places in the plan were not offered, and no other cards were found."""
    GONE = "gone"
    """A member was deleted."""
    REFUSED = "refused"
    """A share was refused, or could not be entered."""
    DISPLACED = "displaced"
    """A pod of higher priority has taken over cards that were kept for them."""
    STOPPED = "stopped"
    """The operator ends."""


class Counted(StrEnum):
    """The amount of every share that a limit counts: its name."""

    MEMORY = "memory_mib"
    CORES = "cores"
    """Percent of one card."""
    SLOTS = "number"
    """A whole card is one, and so is each part of one."""

    def of(self, amounts: Amounts) -> int:
        """Return how much that is of a share's amounts."""
        found: int = getattr(amounts, self)
        return found


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """A limit, as a ResourceQuota states it."""

    quota: str
    """The ResourceQuota's name."""
    key: str
    """The key of its `spec.hard`."""
    counted: Counted
    most: int
    vendor: str
    """Empty: of all vendors."""
    model: str = ""
    """Only shares of cards whose model has this in its name, compared without case and with dashes for spaces; empty:
    of all of the vendor."""
    unit: int = 1
    """How many MiB, percent or slots one of the key's numbers is."""
    spent: str = ""
    """Of a budget that is spent, as a sentence says it: the namespace gets nothing more until its period is over."""

    def refuses(self, whose: str) -> str:
        """Return the beginning of a sentence that says what is in the way."""
        return f"{whose}'s budget does not allow it" if self.spent else f"{whose}'s quota does not allow it"

    def as_stated(self, amount: int) -> int:
        """Return an amount in the key's own numbers, rounded up."""
        return -(-amount // self.unit)

    def counts(self, vendor: str, model: str) -> bool:
        """Return whether shares of cards of this kind count."""
        return self.vendor in ("", vendor) and (not self.model or dashed(self.model) in dashed(model))


Kind = tuple[str, str]
"""A card's vendor and model."""


def kind_of(card: Card) -> Kind:
    """Return a card's kind."""
    return card.vendor, card.model


@lru_cache(1_024)
def dashed(model: str) -> str:
    """Return a model's name in small letters, with a dash for whatever a key of a ResourceQuota can't have."""
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in model.lower())
