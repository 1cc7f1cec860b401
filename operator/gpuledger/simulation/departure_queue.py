"""Pods that come, and wait until there is room: by themselves, or with their gang."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from gpuledger.simulation.trace import PodKind
from gpuledger.simulation.trace_cluster import TraceCluster

Ask = tuple[PodKind, ...]
"""What a gang asks for, or a pod that comes by itself."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that comes, and how long it runs once it is placed."""

    at_s: float
    kind: PodKind
    runs_s: int
    gang: str = ""
    """Those that start together name the same; empty: it starts by itself."""


class DepartureQueue:
    """Those that wait, by what they ask for. While one of an ask waits, no other of it fits."""

    def __init__(self, cluster: TraceCluster, arrivals: Sequence[Arrival]) -> None:
        self._cluster = cluster
        self._arrivals = arrivals
        self._waiting: dict[Ask, deque[tuple[int, ...]]] = {}  # ask -> numbers of the arrivals, the oldest first
        self._sizes = Counter(arrival.gang for arrival in arrivals if arrival.gang)
        self._come: dict[str, list[int]] = {}  # gang that is not complete -> numbers of its arrivals so far

    def arrived(self, number: int) -> Sequence[int]:
        """Place a pod, and with the last member of a gang all of them, or let them wait; return who is placed."""
        numbers = self._complete_with(number)
        if not numbers:
            return ()
        ask = tuple(self._arrivals[each].kind for each in numbers)
        if ask not in self._waiting and self._place(numbers, ask, set()):
            return numbers
        self._waiting.setdefault(ask, deque()).append(numbers)
        return ()

    def _complete_with(self, number: int) -> tuple[int, ...]:
        """Return who starts together now that this one has come; nobody if others of its gang are still to come."""
        gang = self._arrivals[number].gang
        if not gang:
            return (number,)
        come = self._come.setdefault(gang, [])
        come.append(number)
        return tuple(self._come.pop(gang)) if len(come) == self._sizes[gang] else ()

    def retry(self, freed: set[str]) -> list[int]:
        """Place what fits now that pods have left some nodes, the oldest first; return who is placed.

        There was no room elsewhere, but for some members of gangs.
        """
        oldest = [(waiting[0], ask) for ask, waiting in self._waiting.items()]
        heapify(oldest)
        placed: list[int] = []
        while oldest:
            numbers, ask = heappop(oldest)
            if not any(self._cluster.could_take(kind, name) for kind in dict.fromkeys(ask) for name in freed):
                continue
            if not self._place(numbers, ask, freed):
                continue
            placed += numbers
            waiting = self._waiting[ask]
            waiting.popleft()
            if waiting:
                heappush(oldest, (waiting[0], ask))
            else:
                del self._waiting[ask]
        return placed

    def _place(self, numbers: Sequence[int], ask: Ask, freed: set[str]) -> bool:
        if len(numbers) > 1:
            return self._cluster.place_all({str(number): kind for number, kind in zip(numbers, ask, strict=True)})
        room = self._cluster.hosts.only(freed) if freed else None
        return self._cluster.place(str(numbers[0]), ask[0], room) is not None
