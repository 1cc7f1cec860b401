"""Turns: a gang that has found cards and lacks something else is tried alone, so that no other takes it meanwhile.

Two gangs that have a part of the CPU each would fail together, and come back together, for ever. Whoever fails wants a
turn; of those that want one, the one with the fewest turns so far gets it, then the highest priority, then the oldest.
A turn ends when its gang is bound, when it fails alone, too, or after `TURN_S`. As long as it took, all gangs are tried
again: so a gang that can never start takes half of the time at most, and less with each turn that was of no use.

Precedence of gangs that are overtaken again and again is given in turns, too: see precedence.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.model.gang import GangName
from gpuledger.model.latest import Latest

TURN_S = 30.0
"""How long a turn takes at most that a gang has for want of something else than cards."""

MOST_TURNS_COUNTED = 5
"""Turns of no use after which a gang rests no longer than before: 16 times as long as a turn takes."""

REMEMBERED = 1_024
"""Gangs that have had turns, or want one."""

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

    @property
    def ends_s(self) -> float:
        """Return when it ends at the latest."""
        return self.since_s + self.most_s


@dataclass(frozen=True, slots=True)
class _Wanted:
    rank: Rank
    most_s: float


@dataclass(frozen=True, slots=True)
class _Record:
    """Turns of no use that a gang has had in a row, and until when it gets no other."""

    number: int
    rests_until_s: float


class Turns:
    """Whose turn it is. Times are of one clock, in seconds; `waits` tells whether a gang still waits."""

    def __init__(self, waits: Callable[[GangName], bool]) -> None:
        self._waits = waits
        self._turn: Turn | None = None
        self._free_until_s = float("-inf")
        self._wanted: Latest[GangName, _Wanted] = Latest(REMEMBERED)
        self._records: Latest[GangName, _Record] = Latest(REMEMBERED)

    def current(self, now_s: float) -> Turn | None:
        """Return the turn of now, None if nobody has one."""
        turn = self._turn
        if turn is not None and not self._waits(turn.name):
            self._end(now_s)
        elif turn is not None and turn.ends_s <= now_s:
            self._was_of_no_use(turn.ends_s)
        if self._turn is None and self._free_until_s <= now_s:
            self._begin(now_s)
        return self._turn

    def holder(self, now_s: float) -> GangName | None:
        """Return the gang whose turn it is, None if it is nobody's."""
        turn = self.current(now_s)
        return turn.name if turn else None

    def lacks(self, name: GangName, rank: Rank, now_s: float) -> None:
        """Note that a gang has found cards, and could not be bound for want of something else."""
        if self.holder(now_s) == name:
            self._was_of_no_use(now_s)
        else:
            self.wants(name, rank, TURN_S, now_s)

    def wants(self, name: GangName, rank: Rank, most_s: float, now_s: float) -> None:
        """Note that a gang wants a turn of so many seconds at most. Nothing happens if it has one, or rests."""
        turn = self.current(now_s)
        if self.rests(name, now_s) or (turn is not None and turn.name == name):
            return
        self._wanted.note(name, _Wanted(rank, most_s))
        if turn is not None and rank[0] < turn.rank[0]:  # of higher priority
            self._wanted.note(turn.name, _Wanted(turn.rank, turn.most_s))
            self._turn = None
            self._begin(now_s)
        self.current(now_s)

    def are_over(self, now_s: float) -> bool:
        """Tell whether nobody gets a turn for a while, as one has just ended."""
        return self._turn is None and now_s < self._free_until_s

    def rests(self, name: GangName, now_s: float) -> bool:
        """Tell whether a gang gets no turn for a while, as its last one was of no use."""
        record = self._records.get(name)
        return record is not None and record.rests_until_s > now_s

    def needs_none(self, name: GangName, now_s: float) -> bool:
        """Note that a gang has no use for a turn at present; return whether it had it."""
        if self._turn is None or self._turn.name != name:
            return False
        self._end(now_s)
        return True

    def is_bound(self, name: GangName, now_s: float) -> bool:
        """Note that a gang is there: what was remembered of it is forgotten. Return whether it had the turn."""
        self._wanted.drop(name)
        self._records.drop(name)
        return self.needs_none(name, now_s)

    def next_s(self) -> float | None:
        """Return when the turn ends, or the next one begins, at the latest; None if no gang wants one."""
        if self._turn is not None:
            return self._turn.ends_s
        return self._free_until_s if self._wanted else None

    def _begin(self, now_s: float) -> None:
        for name in [name for name in self._wanted if not self._waits(name)]:
            self._wanted.drop(name)
        if self._wanted:
            name, wanted = min(self._wanted.items(), key=self._order)
            self._wanted.drop(name)
            self._turn = Turn(name, wanted.rank, now_s, wanted.most_s)

    def _order(self, wanting: tuple[GangName, _Wanted]) -> tuple[int, Rank, GangName]:
        name, wanted = wanting
        record = self._records.get(name)
        return record.number if record else 0, wanted.rank, name

    def _was_of_no_use(self, now_s: float) -> None:
        turn = self._turn
        if turn is None:
            return
        before = self._records.get(turn.name)
        number = min((before.number if before else 0) + 1, MOST_TURNS_COUNTED)
        self._records.note(turn.name, _Record(number, now_s + turn.most_s * 2 ** (number - 1)))
        self._end(now_s)

    def _end(self, now_s: float) -> None:
        if self._turn is not None:
            self._free_until_s = now_s + (now_s - self._turn.since_s)
            self._turn = None
