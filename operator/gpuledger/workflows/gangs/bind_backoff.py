"""Pauses after binds of a gang that have failed: whatever refuses them, others go first."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from gpuledger.workflows.gangs.gang_state import GangState

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 16.0


class BindBackoff:
    """Gangs that are not tried for a while: twice as long with each failure in a row. Times are of one clock."""

    def __init__(self) -> None:
        # gang -> how long the pause is, and its end
        self._failed: WeakKeyDictionary[GangState, tuple[float, float]] = WeakKeyDictionary()

    def failed(self, state: GangState, now_s: float) -> None:
        """Record that a gang's Binds have failed. All fail at once: those within the pause are not counted again."""
        last = self._failed.get(state)
        if last is None or last[1] <= now_s:
            pause_s = min(2 * last[0], LONGEST_PAUSE_S) if last else FIRST_PAUSE_S
            self._failed[state] = (pause_s, now_s + pause_s)

    def left_s(self, state: GangState, now_s: float) -> float:
        """Return how long a gang still has to wait, in seconds."""
        last = self._failed.get(state)
        return max(0.0, last[1] - now_s) if last else 0.0

    def next_s(self, now_s: float) -> float | None:
        """Return when the next pause ends, None if there is none."""
        return min((until_s for _, until_s in self._failed.values() if until_s > now_s), default=None)

    def forget(self, state: GangState) -> None:
        """Record that a gang was bound."""
        self._failed.pop(state, None)
