"""Keeps what happens to gangs: a record for each thing, and numbers for metrics."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from gpuledger.model.clock import Clock
from gpuledger.model.gang import GangStage, GatherEnd
from gpuledger.reports.history import RecordKind
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.gangs.gang_state import GangState
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.pending.trail import Trail

KINDS = {GangStage.ROOM_FOUND: RecordKind.GANG_PLANNED, GangStage.GATHERING: RecordKind.GANG_GATHERED}


def follow_gangs(
    gangs: Gangs, members: Members, trail: Trail, counts: Counts, clock: Clock, is_active: Callable[[], bool]
) -> None:
    """Have a trail kept of gangs from now on."""
    followed = GangTrail(trail, counts, clock, is_active)
    gangs.on_stage.append(followed.stage)
    gangs.on_given_up.append(followed.given_up)
    gangs.precedence.on_given.append(followed.goes_first)
    members.on_newcomer.append(followed.member_comes)
    members.on_bound.append(followed.member_is_bound)


class GangTrail:
    """A gang that can't start is planned and given up again and again: of that, each thing is said once."""

    def __init__(self, trail: Trail, counts: Counts, clock: Clock, is_active: Callable[[], bool]) -> None:
        self._trail = trail
        self._counts = counts
        self._clock = clock
        self._is_active = is_active
        # When its last missing member was seen.
        self._ready_s: WeakKeyDictionary[GangState, float] = WeakKeyDictionary()
        self._said: WeakKeyDictionary[GangState, set[str]] = WeakKeyDictionary()  # what was said of it since it came

    def member_comes(self, state: GangState) -> None:
        """Note a new member."""
        if len(state.pending) == state.missing > 0:
            self._ready_s[state] = self._clock.now_s()
            self._said.pop(state, None)

    def stage(self, state: GangState, stage: GangStage, text: str) -> None:
        """Record that cards are kept, or entered, for all that are missing."""
        kind = KINDS[stage]
        if self._is_news(state, kind.value):
            self._trail.gang(kind, state.name, text)

    def given_up(self, state: GangState, end: GatherEnd, why: str) -> None:
        """Record that members that stood in Bind are not bound."""
        self._counts.gathers_given_up.labels(end).inc()
        if self._is_news(state, end.value):
            self._trail.gang(RecordKind.GANG_GIVEN_UP, state.name, why)

    def goes_first(self, state: GangState, text: str) -> None:
        """Record that gangs that come after it wait for it."""
        self._counts.gangs_first.inc()
        self._trail.gang(RecordKind.GANG_FIRST, state.name, text)

    def member_is_bound(self, state: GangState) -> None:
        """Note a bound member: with the last one that is needed, the gang runs. Replicas on standby see it, too."""
        ready_s = self._ready_s.get(state)
        if state.missing > 0 or ready_s is None:
            return
        self._ready_s.pop(state, None)
        self._said.pop(state, None)
        if not self._is_active():
            return
        took_s = self._clock.now_s() - ready_s
        self._counts.gang_place_seconds.observe(took_s)
        text = f"{len(state.bound)} members are bound, {took_s:.1f} s after the last that it needs was seen"
        self._trail.gang(RecordKind.GANG_BOUND, state.name, text)

    def _is_news(self, state: GangState, what: str) -> bool:
        said = self._said.setdefault(state, set())
        if what in said:
            return False
        said.add(what)
        return True
