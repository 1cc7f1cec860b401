"""Turns: a gang that has found cards and lacks something else is tried alone, so that no other takes it meanwhile.

Two gangs that have a part of the CPU each would fail together, and come back together, for ever. Whoever fails wants a
turn. Turns go round by namespace, since names of gangs are free: the namespace that has had none for the longest gets
the next one, and of its gangs the one with the fewest turns so far, then the highest priority, then the oldest.
A turn ends when its gang is bound, when it fails alone, too, or after `TURN_S`. As long as it took, all gangs are tried
again: so a gang that can never start takes half of the time at most, and less with each turn that was of no use.

A turn holds back the other gangs of its namespace, and of other namespaces those that lack something, too: gangs of a
namespace of which none has failed go on. After a turn of no use, those of its namespace hold back no other namespace
for a while, twice as long each time.

Precedence of gangs that are overtaken again and again is given in turns, too: see starvation_guard.py.

Members of a gang whose others are just being created go ahead to Bind. To refuse them would cost two writes and a
back-off for each: kube-scheduler writes down that it found no node, and each has to be woken when the last one is
there. So for a moment, a member gets a place for itself alone, and waits in Bind. For a gang that never is complete
this happens once: what it takes then is what its pods would take without a gang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from gpuledger.model.clock import Clock
from gpuledger.model.gang import GangName
from gpuledger.workflows.gangs.members import GangState
from gpuledger.workflows.tasks import Tasks

TURN_S = 30.0
"""How long a turn takes at most that a gang has for want of something else than cards."""

MOST_TURNS_COUNTED = 5
"""Turns of no use after which a gang or a namespace rests no longer than before: 16 times as long as a turn takes."""

FORGOTTEN_S = 600.0
"""How long after its rest it is forgotten that a namespace has had turns of no use."""

Rank = tuple[int, str]
"""Minus the priority, and the creation of the oldest member."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A time in which one gang goes before others."""

    name: GangName
    rank: Rank
    since_s: float
    most_s: float
    """How long it takes at most."""
    concerns_others: bool = True
    """Whether it holds back gangs of other namespaces, too."""

    @property
    def ends_s(self) -> float:
        """Return when it ends at the latest."""
        return self.since_s + self.most_s


@dataclass(frozen=True, slots=True)
class _Wanted:
    rank: Rank
    most_s: float


@dataclass(slots=True)
class _Record:
    """Turns of no use that a gang or a namespace has had in a row, and until when it rests."""

    number: int = 0
    rests_until_s: float = -inf

    def was_of_no_use(self, most_s: float, now_s: float) -> None:
        self.number = min(self.number + 1, MOST_TURNS_COUNTED)
        self.rests_until_s = now_s + most_s * 2 ** (self.number - 1)


@dataclass(slots=True)
class _Namespace:
    """State of a namespace and of its waiting gangs."""

    wanted: dict[GangName, _Wanted] = field(default_factory=dict)
    gangs: dict[GangName, _Record] = field(default_factory=dict)
    own: _Record = field(default_factory=_Record)
    last_s: float = -inf
    """When it had its last turn."""

    def rests(self, now_s: float) -> bool:
        return self.own.rests_until_s > now_s

    def tidy(self, waits: Callable[[GangName], bool]) -> None:
        """Forget gangs that do not wait any more."""
        for names in (self.wanted, self.gangs):
            for name in [name for name in names if not waits(name)]:
                del names[name]

    def is_over(self, now_s: float) -> bool:
        """Return whether there is nothing to be remembered."""
        return not (self.wanted or self.gangs) and max(self.own.rests_until_s, self.last_s) + FORGOTTEN_S < now_s


class ExclusiveTurns:
    """Whose turn it is. Times are of one clock, in seconds; `waits` tells whether a gang still waits."""

    def __init__(self, waits: Callable[[GangName], bool]) -> None:
        self._waits = waits
        self._turn: Turn | None = None
        self._free_until_s = -inf
        self._namespaces: dict[str, _Namespace] = {}

    def current(self, now_s: float) -> Turn | None:
        """Return the current turn, if any."""
        turn = self._turn
        if turn is not None and not self._waits(turn.name):
            self._end(now_s)
        elif turn is not None and turn.ends_s <= now_s:
            self._was_of_no_use(turn.ends_s)
        if self._turn is None and self._free_until_s <= now_s:
            self._begin(now_s)
        return self._turn

    def holder(self, now_s: float) -> GangName | None:
        """Return the gang whose turn it is, if any."""
        turn = self.current(now_s)
        return turn.name if turn else None

    def holding_back(self, name: GangName, now_s: float) -> Turn | None:
        """Return another gang's turn in which this one is not to be tried, None if there is none."""
        turn = self.current(now_s)
        if turn is None or turn.name == name:
            return None
        is_held_back = name.namespace == turn.name.namespace or (
            turn.concerns_others and self._lacks_something(name.namespace, now_s)
        )
        return turn if is_held_back else None

    def lacks(self, name: GangName, rank: Rank, now_s: float) -> None:
        """Record that a gang has found cards, and could not be bound for want of something else."""
        if self.holder(now_s) == name:
            self._was_of_no_use(now_s)
        else:
            self.wants(name, rank, TURN_S, now_s)

    def wants(self, name: GangName, rank: Rank, most_s: float, now_s: float) -> None:
        """Record that a gang wants a turn of so many seconds at most. Nothing happens if it has one, or rests."""
        turn = self.current(now_s)
        if self.rests(name, now_s) or (turn is not None and turn.name == name):
            return
        self._of(name).wanted[name] = _Wanted(rank, most_s)
        if turn is not None and rank[0] < turn.rank[0]:  # of higher priority
            self._of(turn.name).wanted[turn.name] = _Wanted(turn.rank, turn.most_s)
            self._turn = None
            self._give(name, now_s)
        self.current(now_s)

    def are_over(self, now_s: float) -> bool:
        """Return whether turns are suspended after the last one."""
        return self._turn is None and now_s < self._free_until_s

    def rests(self, name: GangName, now_s: float) -> bool:
        """Return whether a gang gets no turn for a while, as its last one was of no use."""
        known = self._namespaces.get(name.namespace)
        record = known.gangs.get(name) if known else None
        return record is not None and record.rests_until_s > now_s

    def namespace_rests(self, namespace: str, now_s: float) -> bool:
        """Return whether turns of a namespace concern no other one for a while, as its last one was of no use."""
        known = self._namespaces.get(namespace)
        return known is not None and known.rests(now_s)

    def needs_none(self, name: GangName, now_s: float) -> bool:
        """Record that a gang has no use for a turn at present; return whether it had it."""
        if self._turn is None or self._turn.name != name:
            return False
        self._end(now_s)
        return True

    def is_bound(self, name: GangName, now_s: float) -> bool:
        """Record that a gang is there: what was remembered of it is forgotten. Return whether it had the turn."""
        known = self._namespaces.get(name.namespace)
        if known is not None:
            known.wanted.pop(name, None)
            known.gangs.pop(name, None)
        turn = self._turn
        if turn is None or not self.needs_none(name, now_s):
            return False
        if turn.concerns_others:
            self._of(name).own = _Record()
        return True

    def next_s(self) -> float | None:
        """Return when the turn ends, or the next one begins, at the latest; None if no gang wants one."""
        if self._turn is not None:
            return self._turn.ends_s
        return self._free_until_s if any(known.wanted for known in self._namespaces.values()) else None

    def __len__(self) -> int:
        """Return of how many namespaces and gangs something is remembered."""
        return sum(1 + len(known.gangs.keys() | known.wanted.keys()) for known in self._namespaces.values())

    def _of(self, name: GangName) -> _Namespace:
        return self._namespaces.setdefault(name.namespace, _Namespace())

    def _lacks_something(self, namespace: str, now_s: float) -> bool:
        known = self._namespaces.get(namespace)
        return known is not None and (known.rests(now_s) or any(map(self._waits, known.wanted)))

    def _begin(self, now_s: float) -> None:
        for namespace, known in list(self._namespaces.items()):
            known.tidy(self._waits)
            if known.is_over(now_s):
                del self._namespaces[namespace]
        first = min(self._wanting(now_s), default=None)
        if first is not None:
            self._give(first[-1], now_s)

    def _wanting(self, now_s: float) -> Iterator[tuple[bool, float, int, Rank, GangName]]:
        """Yield the gangs that want a turn: the least gets the next one."""
        for known in self._namespaces.values():
            rests = known.rests(now_s)
            for name, wanted in known.wanted.items():
                record = known.gangs.get(name)
                yield rests, known.last_s, record.number if record else 0, wanted.rank, name

    def _give(self, name: GangName, now_s: float) -> None:
        known = self._of(name)
        wanted = known.wanted.pop(name)
        self._turn = Turn(name, wanted.rank, now_s, wanted.most_s, concerns_others=not known.rests(now_s))

    def _was_of_no_use(self, now_s: float) -> None:
        turn = self._turn
        if turn is None:
            return
        known = self._of(turn.name)
        known.gangs.setdefault(turn.name, _Record()).was_of_no_use(turn.most_s, now_s)
        if turn.concerns_others:
            known.own.was_of_no_use(turn.most_s, now_s)
        self._end(now_s)

    def _end(self, now_s: float) -> None:
        if self._turn is not None:
            self._of(self._turn.name).last_s = now_s
            self._free_until_s = now_s + (now_s - self._turn.since_s)
            self._turn = None


QUIET_S = 1.0
"""After so long without a new member, a gang is one that waits for members."""

LONGEST_S = 10.0
"""The longest that members may come one after the other."""


class ArrivalWindow:
    """For which gangs members may go ahead. `over` is called when a gang has not become complete in time."""

    def __init__(self, clock: Clock, tasks: Tasks, over: Callable[[GangState], None]) -> None:
        self._clock, self._tasks = clock, tasks
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
        """Record that members were let through, but their gang did not become complete."""
        state.first_s = float("-inf")

    def _left_s(self, state: GangState) -> float:
        if state.first_s is None or state.newest_s is None:
            return 0.0
        return min(state.newest_s + QUIET_S, state.first_s + LONGEST_S) - self._clock.now_s()

    def _look_in(self, state: GangState, wait_s: float) -> None:
        self._timers[id(state)] = self._tasks.after(wait_s, self._look, state)

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
