"""The command `gpuledger audit`: connects, compares, and shows what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from gpuledger.configuration.dialects import words_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.objects.pod import pod_facts
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.findings import Finding, Kind
from gpuledger.workflows.release.departures import ReleaseTimes
from gpuledger.workflows.repair.audit import Auditor, AuditSettings, Report
from gpuledger.workflows.system_clock import SystemClock


async def run_audit(settings: Settings, kubeconfig: Path | None, settle_s: float, fix: bool, adopt: bool) -> Report:
    """Compare the ledger with pods and nodes, and mend it if asked to. Raises GpuledgerError."""
    client = await KubeClient.connect(kubeconfig)
    try:
        auditor = Auditor(KubeStore(client), audit_settings(settings, settle_s), clock=SystemClock())
        return await auditor.mend(adopt) if fix else await auditor.look()
    finally:
        await client.close()


def audit_settings(settings: Settings, settle_s: float, scheduler_names: Sequence[str] = ()) -> AuditSettings:
    """Return what of the settings concerns an audit; it looks at the pods of other schedulers if these are named."""
    words = words_of(settings)
    return AuditSettings(
        scheduler_names=scheduler_names or settings.scheduler_names,
        words=words,
        read_request=lambda pod: pod_request(pod, words),
        read_facts=lambda pod: pod_facts(pod, words),
        release=ReleaseTimes(settings.release_delay_s, settings.longest_release_s, by_deadline=True),
        settle_s=settle_s,
    )


def as_json(report: Report) -> str:
    """Return the findings as a list of objects, for scripts: fields may be added, and none goes."""
    rows = [_as_json(finding, mended) for finding, mended in _rows(report)]
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode()


def as_tables(report: Report) -> str:
    """Return one table for each kind of finding, and a line that sums up; in colours if they go to a terminal."""
    from gpuledger.command_line.tables import printed

    by_kind = {kind: [row for row in _rows(report) if row[0].kind is kind] for kind in Kind}
    tables = [_table(kind, rows, show_mended=bool(report.mended)) for kind, rows in by_kind.items() if rows]
    return printed([*tables, _summary(report)])


def _rows(report: Report) -> Iterator[tuple[Finding, bool]]:
    rows = [(finding, True) for finding in report.mended] + [(finding, False) for finding in report.left]
    return iter(sorted(rows, key=lambda row: row[0].place))


def _as_json(finding: Finding, mended: bool) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "node": finding.node,
        "card": finding.card,
        "pod": str(finding.pod or ""),
        "detail": finding.detail,
        "remedy": finding.kind.remedy,
        "mended": mended,
    }


def _table(kind: Kind, rows: list[tuple[Finding, bool]], show_mended: bool) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text.assemble((kind.value, "bold"), f": {kind.remedy}")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="", header_style="dim")
    columns = {
        "NODE": [finding.node for finding, _ in rows],
        "CARD": [finding.card for finding, _ in rows],
        "POD": [str(finding.pod or "") for finding, _ in rows],
        "DETAIL": [finding.detail for finding, _ in rows],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    for name in columns:
        table.add_column(name, no_wrap=name != "DETAIL", overflow="fold")
    if show_mended:
        table.add_column("MENDED")
    for cells, (_, mended) in zip(zip(*columns.values(), strict=True), rows, strict=True):
        state = [Text("yes", "green") if mended else Text("no", "red")] if show_mended else []
        table.add_row(*(Text(cell) for cell in cells), *state)
    return table


def _summary(report: Report) -> str:
    if not report.mended and not report.left:
        return "Ledger, pods and nodes agree."
    parts = [f"{len(report.mended)} mended"] if report.mended else []
    parts += [f"{len(report.left)} left"] if report.left else []
    return f"{len(report.mended) + len(report.left)} found: {', '.join(parts)}."
