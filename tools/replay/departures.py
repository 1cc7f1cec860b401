"""Pods come and go at the times of the trace, faster: how much of what is asked for is served, and who waits.

How long a pod runs is the trace's. The arrivals come `compression` times as fast, so that what would be held if no pod
had to wait is, on average, `load` times what the cluster has. The trace is repeated, one round after the other; the
first round fills the cluster and is not measured. A pod that does not fit waits. When pods have left, those that wait
are tried, the oldest first, and smaller ones may pass. A gang is there once its last member has come; it is placed
whole, or waits.

Reports are means over the seeds, as JSON, CSV and a table.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json
from gpuledger.placement.policy import Policy
from gpuledger.reports.tables import NARROW_GAP, Column, Terminal, table
from replay.arrivals import percent
from replay.mix import History
from replay.trace import CARD_MILLI, PodKind, Trace, TraceCluster, TracePod, together

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


TRACE_ORDER = 0
"""The seed that leaves the pods in the order in which they came. Other seeds deal the same times out again."""

BEFORE_PERCENT = 1
"""Pods that are older than all but this many are there at the start: a trace begins with pods that run already."""

FASTEST = 1e9
STEPS = 50
"""How often a run tells that it goes on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All arrivals in order, and the time that is measured."""

    arrivals: tuple[Arrival, ...]
    compression: float
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class DepartureRun:
    """One policy's run: what it made of the pods that came in the measured time."""

    seed: int
    compression: float
    accepted: float
    """Of the GPUs that were asked for, the part whose pods had started by the end."""
    served: float
    """Of the GPU time that these would have had by the end if none had to wait, the part that they had."""
    allocated: float
    """Mean part of the cluster's GPUs in use."""
    waits_s: dict[str, tuple[float, ...]]
    """Size of pod -> how long each waited, sorted; those that wait still count with their time so far."""
    waiting: dict[str, int]
    """Size of pod -> how many wait still at the end."""
    gang_waits_s: tuple[float, ...] = ()
    """How long each gang waited from its last member's arrival on, sorted; as for pods."""
    gangs_waiting: int = 0


def size_of(kind: PodKind) -> str:
    """Return the group of pods whose waiting is compared: by the number of cards."""
    return "no GPU" if not kind.cards else "share" if kind.asked_milli < CARD_MILLI else str(kind.cards)


def plan_departures(trace: Trace, load: float, rounds: int, seed: int) -> Plan:
    """Return the arrivals of a run. Raises BadInput if the trace can't ask for so much."""
    oldest = sorted(trace.pods, key=lambda pod: pod.created_s)
    start_s = oldest[len(oldest) * BEFORE_PERCENT // 100].created_s
    times_s = [max(0, pod.created_s - start_s) for pod in oldest]
    if not times_s[-1]:
        raise BadInput("all pods of the trace were created at once: there is nothing to compress in time")
    if seed != TRACE_ORDER:
        oldest, times_s = _dealt_anew(oldest, times_s, seed)
    round_s = max(times_s)
    at_s = np.array([each * round_s + time for each in range(rounds) for time in times_s], dtype=np.float64)
    pods = oldest * rounds
    runs_s = np.array([pod.deleted_s - pod.created_s for pod in pods], dtype=np.float64)
    milli = np.array([pod.kind.asked_milli for pod in pods], dtype=np.float64)
    begin_s, end_s = float(round_s if rounds > 1 else 0), float(round_s * rounds)

    def load_at(compression: float) -> float:
        begin, end, at = begin_s / compression, end_s / compression, at_s / compression
        held_s = np.minimum(at + runs_s, end) - np.maximum(at, begin)
        return float((milli * np.maximum(held_s, 0)).sum()) / (end - begin) / trace.capacity_milli

    compression = _smallest(load_at, load)
    gangs = [f"{pod.gang} {number // len(oldest)}" if pod.gang else "" for number, pod in enumerate(pods)]
    arrivals = tuple(
        Arrival(float(at) / compression, pod.kind, int(runs), gang)
        for at, pod, runs, gang in zip(at_s, pods, runs_s, gangs, strict=True)
    )
    return Plan(arrivals, compression, begin_s / compression, end_s / compression)


def _dealt_anew(pods: Sequence[TracePod], times_s: Sequence[int], seed: int) -> tuple[list[TracePod], list[int]]:
    """Return the pods in another order, and when each comes: the same times; a gang as a whole at its first's."""
    order = together(pods)
    random.Random(seed).shuffle(order)  # noqa: S311 - not for secrets
    dealt: list[int] = []
    for group in order:
        dealt += [times_s[len(dealt)]] * len(group)
    return [pod for group in order for pod in group], dealt


def _smallest(load_at: Callable[[float], float], load: float) -> float:
    low, high = 1e-3, FASTEST
    if load_at(high) < load:
        raise BadInput(
            f"so few rounds of the trace ask for {load_at(high):.2f} times the cluster's GPUs at most, "
            f"and {load:g} are wanted: give more --rounds"
        )
    while high / low > 1 + 1e-9:
        middle = (high * low) ** 0.5
        low, high = (middle, high) if load_at(middle) < load else (low, middle)
    return high


def replay_departures(
    trace: Trace, policy: Policy, plan: Plan, seed: int, history: History, on_step: Callable[[], None]
) -> DepartureRun:
    """Let the pods of a plan come and go; `on_step` is called about STEPS times."""
    mix = Counter(pod.kind for pod in trace.pods)
    cluster = TraceCluster(trace.nodes, mix, policy, history)
    queue = DepartureQueue(cluster, plan.arrivals)
    started_s: dict[int, float] = {}
    ends: list[tuple[float, int]] = []  # time -> number of the arrival, the next one first
    in_use = [(0.0, 0)]  # time, milli

    def start(numbers: Sequence[int], now_s: float) -> None:
        for number in numbers:
            started_s[number] = now_s
            heappush(ends, (now_s + plan.arrivals[number].runs_s, number))

    def leave_until(time_s: float) -> None:
        while ends and ends[0][0] <= time_s:
            now_s, freed = ends[0][0], set()
            while ends and ends[0][0] == now_s:
                freed.add(cluster.remove(str(heappop(ends)[1])))
            start(queue.retry(freed), now_s)
            in_use.append((now_s, cluster.allocated_milli))

    every = max(1, len(plan.arrivals) // STEPS)
    for number, arrival in enumerate(plan.arrivals):
        leave_until(arrival.at_s)
        cluster.arrived(arrival.kind)
        if placed := queue.arrived(number):
            start(placed, arrival.at_s)
            in_use.append((arrival.at_s, cluster.allocated_milli))
        if number % every == 0:
            on_step()
    leave_until(plan.end_s)
    return _measured(seed, plan, started_s, in_use, trace.capacity_milli)


def _measured(
    seed: int, plan: Plan, started_s: Mapping[int, float], in_use: Sequence[tuple[float, int]], capacity_milli: int
) -> DepartureRun:
    first = bisect_left(plan.arrivals, plan.begin_s, key=lambda arrival: arrival.at_s)
    asked = accepted = 0
    wanted_s = served_s = 0.0
    waits_s: dict[str, list[float]] = {}
    waiting: Counter[str] = Counter()
    for number, arrival in enumerate(plan.arrivals[first:], first):
        milli, at_s, size = arrival.kind.asked_milli, arrival.at_s, size_of(arrival.kind)
        begun_s = started_s.get(number, plan.end_s)
        waits_s.setdefault(size, []).append(begun_s - at_s)
        asked += milli
        wanted_s += milli * min(arrival.runs_s, plan.end_s - at_s)
        served_s += milli * min(arrival.runs_s, plan.end_s - begun_s)
        if number in started_s:
            accepted += milli
        else:
            waiting[size] += 1
    end = [(plan.end_s, 0)]
    held_s = sum(
        milli * max(0.0, min(until_s, plan.end_s) - max(since_s, plan.begin_s))
        for (since_s, milli), (until_s, _) in pairwise([*in_use, *end])
    )
    return DepartureRun(
        seed=seed,
        compression=plan.compression,
        accepted=accepted / asked if asked else 1.0,
        served=served_s / wanted_s if wanted_s else 1.0,
        allocated=held_s / (plan.end_s - plan.begin_s) / capacity_milli,
        waits_s={size: tuple(sorted(waits)) for size, waits in waits_s.items()},
        waiting=dict(waiting),
        **_of_gangs(plan, first, started_s),
    )


def _of_gangs(plan: Plan, first: int, started_s: Mapping[int, float]) -> dict[str, Any]:
    """Return how long the gangs waited whose last member came in the measured time."""
    last: dict[str, int] = {}  # gang -> number of its last member's arrival
    for number, arrival in enumerate(plan.arrivals):
        if arrival.gang:
            last[arrival.gang] = number
    measured = [number for number in last.values() if number >= first]
    waits_s = sorted(started_s.get(number, plan.end_s) - plan.arrivals[number].at_s for number in measured)
    return {"gang_waits_s": tuple(waits_s), "gangs_waiting": sum(number not in started_s for number in measured)}


QUANTILES = (0.5, 0.9, 0.99)

CSV_HEAD = ("policy", "load", "seed", "size", "pods", "still_waiting", "wait_p50_s", "wait_p90_s", "wait_p99_s")
RATIOS = ("accepted_demand", "served_demand", "allocation_ratio")
"""What is said of each run, in this order."""


def summary(runs_at: Mapping[float, Sequence[DepartureRun]], history: History) -> Json:
    """Return what one policy came to, for each load. Ratios are 0 to 1, times in seconds."""
    return {"history": history.value, "loads": {str(float(load)): _at_load(runs) for load, runs in runs_at.items()}}


def _at_load(runs: Sequence[DepartureRun]) -> Json:
    ratios = [_ratios(run) for run in runs]
    return {
        **{name: fmean(each[name] for each in ratios) for name in RATIOS},
        "spread": {name: pstdev(each[name] for each in ratios) for name in RATIOS},
        "compression": fmean(run.compression for run in runs),
        "waits": {size: _waits(size, runs) for size in _sizes(runs)},
        **_gangs(runs),
        "seeds": {str(run.seed): each for run, each in zip(runs, ratios, strict=True)},
    }


def _ratios(run: DepartureRun) -> dict[str, float]:
    return dict(zip(RATIOS, (run.accepted, run.served, run.allocated), strict=True))


def _waits(size: str, runs: Sequence[DepartureRun]) -> Json:
    """Return the quantiles over the pods of all seeds."""
    waits = sorted(wait for run in runs for wait in run.waits_s.get(size, ()))
    waiting = sum(run.waiting.get(size, 0) for run in runs)
    return {"pods": len(waits), "still_waiting": waiting, **_quantiles(waits)}


def _gangs(runs: Sequence[DepartureRun]) -> Json:
    """Return the same over the gangs of all seeds: how long it took to place them; nothing if there are none."""
    waits = sorted(wait for run in runs for wait in run.gang_waits_s)
    if not waits:
        return {}
    waiting = sum(run.gangs_waiting for run in runs)
    whole = {"gangs": len(waits), "placed_whole": len(waits) - waiting, "still_waiting": waiting}
    return {"gangs": {**whole, **_quantiles(waits)}}


def _quantiles(waits: Sequence[float]) -> Json:
    return {
        **{f"p{round(quantile * 100)}_s": at_quantile(waits, quantile) for quantile in QUANTILES},
        "mean_s": fmean(waits),
    }


def at_quantile(ordered: Sequence[float], quantile: float) -> float:
    """Return the value that this part of the values does not exceed."""
    return ordered[max(0, -(-len(ordered) * round(quantile * 100) // 100) - 1)]


def _sizes(runs: Sequence[DepartureRun]) -> list[str]:
    """Return the sizes of pods, the smallest first."""
    found = {size for run in runs for size in run.waits_s}
    return sorted(found, key=lambda size: (size.isdecimal(), int(size) if size.isdecimal() else size == "share"))


def csv_rows(runs_of: Mapping[str, Mapping[float, Sequence[DepartureRun]]]) -> Iterator[tuple[str, ...]]:
    """Yield one row for each run and size of pod, the names of the columns first."""
    yield (*CSV_HEAD, *RATIOS)
    for policy, runs_at in runs_of.items():
        for load, runs in runs_at.items():
            for run in runs:
                ratios = [f"{value:.6f}" for value in _ratios(run).values()]
                for size in _sizes([run]):
                    waits = run.waits_s[size]
                    quantiles = (f"{at_quantile(waits, quantile):.0f}" for quantile in QUANTILES)
                    counts = (str(len(waits)), str(run.waiting.get(size, 0)))
                    yield policy, f"{load:g}", str(run.seed), size, *counts, *quantiles, *ratios


def as_lines(summaries: Mapping[str, Json], terminal: Terminal) -> list[str]:
    """Return a table with one row per load and policy."""
    loads = list(next(iter(summaries.values()))["loads"])
    sizes = list(next(iter(summaries.values()))["loads"][loads[0]]["waits"])
    gpus = [size for size in sizes if size != "no GPU"]
    has_gangs = any("gangs" in each for found in summaries.values() for each in found["loads"].values())
    of_gangs = ("GANGS WAIT", "WHOLE") if has_gangs else ()
    titles = ("LOAD", "POLICY", "ACCEPTED", "SERVED", "IN USE", *map(_heading, gpus), *of_gangs)
    rows = [
        (
            percent(load),
            policy,
            *(f"{found['loads'][load][name]:.2%}" for name in RATIOS),
            *(_minutes(found["loads"][load]["waits"].get(size)) for size in gpus),
            *(_gang_cells(found["loads"][load].get("gangs")) if has_gangs else ()),
        )
        for load in loads
        for policy, found in summaries.items()
    ]
    return table(terminal, [Column(title, right=title != "POLICY") for title in titles], rows, gap=NARROW_GAP)


def _heading(size: str) -> str:
    return "SHARE WAITS" if size == "share" else f"{size} GPU{'S' if size != '1' else ''}"


def _gang_cells(gangs: Json | None) -> tuple[str, str]:
    return (_minutes(gangs), f"{gangs['placed_whole']} of {gangs['gangs']}") if gangs else ("", "")


def _minutes(waits: Json | None) -> str:
    return f"{waits['p50_s'] / 60:.0f}/{waits['p90_s'] / 60:.0f} min" if waits else ""
