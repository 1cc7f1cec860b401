"""The table of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from chaos.results import FAILED, PASSED, VOID

Json = dict[str, Any]

COLUMNS = ("version", "seeds", "passed", "failed", "void", "minutes", "pods bound", "faults", "steps", "checks")
WORKLOAD = ("Create", "Delete")
FAILURES_SHOWN = 20


def show_report(lines: Iterable[Json], console: Console) -> None:
    """Print one row for each version of the product, and the findings of its failures."""
    versions: dict[str, list[Json]] = {}
    for line in lines:
        versions.setdefault(line["version"], []).append(line)
    table = Table(box=box.SIMPLE_HEAD, header_style="dim")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "version" else "right")
    for name, runs in versions.items():
        table.add_row(*map(str, _row(name, runs)))
    console.print(table)
    for name, runs in versions.items():
        _show_failures(name, runs, console)


def _row(name: str, runs: list[Json]) -> list[object]:
    verdicts = Counter(run["verdict"] for run in runs)
    seconds = sum(run["chaos_s"] + run["rest_s"] for run in runs)
    return [
        f"{name} ({runs[-1]['commit']})",
        len({run["seed"] for run in runs}),
        *(verdicts[verdict] for verdict in (PASSED, FAILED, VOID)),
        round(seconds / 60),
        sum(run["counts"].get("pods bound", 0) for run in runs),
        sum(sum(run["faults"].values()) for run in runs),
        sum(_disturbances(run) for run in runs),
        sum(run["checks"] for run in runs),
    ]


def _disturbances(run: Json) -> int:
    """Return how many steps were done that are no part of the workload."""
    return sum(count for name, count in run["counts"].items() if name[0].isupper() and name not in WORKLOAD)


def _show_failures(name: str, runs: list[Json], console: Console) -> None:
    failed = [run for run in runs if run["verdict"] == FAILED]
    rules = Counter(finding["rule"] for run in failed for finding in run["findings"])
    if not failed:
        return
    console.print(f"Findings in version {name}:")
    for rule, count in rules.most_common():
        seeds = sorted({run["seed"] for run in failed if any(found["rule"] == rule for found in run["findings"])})
        shown = ", ".join(map(str, seeds[:FAILURES_SHOWN]))
        console.print(f"  {count} x {rule}; seeds {shown}", highlight=False)
