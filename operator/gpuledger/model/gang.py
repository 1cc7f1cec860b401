"""Pods that are bound together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
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
