"""The account of shares: who held which part of a card, for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

MILLION: Final = 1_000_000
"""Parts of a card that an account counts."""


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

    def __add__(self, other: Held) -> Held:
        return Held(
            self.card_ms + other.card_ms,
            self.memory_mib_s + other.memory_mib_s,
            self.core_percent_s + other.core_percent_s,
            self.shares + other.shares,
            self.waited_s + other.waited_s,
        )


def total_of(record: Mapping[Line, Held]) -> Held:
    """Return the sum over the lines of a record."""
    return sum(record.values(), Held())
