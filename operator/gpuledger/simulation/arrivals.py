"""Pods arrive in random order, none leaves, until they have asked for more than the cluster has.

Source: the method of Weng et al., USENIX ATC 2023. The trace's pods come in an order that the seed decides; then more
are drawn from it at random, until the GPUs that were asked for are `load` times those of the cluster. A pod that fits
nowhere is not tried again. The order of the nodes is the seed's, too. The members of a gang come at once, and are
placed all or not at all.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuledger.placement.policy import Policy
from gpuledger.simulation.fragmentation import FragmentationMeter
from gpuledger.simulation.mix import History
from gpuledger.simulation.trace import PodKind, Trace, TraceNode, TracePod, together
from gpuledger.simulation.trace_cluster import TraceCluster, Why

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
