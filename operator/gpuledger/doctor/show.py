"""How findings are printed."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.doctor.examination import Examination
from gpuledger.doctor.finding import Finding, Kind, Severity
from gpuledger.doctor.objects import some_of
from gpuledger.plugin.spelling import plural
from gpuledger.plugin.tables import Cell, Column, Page, table

COLUMNS = (
    Column("SEVERITY"),
    Column("FINDING"),
    Column("WHERE", fold=True),
    Column("WHAT IS WRONG", fold=True),
    Column("WHAT MENDS IT", fold=True),
)
STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def lines_of(examination: Examination, page: Page) -> list[str]:
    """Return a table of the findings, if there are any, and a sentence."""
    alike: dict[tuple[Kind, str], list[Finding]] = {}
    for each in examination.findings:
        alike.setdefault((each.kind, each.text), []).append(each)
    rows = [_row(group) for group in alike.values()]
    shown = [*table(page, COLUMNS, rows), ""] if rows else []
    return [*shown, _sentence(examination, page)]


def _row(alike: Sequence[Finding]) -> tuple[Cell, ...]:
    """Return a row for findings that say the same of several places."""
    first = alike[0]
    return (
        ((first.kind.severity.value, STYLES[first.kind.severity]),),
        ((first.kind.value, "bold"),),
        some_of([each.where for each in alike]),
        first.text,
        ((first.mend, "cyan"),),
    )


def log_line(finding: Finding) -> str:
    """Return a finding as one line, for a log."""
    return f"{finding.kind.value}: {finding.where}: {finding.text}. {finding.mend}"


def _sentence(examination: Examination, page: Page) -> str:
    errors = len(examination.errors)
    left_out = sum(each.kind is Kind.NOT_CHECKED for each in examination.findings)
    warnings = len(examination.findings) - errors - left_out
    made = plural(len(examination.checked), "check")
    if not examination.findings:
        return page.paint(f"{made}, nothing found.", "green")
    skipped = f", {plural(left_out, 'thing')} could not be read" if left_out else ""
    return f"{made}: {plural(errors, 'error')}, {plural(warnings, 'warning')}{skipped}."
