"""What a run of a plan has shown, whatever kind of chaos it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from chaos.checker import Finding
from chaos.history import Change
from chaos.steps import Step


class Planned(Protocol):
    """What all plans have."""

    @property
    def seed(self) -> int:
        """It decides the plan."""

    @property
    def seconds(self) -> float:
        """How long the chaos lasts."""


AnyPlan = TypeVar("AnyPlan", bound=Planned)


@dataclass(frozen=True)
class Done:
    """A step, and when it was begun, by `time.monotonic`."""

    at_s: float
    step: Step


@dataclass
class Outcome(Generic[AnyPlan]):
    """What a run has shown."""

    plan: AnyPlan
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, int] = field(default_factory=dict)
    checks: int = 0
    chaos_s: float = 0.0
    rest_s: float = 0.0
    begin_s: float = 0.0
    """When the chaos began, by `time.monotonic`."""
    looks: list[tuple[float, list[Finding]]] = field(default_factory=list)
    """What was not yet in order while everything came to rest, by time."""
    changes: list[Change] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    exchanges: list[tuple[float, str, str]] = field(default_factory=list)
    """Time, who saw it, and what was seen: requests by a proxy, containers on a node."""
    logs: dict[str, str] = field(default_factory=dict)
