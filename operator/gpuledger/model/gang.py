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
