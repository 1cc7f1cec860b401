"""What runs without departures come to: means over the seeds, as JSON, CSV and a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from gpuledger.model.json_object import Json
from gpuledger.reports.tables import NARROW_GAP, Column, Terminal, table
from gpuledger.simulation.arrivals import ArrivalRun
from gpuledger.simulation.load import percent
from gpuledger.simulation.mix import History
from gpuledger.simulation.trace_cluster import Why

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
