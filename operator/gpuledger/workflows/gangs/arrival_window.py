"""Gangs whose members are just being created: those that kube-scheduler asks for meanwhile go ahead to Bind.

To refuse them would cost two writes and a back-off for each: kube-scheduler writes down that it found no node, and each
has to be woken when the last one is there. So for a moment, a member gets a place for itself alone, and waits in Bind.
For a gang that never is complete this happens once: what it takes then is what its pods would take without a gang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuledger.model.clock import Clock
from gpuledger.workflows.gangs.gang_state import GangState

QUIET_S = 1.0
"""After so long without a new member, a gang is one that waits for members."""

LONGEST_S = 10.0
"""The longest that members may come one after the other."""


class ArrivalWindow:
    """For which gangs members may go ahead. `over` is called when a gang has not become complete in time."""

    def __init__(self, clock: Clock, over: Callable[[GangState], None]) -> None:
        self._clock = clock
        self._over = over
        self._timers: dict[int, asyncio.TimerHandle] = {}  # identity of the gang's state -> next look

    def comes(self, state: GangState) -> None:
        """Note a new member."""
        now_s = self._clock.now_s()
        state.first_s = now_s if state.first_s is None else state.first_s
        state.newest_s = now_s

    def may_go_ahead(self, state: GangState) -> bool:
        """Return whether a member of an incomplete gang gets a place; have it looked after then."""
        left_s = self._left_s(state)
        if left_s > 0 and id(state) not in self._timers:
            self._look_in(state, left_s)
        return left_s > 0

    def is_open(self, state: GangState) -> bool:
        """Return whether more members may be about to come."""
        return self._left_s(state) > 0

    def ends(self, state: GangState) -> None:
        """Record that members have gone ahead in vain."""
        state.first_s = float("-inf")

    def _left_s(self, state: GangState) -> float:
        if state.first_s is None or state.newest_s is None:
            return 0.0
        return min(state.newest_s + QUIET_S, state.first_s + LONGEST_S) - self._clock.now_s()

    def _look_in(self, state: GangState, wait_s: float) -> None:
        self._timers[id(state)] = asyncio.get_running_loop().call_later(wait_s, self._look, state)

    def _look(self, state: GangState) -> None:
        del self._timers[id(state)]
        if len(state.pending) >= state.missing:
            return
        left_s = self._left_s(state)
        if left_s > 0:
            self._look_in(state, left_s)
        else:
            self.ends(state)
            self._over(state)

    def stop(self) -> None:
        """Look after nobody any more."""
        for timer in self._timers.values():
            timer.cancel()
