"""Two runs beside each other."""

from __future__ import annotations

from rich import box
from rich.table import Table

from benchmark.results import Run, medians
from benchmark.table import wide_console, with_ratios

MAIN = (
    "seconds",
    "pods_per_s",
    "to_plain",
    "bound_p99_s",
    "attempts_per_pod",
    "ledger_writes_per_pod",
    "binding_writes_per_pod",
    "other_writes_per_pod",
    "operator_cpu_ms_per_pod",
    "scheduler_cpu_ms_per_pod",
    "operator_rss_mib",
    "filter_p99_ms",
    "evaluations_per_filter",
)


def compare(first: Run, second: Run, everything: bool = False) -> Table:
    """Return a table of the figures that both runs have: of the one, of the other, and their ratio."""
    table = Table(title=f"{_name(first)} -> {_name(second)}", box=box.SIMPLE_HEAD)
    for head in ("case", "nodes", "who", "figure", "A", "B", "B to A"):
        table.add_column(head, justify="left" if head in ("case", "who", "figure") else "right", no_wrap=True)
    before, after = with_ratios(medians(first.rows)), with_ratios(medians(second.rows))
    for key in (key for key in before if key in after):
        case, nodes, subject = key
        names = [name for name in before[key] if name in after[key] and (everything or name in MAIN)]
        for place, name in enumerate(names):
            a, b = before[key][name], after[key][name]
            whose = (case, str(nodes), subject) if place == 0 else ("", "", "")
            table.add_row(*whose, name, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}" if a else "")
        table.add_section()
    return table


def show_comparison(first: Run, second: Run, everything: bool) -> None:
    """Print the comparison, and say where the runs can't be compared."""
    console = wide_console()
    for what in ("cpu", "cores"):
        if first.machine.get(what) != second.machine.get(what):
            console.print(
                f"warning: {what} differs: {first.machine.get(what)}, {second.machine.get(what)}", style="yellow"
            )
    table = compare(first, second, everything)
    console.print(table if table.row_count else "the two runs have no case, size and subject in common")


def _name(run: Run) -> str:
    return f"{run.versions.get('commit', '?')} of {run.begin}"
