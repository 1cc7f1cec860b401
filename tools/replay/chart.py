"""Charts of runs, drawn by matplotlib; without it, all else works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gpuledger.model.errors import BadInput
from gpuledger.model.json_object import Json

FORMATS = (".png", ".svg")


def check_chart(file: Path) -> None:
    """Raise BadInput if no chart can be drawn to this file, before hours were spent on its content."""
    if file.suffix.lower() not in FORMATS:
        raise BadInput(f"{file} is neither a .png nor a .svg: a chart is one of these")
    if not file.parent.is_dir():
        raise BadInput(f"{file} can't be written: there is no folder {file.parent}")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise BadInput(
            "--chart needs matplotlib, which `make` installs in .venv; elsewhere: pip install matplotlib"
        ) from None


def draw_arrivals(file: Path, summaries: Mapping[str, Json]) -> None:
    """Draw allocation and fragmentation over the load that has arrived, one line for each policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for policy, found in summaries.items():
        loads = [100 * point["load"] for point in found["curve"]]
        left.plot(loads, [100 * point["allocation_ratio"] for point in found["curve"]], label=policy)
        right.plot(loads, [100 * point["fragmentation"] for point in found["curve"]], label=policy)
    last = max(found["load"] for found in summaries.values()) * 100
    first = min(80, last / 2)  # before that, nearly all pods find a place
    points = [point for found in summaries.values() for point in found["curve"] if 100 * point["load"] >= first]
    lowest = min(100 * point["allocation_ratio"] for point in points)
    left.set(title="GPUs in use", ylabel="% of the cluster's GPUs", xlim=(first, last), ylim=(lowest, 100))
    left.plot([0, 100, last], [0, 100, 100], color="0.7", linewidth=1, linestyle="--", label="all that was asked for")
    right.set(title="Free, and of no use to the pods that come", ylabel="% of the cluster's GPUs", xlim=(0, last))
    _finish(figure, (left, right), "GPUs asked for so far, % of the cluster's")
    figure.savefig(file, dpi=120)


def draw_departures(file: Path, summaries: Mapping[str, Json]) -> None:
    """Draw accepted demand and the waiting of the largest pods over the load, one line for each policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for policy, found in summaries.items():
        at = found["loads"]
        loads = [100 * float(load) for load in at]
        left.plot(loads, [100 * each["accepted_demand"] for each in at.values()], marker="o", label=policy)
        right.plot(loads, [_largest(each["waits"]) for each in at.values()], marker="o", label=policy)
    left.set(title="Demand that was accepted", ylabel="% of the GPUs asked for")
    right.set(title="Waiting of pods with more than one GPU", ylabel="mean, minutes")
    _finish(figure, (left, right), "load, % of the cluster's GPUs")
    figure.savefig(file, dpi=120)


def _largest(waits: Json) -> float:
    means = [each["mean_s"] / 60 for size, each in waits.items() if size.isdecimal() and int(size) > 1]
    return fmean(means) if means else 0.0


def _finish(figure: Any, axes: Sequence[Any], below: str) -> None:
    for each in axes:
        each.set_xlabel(below)
        each.grid(visible=True, color="0.9")
        each.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
