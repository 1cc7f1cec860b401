"""Decides which program evicts pods for others. It can depend on the API server's version, which is known later."""

from __future__ import annotations

from dataclasses import dataclass

ASKS_EXTENDERS = (1, 38)
"""From this version on kube-scheduler asks an extender for victims on nodes that only the extender has refused."""


@dataclass(slots=True)
class PreemptionMode:
    """No program, as long as it is not known."""

    operator: bool = False
    scheduler: bool = False
    """kube-scheduler does, and asks whom."""

    @classmethod
    def by_setting(cls, preemption: str) -> PreemptionMode:
        """Return what the setting says: own, native, off, or auto, which is still to be found out."""
        return cls(operator=preemption == "own", scheduler=preemption == "native")

    def know(self, version: tuple[int, int]) -> None:
        """Observe the API server's version, major and minor."""
        self.scheduler = version >= ASKS_EXTENDERS
        self.operator = not self.scheduler


@dataclass(frozen=True, slots=True)
class PreemptionSettings:
    """Which program evicts, and whether budgets prevent evictions."""

    who: PreemptionMode
    despite_budgets: bool
