"""How much of its budgets a namespace has spent, and when the next step of that comes. Pure.

What has ended is in records, or still on the list of its card; what runs goes on to spend, at a rate that changes only
as shares come and go. So it is known in advance when a budget will be spent, and nobody has to look until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from gpuledger.model.gang import dashed
from gpuledger.model.usage import MILLION, MS_PER_HOUR, Budget

STEPS: Final = 20
"""Of a budget, in which it is shown how much of it is spent: so many writes in its period, however long it takes."""

WARNED_AT: Final = 0.8
"""Part of a budget at which its namespace is told."""

MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Piece:
    """The time of a share that is in no record, as far as is known."""

    namespace: str
    key: str
    """As in EndedShare."""
    model: str
    since: datetime
    until: datetime | None
    """None: it runs."""
    part: int
    """Millionths of the card."""

    def held_ms(self, begin: datetime, end: datetime) -> int:
        """Return the milliseconds of a card that it has between two moments; `end` is not in the future."""
        until = end if self.until is None else min(self.until, end)
        return max(0, self.part * ((until - max(self.since, begin)) // MILLISECOND) // MILLION)


RecordedTime = Mapping[tuple[str, str], int]
"""Day and model -> milliseconds of a card, of what is in records."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What is spent of a budget at a moment."""

    budget: Budget
    spent_ms: int
    cards: float
    """How many cards are held that it pays for, parts of them together: the rate."""
    now: datetime
    end: date
    """The first day of its next period."""

    @property
    def most_ms(self) -> int:
        """Return how much there is in all."""
        return self.budget.card_hours * MS_PER_HOUR

    @property
    def is_spent(self) -> bool:
        """Return whether nothing is left."""
        return self.spent_ms >= self.most_ms

    @property
    def is_low(self) -> bool:
        """Return whether its namespace is to be told."""
        return self.spent_ms >= WARNED_AT * self.most_ms

    @property
    def hours_shown(self) -> int:
        """Return the whole card hours that are shown: of the last step that is reached, or all of a spent one."""
        if self.is_spent:
            return max(self.budget.card_hours, self.spent_ms // MS_PER_HOUR // self._step * self._step)
        return min(self.spent_ms // MS_PER_HOUR // self._step * self._step, self.budget.card_hours)

    @property
    def _step(self) -> int:
        return max(1, self.budget.card_hours // STEPS)

    def changes_in_s(self) -> float:
        """Return after how many seconds something that is shown or decided changes, if no share comes or goes."""
        over_s = (datetime.combine(self.end, time(), UTC) - self.now).total_seconds()
        if not self.cards:
            return over_s
        next_shown_ms = (self.spent_ms // MS_PER_HOUR // self._step + 1) * self._step * MS_PER_HOUR
        ahead = [each for each in (next_shown_ms, WARNED_AT * self.most_ms, self.most_ms) if each > self.spent_ms]
        return min(over_s, (min(ahead) - self.spent_ms) / 1000 / self.cards)


def spending(budget: Budget, now: datetime, recorded: RecordedTime, pieces: Iterable[Piece]) -> Spending:
    """Return what is spent of a budget: by records of what has ended since its period began, and by what is in none."""
    today = now.date()
    first, end = budget.period.begin(today), budget.period.end(today)
    begin, spent_ms, cards = datetime.combine(first, time(), UTC), 0, 0
    for (day, model), held_ms in recorded.items():
        if day >= first.isoformat() and _counts(budget, model):
            spent_ms += held_ms
    for piece in pieces:
        if _counts(budget, piece.model):
            spent_ms += piece.held_ms(begin, now)
            cards += piece.part if piece.until is None else 0
    return Spending(budget, spent_ms, cards / MILLION, now, end)


def _counts(budget: Budget, model: str) -> bool:
    return budget.model in dashed(model)
