"""What runs with departures come to: means over the seeds, as JSON, CSV and a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev

from gpuledger.model.json_object import Json
from gpuledger.reports.tables import NARROW_GAP, Column, Terminal, table
from gpuledger.simulation.departures import DepartureRun
from gpuledger.simulation.load import percent
from gpuledger.simulation.mix import History

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
