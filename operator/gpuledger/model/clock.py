"""Time, and small helpers of the workflows: clocks, back-off, a bounded mapping, listeners."""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterator, ValuesView
from datetime import datetime
from typing import Generic, ParamSpec, Protocol, TypeVar


class Clock(Protocol):
    """The clocks of a process."""

    def now_s(self) -> float:
        """Return the event loop's time, in seconds since some moment. It can't be set, so that it measures waits."""

    def wall(self) -> datetime:
        """Return the time of day, in UTC. Anybody can set it, and that of other machines is another one."""

    def work_s(self) -> float:
        """Return seconds since some moment, to measure work by: the event loop's time may stand still during a turn."""


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


class BoundedMap(Generic[Key, Value]):
    """The keys that were noted last, each with a value."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[Key, Value] = {}  # oldest first

    def note(self, key: Key, value: Value) -> Value | None:
        """Remember a key as the latest. If that is one too many, forget the oldest, and return its value."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._limit:
            return self._values.pop(next(iter(self._values)))
        return None

    def get(self, key: Key) -> Value | None:
        """Return a key's value, None if it is not remembered."""
        return self._values.get(key)

    def items(self) -> ItemsView[Key, Value]:
        """Return the keys with their values, the oldest first."""
        return self._values.items()

    def values(self) -> ValuesView[Value]:
        """Return the values, the oldest first."""
        return self._values.values()

    def drop(self, key: Key) -> None:
        """Forget a key."""
        self._values.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


Happened = ParamSpec("Happened")


class Listeners(list[Callable[Happened, None]], Generic[Happened]):
    """Functions, called in their order with what has happened: `on_change.append(show)`, then `on_change(card)`."""

    def __call__(self, *happened: Happened.args, **named: Happened.kwargs) -> None:
        """Tell all of them."""
        for listener in self:
            listener(*happened, **named)
