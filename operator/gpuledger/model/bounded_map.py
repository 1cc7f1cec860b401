"""A mapping that keeps a limited number of the latest keys, so that memory does not grow."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, ValuesView
from typing import Generic, TypeVar

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
