"""What quotas cost a Filter: the same questions to three operators' memories in turn, of which two have quotas.

All that is compared is of one run: each question is asked of all three, one directly after the other.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from benchmark.filter_alone import Ledger, Row, Sizes, stop_what_was_started
from benchmark.sampling import Samples
from benchmark.shapes import QUARTER, SHAPES
from benchmark.table import wide_console

NONE, OTHERS, THEIRS = "none", "other namespaces", "the pods' namespaces"
HARD = {f"limits.nvidia.com/{name}": "900000000" for name in ("gpu", "gpumem", "gpucores")}
"""As much as nobody reaches: every pod gets the same cards with it as without."""


@dataclass(frozen=True, slots=True)
class _Subject:
    quotas: str
    ledger: Ledger


async def measure_quotas(sizes: Sizes, namespaces: int, as_json: bool) -> None:
    """Print how long Filters take with so many namespaces that have quotas, and how many times as long as without."""
    rows: list[Row] = []
    for nodes in sizes.nodes:
        print(f"{nodes} nodes, {namespaces} quotas: filling the ledgers", file=sys.stderr)
        subjects = list(_subjects(nodes, sizes, namespaces))
        rows += _measure(subjects, sizes.filters)
        await stop_what_was_started()
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for head in rows[0]:
        table.add_column(head, justify="left" if head in ("question", "quotas of") else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    wide_console().print(table)


def _subjects(nodes: int, sizes: Sizes, namespaces: int) -> Iterator[_Subject]:
    names = [f"team-{number}" for number in range(namespaces)]
    others = [f"other-{name}" for name in names]
    for quotas, limited in ((NONE, []), (OTHERS, others), (THEIRS, names)):
        ledger = Ledger(nodes, Samples(), sizes.policy, names)
        for name in limited:
            metadata = {"name": "gpus", "namespace": name, "uid": f"quota of {name}"}
            ledger.parts.workflows.quotas.observe({"metadata": metadata, "spec": {"hard": HARD}}, gone=False)
        yield _Subject(quotas, ledger)


def _measure(subjects: Sequence[_Subject], filters: int) -> list[Row]:
    position = 0
    for subject in subjects:
        position = subject.ledger.fill()
    rows: list[Row] = []
    for name, limits_of in (("mix", SHAPES["mix"].limits), ("quarter-card", lambda _: QUARTER)):
        for subject in subjects:
            subject.ledger.times_ms.clear()
        gc.collect()
        for number in range(filters):
            for turn in range(len(subjects)):
                ledger = subjects[(number + turn) % len(subjects)].ledger
                ledger.place(limits_of(position + number))
                ledger.end_oldest()
        base = _median_ms(subjects[0].ledger)
        for subject in subjects:
            median_ms = _median_ms(subject.ledger)
            rows.append(
                {
                    "nodes": subject.ledger.nodes,
                    "question": name,
                    "quotas of": subject.quotas,
                    "asked": filters,
                    "p50 CPU ms": median_ms,
                    "ratio": median_ms / base,
                }
            )
    return rows


def _median_ms(ledger: Ledger) -> float:
    return sorted(cpu_ms for _, cpu_ms in ledger.times_ms)[len(ledger.times_ms) // 2]
