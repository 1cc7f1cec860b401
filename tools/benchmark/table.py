"""The tables of a run, one for each kind of case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benchmark.claims import CASE
from benchmark.gangs import SIZES
from benchmark.results import Key, Run, medians
from benchmark.shapes import OURS

WIDTH = 176
"""Where the terminal does not say."""

WIDEST = 1_000
"""More than any table takes."""

Figures = Mapping[str, float]
Cell = Callable[[Figures], str]


def numbers(names: Sequence[str], form: str, separator: str = "/") -> Cell:
    """Return how to print these figures in one cell; what was not measured is a dash, and all of it nothing."""

    def cell(figures: Figures) -> str:
        found = [figures.get(name) for name in names]
        if all(value is None for value in found):
            return ""
        return separator.join("-" if value is None else format(value, form) for value in found)

    return cell


BASES = ("plain", "stock")
"""Who the others are compared with."""

GANGS = "gpuledger, gangs"
"""The same pods as ours, in gangs."""

COLUMNS: dict[str, Cell] = {
    "pods": numbers(["pods"], ".0f"),
    "s": numbers(["seconds"], ".2f"),
    "writes/\ncard": numbers(["writes_per_card"], ".2f"),
    "CPU ms/card\noperator/API": numbers(["operator_cpu_ms_per_card", "api_server_cpu_ms_per_card"], ".1f"),
    "pods/s": numbers(["pods_per_s"], ".0f"),
    "to plain/\nstock": numbers(["to_plain", "to_stock"], ".2f"),
    "to\nsingle": numbers(["to_single"], ".2f"),
    "cards/s": numbers(["cards_per_s"], ".0f"),
    "p50/p99 s": numbers(["bound_p50_s", "bound_p99_s"], ".2f"),
    "tries": numbers(["attempts_per_pod"], ".2f"),
    "writes/pod ledger/\nBinding/other": numbers(
        ["ledger_writes_per_pod", "binding_writes_per_pod", "other_writes_per_pod"], ".2f"
    ),
    "early\nBindings": numbers(["early_bindings"], ".0f"),
    "CPU ms/pod oper-\nator/sched./API": numbers(
        ["operator_cpu_ms_per_pod", "scheduler_cpu_ms_per_pod", "api_server_cpu_ms_per_pod"], ".1f"
    ),
    "RSS MiB\nnow/peak": numbers(["operator_rss_mib", "operator_peak_mib"], ".0f"),
    "Filter ms\np50/p99": numbers(["filter_p50_ms", "filter_p99_ms"], ".2f"),
    "cards/nodes\nused": numbers(["cards_used", "nodes_used"], ".0f"),
    "writes/pod by\nop./sched./kcm": numbers(
        ["operator_writes_by_pod", "scheduler_writes_by_pod", "controllers_writes_by_pod"], ".2f"
    ),
    "evals": numbers(["evaluations_per_filter"], ".1f"),
}
"""Head of a column -> what stands in it. docs/performance.md explains them."""


PODS = "Pods"
KINDS = {
    **dict.fromkeys(("first-start", "start-up"), "Starts"),
    **dict.fromkeys(SIZES, "Gangs"),
    CASE: "Claims",
}
"""Case -> the title of its table, PODS for all others: what is measured of them differs."""


def with_ratios(rows: Mapping[Key, Figures]) -> dict[Key, dict[str, float]]:
    """Add to each row how many pods per second it is to kube-scheduler's by itself, of the same case and size.

    To gangs, what it is to the same pods without a group.
    """
    found: dict[Key, dict[str, float]] = {}
    for (case, nodes, subject), figures in rows.items():
        found[case, nodes, subject] = dict(figures)
        for other in BASES[: BASES.index(subject)] if subject in BASES else BASES:
            base = rows.get((case, nodes, other), {}).get("pods_per_s")
            if base:
                found[case, nodes, subject][f"to_{other}"] = figures["pods_per_s"] / base
        single = rows.get((case, nodes, OURS), {}).get("pods_per_s")
        if subject == GANGS and single:
            found[case, nodes, subject]["to_single"] = figures["pods_per_s"] / single
    return found


def show(run: Run) -> None:
    """Print the medians of the rounds: a table for each kind of case, with the columns that have something in it."""
    machine, versions, console = run.machine, run.versions, wide_console()
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, load at start {machine['load_at_start']}; "
        f"Kubernetes {versions['kubernetes']}, Python {versions['python']}, gpuledger {versions['commit']}"
    )
    rows = with_ratios(medians(run.rows))
    kinds = {KINDS.get(case, PODS): None for case, _, _ in rows}
    for kind in kinds:
        its = {key: figures for key, figures in rows.items() if KINDS.get(key[0], PODS) == kind}
        heads = [head for head, cell in COLUMNS.items() if any(cell(figures) for figures in its.values())]
        for table in _tables(console, kind, its, heads):
            console.print(table)


def _tables(console: Console, title: str, rows: Mapping[Key, Figures], heads: Sequence[str]) -> Iterator[Table]:
    """Yield one table, or where the terminal is too narrow for these columns, one after the other."""
    unlimited = console.options.update(width=WIDEST)
    while heads:
        tables = [_table(title, rows, heads[:count]) for count in range(len(heads), 0, -1)]
        widths = [console.measure(table, options=unlimited).maximum for table in tables]
        found = next((place for place, width in enumerate(widths) if width <= console.width), len(tables) - 1)
        yield tables[found]
        heads = heads[len(heads) - found :]


def _table(title: str, rows: Mapping[Key, Figures], heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("case", "nodes", "who"):
        table.add_column(head, justify="right" if head == "nodes" else "left", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    order = {case: place for place, case in reversed(list(enumerate(case for case, _, _ in rows)))}
    before = None
    for key, figures in sorted(rows.items(), key=lambda row: (row[0][1], order[row[0][0]])):
        case, nodes, subject = key
        cells = [COLUMNS[head](figures) for head in heads]
        if not any(cells):
            continue
        if before and before != (case, nodes):
            table.add_section() if before[1] != nodes else None
        shown = case if before != (case, nodes) else ""
        table.add_row(shown, str(nodes), subject, *cells)
        before = (case, nodes)
    return table


def wide_console(stderr: bool = False) -> Console:
    """Return the terminal, or what a file is written by: wide enough for all columns."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH)
