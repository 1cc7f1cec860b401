"""Pods that are bound together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

MOST_MEMBERS = 256
"""That a gang can wait for: so many pods are planned in one answer."""


class GangWay(StrEnum):
    """How a pod names its gang. formats/objects/gang.py has where."""

    LABELS = "labels"
    """By two labels of ours, one of which says how many members it needs."""
    LIGHTWEIGHT = "lightweight"
    """The same by labels that others have. All further ways name a PodGroup, which says so."""
    KUBERNETES = "kubernetes"
    COSCHEDULING = "coscheduling"
    KOORDINATOR = "koordinator"
    VOLCANO = "volcano"


class GangName(NamedTuple):
    """Which gang: pods of one namespace that name the same, in the same way."""

    namespace: str
    name: str
    way: GangWay = GangWay.LABELS

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod's gang, as the pod says."""

    name: GangName
    minimum: int
    """How many members have to be bound at once; 0 where a PodGroup says it."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """What an object says of the gang that is named after it."""

    minimum: int
    """How many members have to be bound at once; 0: each pod is placed by itself."""
    leaves_whole: bool = False
    """Whether its pods are of use only together: who evicts one evicts all."""
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
    STOPPED = "stopped"
    """The operator ends."""
