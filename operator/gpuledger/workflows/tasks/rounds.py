"""Who is tried next, where there is not the time to try all who wait: names are free, so namespaces take turns."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

One = TypeVar("One")

HEAD_EVERY = 4
"""So many passes of a round, and the first of all that wait is tried once more."""


MOST_AHEAD_S = 1.0
"""By so much at most one namespace counts as having had more time than another: who comes late has nothing to catch up
on."""


def by_turns(ones: Iterable[One], namespace_of: Callable[[One], str]) -> list[One]:
    """Return these, given in their order, as namespaces take turns: the first of each, then the second of each."""
    seen = Counter[str]()
    found: list[tuple[int, int, One]] = []
    for number, one in enumerate(ones):
        namespace = namespace_of(one)
        found.append((seen[namespace], number, one))
        seen[namespace] += 1
    return [one for _, _, one in sorted(found, key=lambda each: each[:2])]


class Round(Generic[One]):
    """Passes over all who wait, each of which may end before all were tried.

    The first pass is in the order of those who wait. If one ends early, the next one goes on, whatever has changed:
    with the namespace on which the least time was spent, and in it behind the last one that was tried. So it does not
    matter how many there are of another namespace. The head of all comes again now and then: it would have been tried
    first if there were fewer. After a pass in which all were tried, their order counts again.
    """

    def __init__(self, key_of: Callable[[One], Hashable], namespace_of: Callable[[One], str]) -> None:
        self._key_of = key_of
        self._namespace_of = namespace_of
        self._passes = 0
        """Since all were tried in one."""
        self._tried: dict[str, set[Hashable]] = {}  # namespace -> keys of those tried since all of it were
        self._spent_s: dict[str, float] = {}  # namespace -> how long those of it have been tried
        self._most_s = 0.0
        """The most of these."""

    def next_pass(self, waiting: Iterable[One]) -> Iterator[One]:
        """Yield those who wait, given in their order, as they are to be tried now; see `spent`. Take all, or leave."""
        ones = list(waiting)
        self._passes += 1
        if self._passes == 1:
            yield from ones
        else:
            if self._passes % HEAD_EVERY == 0:
                yield from ones[:1]
            yield from self._by_namespace(ones)
        self._passes, self._most_s = 0, 0.0
        self._tried.clear()
        self._spent_s.clear()

    def spent(self, one: One, took_s: float) -> None:
        """Record that one was tried, and how long that took."""
        namespace = self._namespace_of(one)
        self._tried.setdefault(namespace, set()).add(self._key_of(one))
        self._spent_s[namespace] = self._account(namespace) + took_s
        self._most_s = max(self._most_s, self._spent_s[namespace])

    def _account(self, namespace: str) -> float:
        return max(self._spent_s.get(namespace, 0.0), self._most_s - MOST_AHEAD_S)

    def _by_namespace(self, ones: Iterable[One]) -> Iterator[One]:
        queues: dict[str, deque[One]] = {}
        for one in ones:
            queues.setdefault(self._namespace_of(one), deque()).append(one)
        for known in (self._tried, self._spent_s):
            for namespace in [namespace for namespace in known if namespace not in queues]:
                del known[namespace]
        for namespace, tried in self._tried.items():
            left = deque(one for one in queues[namespace] if self._key_of(one) not in tried)
            if left:
                queues[namespace] = left
            else:  # all of it were tried, and are again
                tried.clear()
        while queues:
            namespace = min(queues, key=self._account)
            yield queues[namespace].popleft()
            if not queues[namespace]:
                del queues[namespace]
