"""The account of shares: who held which part of a card, for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final

MILLION: Final = 1_000_000
"""Parts of a card that an account counts."""

MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Charge:
    """To whom, within its namespace, the time of a pod's shares is charged. Users write all of it but the time."""

    owner: str = ""
    """The object that has made the pod, such as Deployment/chat; empty for a pod by itself."""
    queue: str = ""
    """Kueue's ClusterQueue, or the LocalQueue where only that is known; empty without one."""
    priority_class: str = ""
    created: str = ""
    """When the pod was created, RFC 3339; empty if that is not known, as it is not from the ledger."""


NO_CHARGE: Final = Charge()


@dataclass(frozen=True, slots=True)
class EndedShare:
    """A share whose time is over, as its card lists it until it is in its namespace's record."""

    key: str
    """Unique: the attempt that entered the share, and the pod's UID."""
    namespace: str
    charge: Charge
    since: datetime
    until: datetime
    part: int
    """Millionths of the card: the larger of its memory's and its cores' part; all of it for a pod that has it alone."""
    memory_mib: int
    cores: int
    """Percent of the card."""
    waited_s: int = 0
    """From the pod's creation until it had the share; of a pod on several cards, at the first of them alone."""
    idle_s: int = 0
    """For how long of that nothing computed with it, as far as its node's agent could tell."""
    wasted_ms: int = 0
    """Milliseconds of a card: its part of what was left of the card meanwhile and of use to nobody. See Wasted."""


@dataclass(frozen=True, slots=True)
class Wasted:
    """What has been wasted of a card: what is left of it while it has no slot, no memory or no cores left for others.

    Of this sum each holder has its part of the card. It notes what the sum is when its time begins, and has its part of
    what was added when it ends: so holders come and go, and each is told of its own time alone.
    """

    until: datetime
    card_ms: int
    """Milliseconds of a card until then, for a holder that has all of the card."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """What the entries of a record are told apart by."""

    day: str
    """Of UTC, YYYY-MM-DD: the one in which the share was held."""
    model: str = ""
    node: str = ""
    queue: str = ""
    owner: str = ""
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """How much was held, in sums that can be added up."""

    card_ms: int = 0
    """Milliseconds of a card: half a card for a second is 500."""
    memory_mib_s: int = 0
    core_percent_s: int = 0
    shares: int = 0
    """Shares that began."""
    waited_s: int = 0
    idle_card_ms: int = 0
    """Milliseconds of a card that were held and idle."""
    wasted_card_ms: int = 0
    """Milliseconds of a card that were left beside what was held, and of use to nobody."""

    def __add__(self, other: Held) -> Held:
        return Held(
            self.card_ms + other.card_ms,
            self.memory_mib_s + other.memory_mib_s,
            self.core_percent_s + other.core_percent_s,
            self.shares + other.shares,
            self.waited_s + other.waited_s,
            self.idle_card_ms + other.idle_card_ms,
            self.wasted_card_ms + other.wasted_card_ms,
        )


def total_of(record: Mapping[Line, Held]) -> Held:
    """Return the sum over the lines of a record."""
    return sum(record.values(), Held())


class Period(StrEnum):
    """For how long a budget is."""

    DAY = "day"
    WEEK = "week"
    """From Monday on."""
    MONTH = "month"
    """Of the calendar."""

    def begin(self, day: date) -> date:
        """Return the first day of the period that a day is in."""
        if self is Period.WEEK:
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self is Period.MONTH else day

    def end(self, day: date) -> date:
        """Return the first day after the period that a day is in."""
        after = self.begin(day) + timedelta(days=self.days)
        return after.replace(day=1) if self is Period.MONTH else after

    @property
    def days(self) -> int:
        """Return how many days it has at most."""
        return {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 31}[self]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much time of cards the pods of a namespace may have in each period."""

    quota: str
    """The name of the ResourceQuota that states it."""
    key: str
    """The key of its `spec.hard`."""
    period: Period
    card_hours: int
    model: str = ""
    """As in QuotaLimit: only cards of such a model count; empty: all do."""
    evicts: bool = False
    """Whether running pods have to leave when it is spent."""
