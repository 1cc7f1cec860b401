"""Pods arrive in random order, none leaves, until they have asked for more than the cluster has.

Source: the method of Weng et al., USENIX ATC 2023. The trace's pods come in an order that the seed decides; then more
are drawn from it at random, until the GPUs that were asked for are `load` times those of the cluster. A pod that fits
nowhere is not tried again. The order of the nodes is the seed's, too. The members of a gang come at once, and are
placed all or not at all.

Fragmentation is how much of what is free is of no use to the pods that come (section 3 of the same). For one kind of
pod, what is free on a node is a fragment as far as it is on cards that can't serve such a pod: all of it, if the pod
does not fit on the node, else that on cards with less than the pod's part of a card. The mean over the kinds, each as
often as it comes, is the node's fragmentation. Pods without GPUs have no part in it.

Reports are means over the seeds, as JSON, CSV and a table.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.json_object import Json
from gpuledger.placement.policy import Policy
from gpuledger.reports.tables import NARROW_GAP, Column, Terminal, table
from replay.mix import History
from replay.trace import PodKind, Trace, TraceCluster, TraceNode, TracePod, Why, together

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class FragmentationMeter:
    """Measures a cluster for a mix of pods: kind -> how many of them there are."""

    def __init__(self, nodes: Sequence[TraceNode], mix: Mapping[PodKind, int]) -> None:
        asking = {kind: count for kind, count in mix.items() if kind.cards}
        total = sum(asking.values())
        # cards, milli of each and models -> CPU, memory and part of the mix of each kind of pod that asks so
        self._demands: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, int, float]]] = {}
        for kind, count in asking.items():
            demand = (kind.cards, kind.milli, kind.models)
            part = (kind.host.cpu_milli, kind.host.memory_mib, count / total)
            self._demands.setdefault(demand, []).append(part)
        names = np.array([node.model for node in nodes])
        self._admits = {models: np.isin(names, models) if models else names == names for _, _, models in self._demands}
        self._width = max(node.cards for node in nodes)

    def measure(self, cluster: TraceCluster) -> float:
        """Return the fragments' part of all cards of the cluster, 0 to 1."""
        free: Numbers = np.array([row + [0] * (self._width - len(row)) for row in cluster.free_milli], dtype=np.int64)
        hosts: Numbers = np.array(list(cluster.hosts.free.values()), dtype=np.int64)
        all_free = free.sum(axis=1)
        fragments = 0.0
        for (cards, milli, models), parts in self._demands.items():
            serves = free >= milli
            has_cards: Flags = (serves.sum(axis=1) >= cards) & self._admits[models]
            useful = np.where(serves, free, 0).sum(axis=1)
            for cpu_milli, memory_mib, part in parts:
                fits = has_cards & (hosts[:, 0] >= cpu_milli) & (hosts[:, 1] >= memory_mib)
                fragments += part * float(all_free.sum() - useful[fits].sum())
        return fragments / cluster.capacity_milli


STEPS = 100
"""Points of the curve for as much load as the cluster has."""


SAME_LOAD = 1e-9
"""Loads that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cluster when this much was asked for. All are parts of the GPUs that it has."""

    load: float
    allocated: float
    fragments: float


@dataclass(frozen=True, slots=True)
class ArrivalRun:
    """One policy's run over one order of arrival."""

    seed: int
    points: tuple[Point, ...]
    arrived: int
    unplaced: dict[Why, int]
    unplaced_milli: int
    gangs: int = 0
    """That have arrived."""
    whole_gangs: int = 0
    """Of these, the placed ones."""

    def allocated_at(self, load: float) -> float:
        """Return the allocation ratio when this much had been asked for."""
        return next(point.allocated for point in self.points if point.load >= load - SAME_LOAD)


def arrival_order(trace: Trace, load: float, seed: int) -> Iterator[tuple[TracePod, ...]]:
    """Yield the pods that arrive, those of a gang together, until they have asked for `load` times the GPUs."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    all_of_them = together(trace.pods)
    order = list(all_of_them)
    chance.shuffle(order)
    wanted_milli, arrived_milli = load * trace.capacity_milli, 0
    waiting = iter(order)
    while arrived_milli < wanted_milli:
        pods = next(waiting, None) or chance.choice(all_of_them)
        arrived_milli += sum(pod.kind.asked_milli for pod in pods)
        yield pods


def node_order(trace: Trace, seed: int) -> list[TraceNode]:
    """Return the nodes in an order that the seed decides, and named by it: nodes that are equal are taken by name."""
    nodes = list(trace.nodes)
    random.Random(f"nodes {seed}").shuffle(nodes)  # noqa: S311 - not for secrets
    return [replace(node, name=f"{place:06} {node.name}") for place, node in enumerate(nodes)]


def replay_arrivals(
    trace: Trace, policy: Policy, load: float, seed: int, history: History, on_step: Callable[[], None]
) -> ArrivalRun:
    """Place the pods of one order of arrival; `on_step` is called for each point of the curve."""
    mix, nodes = Counter(pod.kind for pod in trace.pods), node_order(trace, seed)
    cluster = TraceCluster(nodes, mix, policy, history)
    meter = FragmentationMeter(nodes, mix)
    unplaced: dict[tuple[PodKind, ...], Why] = {}  # what fits nowhere any more, for no pod leaves
    whys: Counter[Why] = Counter()
    arrived = arrived_milli = unplaced_milli = gangs = whole_gangs = 0
    last_step = math.floor((load + SAME_LOAD) * STEPS)
    points = [Point(0.0, 0.0, meter.measure(cluster))]
    for pods in arrival_order(trace, load, seed):
        kinds = tuple(pod.kind for pod in pods)
        asked_milli = sum(kind.asked_milli for kind in kinds)
        names = [str(arrived + number) for number in range(1, len(kinds) + 1)]
        for kind in kinds:
            cluster.arrived(kind)
        arrived += len(kinds)
        arrived_milli += asked_milli
        placed = kinds not in unplaced and _place(cluster, dict(zip(names, kinds, strict=True)))
        gangs += bool(pods[0].gang)
        whole_gangs += bool(pods[0].gang) and placed
        if not placed:
            if kinds not in unplaced:
                unplaced[kinds] = cluster.why_not_all(kinds) if pods[0].gang else cluster.why_not(kinds[0])
            whys[unplaced[kinds]] += len(kinds)
            unplaced_milli += asked_milli
        step = min(arrived_milli * STEPS // cluster.capacity_milli, last_step)
        if step > round(points[-1].load * STEPS):
            points.append(_point(step / STEPS, cluster, meter))
            on_step()
    if points[-1].load < load - SAME_LOAD:
        points.append(_point(load, cluster, meter))
    return ArrivalRun(seed, tuple(points), arrived, dict(whys), unplaced_milli, gangs, whole_gangs)


def _place(cluster: TraceCluster, pods: dict[str, PodKind]) -> bool:
    if len(pods) > 1:
        return cluster.place_all(pods)
    [(pod, kind)] = pods.items()
    return cluster.place(pod, kind) is not None


def _point(load: float, cluster: TraceCluster, meter: FragmentationMeter) -> Point:
    return Point(load, cluster.allocated_milli / cluster.capacity_milli, meter.measure(cluster))


DIGITS = 6
"""That are shown, and that count: loads that differ in later ones only are the same."""


def as_shown(load: float) -> float:
    """Return the load that is meant."""
    return float(f"{load:.{DIGITS}g}")


def percent(load: float | str) -> str:
    """Return a load as people read it; different loads are different texts."""
    return f"{100 * float(load):.{DIGITS}g}%"


CSV_HEAD = ("policy", "seed", "arrived_load", "allocation_ratio", "fragmentation")


def summary(runs: Sequence[ArrivalRun], loads: Sequence[float], history: History) -> Json:
    """Return what one policy came to. All ratios are parts of the cluster's GPUs, 0 to 1; counts are means."""
    by_load = {str(float(load)): [run.allocated_at(load) for run in runs] for load in loads}
    unplaced = {why.value: fmean(run.unplaced.get(why, 0) for run in runs) for why in Why}
    asked = max(loads)
    return {
        "allocation_ratio": {load: fmean(values) for load, values in by_load.items()},
        "spread": {
            load: {"min": min(values), "max": max(values), "standard_deviation": pstdev(values)}
            for load, values in by_load.items()
        },
        "seeds": {str(run.seed): {load: run.allocated_at(float(load)) for load in by_load} for run in runs},
        "history": history.value,
        "load": asked,
        "arrived_pods": fmean(run.arrived for run in runs),
        "unplaced_pods": fmean(sum(run.unplaced.values()) for run in runs),
        "unplaced_by_reason": {why: count for why, count in unplaced.items() if count},
        "unplaced_gpu_milli": fmean(run.unplaced_milli for run in runs),
        **_gangs(runs),
        "curve": list(_curve(runs)),
    }


def _gangs(runs: Sequence[ArrivalRun]) -> Json:
    """Return how many gangs came and were placed, a mean; nothing if the trace has none."""
    if not any(run.gangs for run in runs):
        return {}
    return {"gangs": fmean(run.gangs for run in runs), "whole_gangs": fmean(run.whole_gangs for run in runs)}


def csv_rows(runs_of: Mapping[str, Sequence[ArrivalRun]]) -> Iterator[tuple[str, ...]]:
    """Yield the curve of each policy and seed, the names of the columns first."""
    yield CSV_HEAD
    for policy, runs in runs_of.items():
        for run in runs:
            for point in run.points:
                yield policy, str(run.seed), f"{point.load:g}", f"{point.allocated:.6f}", f"{point.fragments:.6f}"


def as_lines(summaries: Mapping[str, Json], terminal: Terminal) -> list[str]:
    """Return a table with one row per policy, the best allocation at the end first."""
    loads = list(next(iter(summaries.values()))["allocation_ratio"])
    has_gangs = any("gangs" in found for found in summaries.values())
    numbers = (*(f"AT {percent(load)}" for load in loads), "± SEEDS", "FRAGMENTS", "UNPLACED")
    numbers = (*numbers, *(["WHOLE GANGS"] if has_gangs else []))
    columns = [Column("POLICY"), *(Column(title, right=True) for title in numbers), Column("WHY", fold=True)]
    last = loads[-1]
    rows = [
        (
            policy,
            *(f"{found['allocation_ratio'][load]:.2%}" for load in loads),
            f"{found['spread'][last]['standard_deviation']:.2%}",
            f"{found['curve'][-1]['fragmentation']:.2%}",
            f"{found['unplaced_pods']:.0f} of {found['arrived_pods']:.0f}",
            *([f"{found['whole_gangs']:.0f} of {found['gangs']:.0f}"] if has_gangs else []),
            _whys(found["unplaced_by_reason"]),
        )
        for policy, found in sorted(summaries.items(), key=lambda item: -item[1]["allocation_ratio"][last])
    ]
    return table(terminal, columns, rows, gap=NARROW_GAP)


def _whys(counts: Mapping[str, float]) -> str:
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{why} {count:.0f}" if count >= 1 else f"{why} {count:.1f}" for why, count in ranked)


def _curve(runs: Sequence[ArrivalRun]) -> Iterator[Json]:
    for points in _together(runs):
        yield {
            "load": points[0].load,
            "allocation_ratio": fmean(point.allocated for point in points),
            "fragmentation": fmean(point.fragments for point in points),
        }


def _together(runs: Sequence[ArrivalRun]) -> Iterable[list[Any]]:
    """Yield the points of all runs that have the same load; a large pod can take a run over a point."""
    by_load: dict[float, list[Any]] = {}
    for run in runs:
        for point in run.points:
            by_load.setdefault(point.load, []).append(point)
    return (by_load[load] for load in sorted(by_load))
