"""Time, and small helpers of the workflows: clocks, back-off, a bounded mapping, listeners."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Generic, ParamSpec, Protocol, TypeVar


class Clock(Protocol):
    """The clocks of a process."""

    def now_s(self) -> float:
        """Return the event loop's time, in seconds since some moment. It can't be set, so that it measures waits."""

    def wall(self) -> datetime:
        """Return the time of day, in UTC. Anybody can set it, and that of other machines is another one."""

    def work_s(self) -> float:
        """Return seconds since some moment, to measure work by: the event loop's time may stand still during a turn."""


def rfc3339(moment: datetime) -> str:
    """Return a time in UTC as Kubernetes writes it: RFC 3339, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def time_of(text: str) -> datetime | None:
    """Return a time of RFC 3339; None if it is none, or has no time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


class ServerTime:
    """The time of day by another program's clock, which says it in whole seconds; between that it runs steadily.

    The clock of this machine has no part in it: nobody who sets that changes what is measured.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Take a clock that can't be set."""
        self._now_s = now_s
        self._ahead_s: float | None = None
        """The other clock minus ours: the most that is certain."""

    def observe(self, said: datetime, asked_s: float) -> None:
        """Observe what the other clock said, in answer to a request that was sent at `asked_s` of ours."""
        least_s = said.timestamp() - self._now_s()
        before_s = said.timestamp() + 1 - asked_s  # it was less than a second later when it said so
        if self._ahead_s is None or least_s > self._ahead_s or self._ahead_s >= before_s:
            self._ahead_s = least_s

    def now(self) -> datetime | None:
        """Return the time of day, in UTC; None if nothing was said yet."""
        return None if self._ahead_s is None else datetime.fromtimestamp(self._now_s() + self._ahead_s, UTC)


class Backoff:
    """Pauses in seconds that double, from `first_s` to `longest_s`, until what is tried has worked."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now; the next pause is twice as long."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Record that it has worked."""
        self._pause_s = self._first_s


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedMap(dict[Key, Value]):
    """The keys that were noted last, each with a value, the oldest first. They come by `note` alone."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def note(self, key: Key, value: Value) -> Value | None:
        """Remember a key as the latest. If that is one too many, forget the oldest, and return its value."""
        self.pop(key, None)
        self[key] = value
        return self.pop(next(iter(self))) if len(self) > self._limit else None

    def drop(self, key: Key) -> None:
        """Forget a key."""
        self.pop(key, None)


Happened = ParamSpec("Happened")


class Listeners(list[Callable[Happened, None]], Generic[Happened]):
    """Functions, called in their order with what has happened: `on_change.append(show)`, then `on_change(card)`."""

    def __call__(self, *happened: Happened.args, **named: Happened.kwargs) -> None:
        """Call all of them."""
        for listener in self:
            listener(*happened, **named)
