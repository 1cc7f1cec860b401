"""`gpuledger audit` compares the ledger with the cluster; `migrate` enters the pods that another system has placed."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.command_line.options import (
    Common,
    Failed,
    common_options,
    named_settings,
    settings_in_use,
    settings_option,
)
from gpuledger.command_line.output import NARROWEST, plural
from gpuledger.ledger.audit import AuditFinding, AuditFindingKind
from gpuledger.model.json_object import Json
from gpuledger.reports.tables import Cell, Column, Terminal, gathered, nodes_named, ruled, table, title_of

if TYPE_CHECKING:
    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.client import KubeClient
    from gpuledger.ledger.adoption import Step
    from gpuledger.workflows.repair import Auditor, AuditSettings, Report

Row = tuple[AuditFinding, bool]
"""A finding, and whether it was repaired."""


@click.command()
@settings_option
@click.option("--fix", is_flag=True, help="Repair every finding that needs no human decision.")
@click.option(
    "--adopt", is_flag=True, help="With --fix: enter bound pods that the ledger lacks, from their annotation."
)
@click.option(
    "--settle-s", default=2.0, show_default=True, type=click.FloatRange(0), help="Seconds between the two reads."
)
@common_options("csv")
@click.pass_context
def audit(
    command: click.Context,
    /,
    settings_file: Path | None,
    fix: bool,
    adopt: bool,
    settle_s: float,
    common: Common,
) -> None:
    """Compare the ledger with pods, annotations and nodes, and show every difference.

    It takes the settings from the operator's Deployment, unless --settings names a file. Shows only differences that
    two reads, some seconds apart, have found. What is the same of many pods that are alike is one row; -o wide shows
    each. Exit status: 0 if nothing was found or all of it was repaired, 1 if something is left, 2 after an error.
    """
    if adopt and not fix:
        raise click.UsageError("--adopt enters shares, so it needs --fix")
    try:
        named = named_settings(settings_file, common.kubeconfig, common.context)

        async def compare(client: KubeClient) -> Report:

            settings = await settings_in_use(client, named)
            auditor = auditor_of(client, audit_settings(settings, settle_s))
            return await auditor.repair(adopt) if fix else await auditor.look()

        report = common.in_cluster(compare)
    except click.ClickException as error:
        raise Failed(error.message) from error  # 1 would say that the ledger is wrong
    except Exception:
        logging.exception("the audit failed")
        command.exit(2)
    common.show(as_json(report), lambda terminal: as_lines(report, terminal, common.wide), narrowest=NARROWEST)
    command.exit(1 if report.left else 0)


def audit_settings(settings: Settings, settle_s: float, scheduler_names: Sequence[str] = ()) -> AuditSettings:
    """Return the settings of an audit; it includes pods of other schedulers if these are named."""
    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.workflows.release import ReleaseTimes
    from gpuledger.workflows.repair import AuditSettings

    return AuditSettings(
        scheduler_names=scheduler_names or settings.scheduler_names,
        dialects=dialects_of(settings),
        release=ReleaseTimes(settings.release_delay_s, settings.longest_release_s, by_deadline=True),
        settle_s=settle_s,
    )


def auditor_of(client: KubeClient, settings: AuditSettings) -> Auditor:
    """Return what compares and enters, through this client, by this machine's clock."""
    from gpuledger.kube_api.writes import KubeStore
    from gpuledger.workflows.repair import Auditor
    from gpuledger.workflows.system_clock import SystemClock

    return Auditor(KubeStore(client), settings, clock=SystemClock())


def as_json(report: Report) -> list[Json]:
    """Return the findings as a list of objects, for scripts: fields may be added, and none goes."""
    return [_as_json(finding, repaired) for finding, repaired in _rows(report)]


def as_lines(report: Report, terminal: Terminal, wide: bool = False) -> Iterator[str]:
    """Yield one table for each kind of finding, and a line that sums up; with `wide`, a row for each finding."""
    if terminal.csv:
        yield from table(terminal, CSV_COLUMNS, map(_csv_row, _rows(report)))
        return
    by_kind = {kind: [row for row in _rows(report) if row[0].kind is kind] for kind in AuditFindingKind}
    for kind, rows in by_kind.items():
        if rows:
            yield f"{terminal.paint(kind.value, 'bold')}: {kind.remedy}"
            groups = [[row] for row in rows] if wide else gathered(rows, _pod, _shown)
            yield from _table(groups, bool(report.repaired), terminal)
    yield _summary(report)


CSV_COLUMNS = tuple(map(Column, ("FINDING", "NODE", "CARD", "POD", "DETAIL", "REMEDY", "FIXED")))


def _csv_row(row: Row) -> tuple[str, ...]:
    finding, repaired = row
    place = finding.node, finding.card, str(finding.pod or "")
    return finding.kind.value, *place, finding.detail, finding.kind.remedy, "yes" if repaired else "no"


def _rows(report: Report) -> Iterator[tuple[AuditFinding, bool]]:
    rows = [(finding, True) for finding in report.repaired] + [(finding, False) for finding in report.left]
    return iter(sorted(rows, key=lambda row: row[0].place))


def _as_json(finding: AuditFinding, repaired: bool) -> Json:
    return {
        "kind": finding.kind.value,
        "node": finding.node,
        "card": finding.card,
        "pod": str(finding.pod or ""),
        "detail": finding.detail,
        "remedy": finding.kind.remedy,
        "mended": repaired,
    }


def _pod(row: Row) -> str:
    return str(row[0].pod or "")


def _shown(row: Row) -> Hashable:
    finding, repaired = row
    return (finding.detail, repaired) if finding.pod else finding.place


def _table(groups: Sequence[Sequence[Row]], show_repaired: bool, terminal: Terminal) -> list[str]:
    columns = [Column("NODE"), Column("CARD"), Column("POD"), Column("DETAIL", fold=True)]
    cells = [_cells([finding for finding, _ in alike]) for alike in groups]
    used = [position for position in range(len(columns)) if any(row[position] for row in cells)]
    body: list[list[Cell]] = [[row[position] for position in used] for row in cells]
    if show_repaired:
        for shown, [(_, repaired), *_] in zip(body, groups, strict=True):
            shown.append((("yes", "green") if repaired else ("no", "red"),))
    return ruled(terminal, [columns[p] for p in used] + [Column("FIXED")] * show_repaired, body)


def _cells(alike: Sequence[AuditFinding]) -> tuple[str, str, str, str]:
    first, cards = alike[0], dict.fromkeys(finding.card for finding in alike)
    pods = list(dict.fromkeys(str(finding.pod or "") for finding in alike))
    return (
        nodes_named(each.node for each in alike),
        first.card if len(cards) == 1 else f"{len(cards)} cards",
        title_of(pods),
        first.detail,
    )


def _summary(report: Report) -> str:
    if not report.repaired and not report.left:
        return "Ledger, pods and nodes agree."
    parts = [f"{len(report.repaired)} fixed"] if report.repaired else []
    parts += [f"{len(report.left)} left"] if report.left else []
    return f"{len(report.repaired) + len(report.left)} found: {', '.join(parts)}."


OTHER_SCHEDULERS = ("hami-scheduler", "volcano")
"""Pods of these are shown, even where the settings do not name them: then with that as what stands in the way."""

NARROWEST_OF_STEPS = 140
"""Columns of the table on a terminal: it has more of them than others."""


@click.command()
@settings_option
@click.option("--dry-run", is_flag=True, help="Show what would be entered, and change nothing.")
@common_options("csv")
@click.pass_context
def migrate(
    command: click.Context,
    /,
    settings_file: Path | None,
    dry_run: bool,
    common: Common,
) -> None:
    """Enter pods that HAMi or Volcano placed into the ledger, from their annotations.

    It takes the settings from the operator's Deployment, unless --settings names a file. Users can write these
    annotations, so check the output of --dry-run first; -o wide has a row for each share, even of pods that are alike.
    Exit status: 1 if a person has to act, 2 after an error.
    """
    named = named_settings(settings_file, common.kubeconfig, common.context)

    async def move(client: KubeClient) -> Sequence[Step]:
        settings = await settings_in_use(client, named)
        names = tuple(dict.fromkeys((*settings.scheduler_names, *OTHER_SCHEDULERS)))
        audited = audit_settings(settings, settle_s=0.0, scheduler_names=names)
        return await auditor_of(client, audited).migrate(settings.scheduler_names, dry_run)

    steps = common.in_cluster(move)
    common.show(
        steps_json(steps),
        lambda terminal: step_lines(steps, dry_run, terminal, common.wide),
        narrowest=NARROWEST_OF_STEPS,
    )
    command.exit(1 if any(step.why for step in steps) else 0)


def steps_json(steps: Iterable[Step]) -> list[Json]:
    """Return the steps as a list of objects, for scripts: fields may be added, and none goes."""
    return [_step_json(step) for step in steps]


def step_lines(steps: Sequence[Step], dry_run: bool, terminal: Terminal, wide: bool = False) -> Iterator[str]:
    """Yield a table of the steps, and a line that sums up; with `wide`, a row even for each of many that are alike."""
    titles = ("POD", "NODE", "FROM", "CARD", "MIB", "CORES", "WHAT HAPPENS")
    done = "would be entered" if dry_run else "entered"
    rows = []
    for alike in [[step] for step in steps] if wide else gathered(steps, lambda step: str(step.pod), _shown_of_step):
        step, share = alike[0], alike[0].share
        amounts = (_cards_of(alike), str(share.amounts.memory_mib), str(share.amounts.cores)) if share else ("", "", "")
        outcome = ((step.why, "red") if step.why else (done, "green"),)
        pods = list(dict.fromkeys(str(each.pod) for each in alike))
        rows.append((title_of(pods), nodes_named(each.node_name for each in alike), step.source, *amounts, outcome))
    if rows or terminal.csv:
        yield from ruled(terminal, [Column(title, fold=title == "WHAT HAPPENS") for title in titles], rows)
    if not terminal.csv:
        yield _steps_summary(steps, done)


def _shown_of_step(step: Step) -> Hashable:
    return step.source, step.why, step.share and (step.share.amounts, step.share.exclusive)


def _cards_of(alike: Sequence[Step]) -> str:
    uuids = list(dict.fromkeys(step.share.uuid for step in alike if step.share))
    return uuids[0] if len(uuids) == 1 else f"{len(uuids)} cards"


def _steps_summary(steps: Sequence[Step], done: str) -> str:
    if not steps:
        return "Nothing to migrate: every bound pod has its shares in the ledger."
    blocked = sum(bool(step.why) for step in steps)
    needs = "needs" if blocked == 1 else "need"
    return f"{plural(len(steps) - blocked, 'share')} {done}, {blocked} {needs} a decision."


def _step_json(step: Step) -> Json:
    share = step.share
    return {
        "pod": str(step.pod),
        "node": step.node_name,
        "from": step.source,
        "card": share.uuid if share else "",
        "memoryMiB": share.amounts.memory_mib if share else 0,
        "cores": share.amounts.cores if share else 0,
        "number": share.amounts.number if share else 0,
        "conflict": step.why,
    }
