"""Turns: a gang that has found cards and lacks something else is tried alone, so that no other takes it meanwhile.

Two gangs that have a part of the CPU each would fail together, and come back together, for ever. Whoever fails wants a
turn; of those that want one, the one with the fewest turns so far gets it, then the highest priority, then the oldest.
A turn ends when its gang is bound, when it fails alone, too, or after `TURN_S`. As long as it took, all gangs are tried
again: so a gang that can never start takes half of the time at most, and less with each turn that was of no use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.model.gang import GangName
from gpuledger.model.latest import Latest

TURN_S = 30.0
"""How long a turn takes at most."""

MOST_TURNS_COUNTED = 5
"""Turns of no use after which a gang rests no longer than before: 16 times as long as a turn takes."""

REMEMBERED = 1_024
"""Gangs that have had turns, or want one."""

Rank = tuple[int, str]
"""Minus the priority, and the creation of the oldest member."""


@dataclass(slots=True)
class _Turn:
    name: GangName
    rank: Rank
    since_s: float

    def ends_s(self) -> float:
        return self.since_s + TURN_S


@dataclass(frozen=True, slots=True)
class _Record:
    """Turns of no use that a gang has had in a row, and until when it gets no other."""

    number: int
    rests_until_s: float


class Turns:
    """Who is tried alone. Times are of one clock, in seconds; `waits` tells whether a gang still waits."""

    def __init__(self, waits: Callable[[GangName], bool]) -> None:
        self._waits = waits
        self._turn: _Turn | None = None
        self._free_until_s = float("-inf")
        self._wanted: Latest[GangName, Rank] = Latest(REMEMBERED)
        self._records: Latest[GangName, _Record] = Latest(REMEMBERED)

    def holder(self, now_s: float) -> GangName | None:
        """Return the gang that is tried alone now, None if all are."""
        turn = self._turn
        if turn is not None and not self._waits(turn.name):
            self._end(now_s)
        elif turn is not None and turn.ends_s() <= now_s:
            self._was_of_no_use(turn.ends_s())
        if self._turn is None and self._free_until_s <= now_s:
            self._begin(now_s)
        return self._turn.name if self._turn else None

    def lacks(self, name: GangName, rank: Rank, now_s: float) -> None:
        """Note that a gang has found cards, and could not be bound for want of something else."""
        holder = self.holder(now_s)
        if holder == name:
            self._was_of_no_use(now_s)
            return
        record = self._records.get(name)
        if record is not None and record.rests_until_s > now_s:
            return
        self._wanted.note(name, rank)
        turn = self._turn
        if turn is not None and rank[0] < turn.rank[0]:  # of higher priority
            self._wanted.note(turn.name, turn.rank)
            self._turn = None
            self._begin(now_s)
        self.holder(now_s)

    def finds_no_cards(self, name: GangName, now_s: float) -> None:
        """Note that a gang has no use for a turn at present: there are no cards for it."""
        if self._turn is not None and self._turn.name == name:
            self._end(now_s)

    def is_bound(self, name: GangName, now_s: float) -> bool:
        """Note that a gang is there: what was remembered of it is forgotten. Return whether it had the turn."""
        self._wanted.drop(name)
        self._records.drop(name)
        if self._turn is None or self._turn.name != name:
            return False
        self._end(now_s)
        return True

    def next_s(self) -> float | None:
        """Return when the turn ends, or the next one begins, at the latest; None if no gang wants one."""
        if self._turn is not None:
            return self._turn.ends_s()
        return self._free_until_s if self._wanted else None

    def _begin(self, now_s: float) -> None:
        for name in [name for name in self._wanted if not self._waits(name)]:
            self._wanted.drop(name)
        if self._wanted:
            name, rank = min(self._wanted.items(), key=self._order)
            self._wanted.drop(name)
            self._turn = _Turn(name, rank, now_s)

    def _order(self, wanted: tuple[GangName, Rank]) -> tuple[int, Rank, GangName]:
        name, rank = wanted
        record = self._records.get(name)
        return record.number if record else 0, rank, name

    def _was_of_no_use(self, now_s: float) -> None:
        turn = self._turn
        if turn is None:
            return
        before = self._records.get(turn.name)
        number = min((before.number if before else 0) + 1, MOST_TURNS_COUNTED)
        self._records.note(turn.name, _Record(number, now_s + TURN_S * 2 ** (number - 1)))
        self._end(now_s)

    def _end(self, now_s: float) -> None:
        if self._turn is not None:
            self._free_until_s = now_s + (now_s - self._turn.since_s)
            self._turn = None
