"""How long to wait before something is tried again."""

from __future__ import annotations


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
        """Note that it has worked."""
        self._pause_s = self._first_s
