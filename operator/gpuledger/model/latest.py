"""What was noted last, so much at most: memory that does not grow with what comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Latest(Generic[Value]):
    """The keys that were noted last, each with a value."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[str, Value] = {}  # oldest first

    def note(self, key: str, value: Value) -> None:
        """Remember a key as the latest; the oldest is forgotten if these are more than may be remembered."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]

    def get(self, key: str) -> Value | None:
        """Return a key's value, None if it is not remembered."""
        return self._values.get(key)

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._values.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
