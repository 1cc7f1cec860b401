"""Pods that are bound together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

MOST_MEMBERS = 256
"""That a gang can wait for: so many pods are planned in one answer."""


class GangName(NamedTuple):
    """Which gang: pods of one namespace that name the same."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod's gang, as the pod says."""

    name: GangName
    minimum: int
    """How many members have to be bound at once."""


class GangStage(StrEnum):
    """How far a gang has come on its way to cards."""

    INCOMPLETE = "incomplete"
    """Fewer members have been created than it needs."""
    WAITING = "waiting"
    """Its members do not find cards at once."""
    OTHERS_TURN = "others-turn"
    """Another gang is tried alone."""
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
    NO_CARDS = "no-cards"
    """Others' places in the plan were not offered, and no other cards were found."""
    GONE = "gone"
    """A member was deleted."""
    REFUSED = "refused"
    """A share was refused, or could not be entered."""
    STOPPED = "stopped"
    """The operator ends."""
