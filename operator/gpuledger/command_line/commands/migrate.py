"""`gpuledger migrate`: enters the pods that another system has placed, or shows what that would do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.command_line import output as out
from gpuledger.command_line.commands.audit import audit_settings
from gpuledger.command_line.options import access_options, in_cluster, named_settings, settings_in_use, settings_option
from gpuledger.command_line.output import plural
from gpuledger.model.json_object import Json
from gpuledger.reports.grouping import gathered, nodes_named, title_of
from gpuledger.reports.tables import Column, Terminal, ruled

if TYPE_CHECKING:
    from gpuledger.kube_api.client import KubeClient
    from gpuledger.ledger.adoption import Step


OTHER_SCHEDULERS = ("hami-scheduler", "volcano")
"""Pods of these are shown, even where the settings do not name them: then with that as what stands in the way."""

NARROWEST = 140
"""Columns of the table on a terminal: it has more of them than others."""


@click.command()
@settings_option
@click.option("--dry-run", is_flag=True, help="Show what would be entered, and change nothing.")
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True)
@access_options
@click.pass_context
def migrate(
    command: click.Context,
    /,
    settings_file: Path | None,
    dry_run: bool,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Enter pods that HAMi or Volcano placed into the ledger, from their annotations.

    It takes the settings from the operator's Deployment, unless --settings names a file. Users can write these
    annotations, so check the output of --dry-run first; -o wide has a row for each share, even of pods that are alike.
    Exit status: 1 if a person has to act, 2 after an error.
    """
    named = named_settings(settings_file, kubeconfig, context)

    async def move(client: KubeClient) -> Sequence[Step]:
        from gpuledger.kube_api.writes import KubeStore
        from gpuledger.workflows.repair import Auditor
        from gpuledger.workflows.system_clock import SystemClock

        settings = await settings_in_use(client, named)
        names = tuple(dict.fromkeys((*settings.scheduler_names, *OTHER_SCHEDULERS)))
        audited = audit_settings(settings, settle_s=0.0, scheduler_names=names)
        auditor = Auditor(KubeStore(client), audited, clock=SystemClock())
        return await auditor.migrate(settings.scheduler_names, dry_run)

    steps = in_cluster(kubeconfig, context, move)
    wide = output == "wide"
    out.show(as_json(steps), output, lambda terminal: as_lines(steps, dry_run, terminal, wide), no_color, NARROWEST)
    command.exit(1 if any(step.why for step in steps) else 0)


def as_json(steps: Iterable[Step]) -> list[Json]:
    """Return the steps as a list of objects, for scripts: fields may be added, and none goes."""
    return [_as_json(step) for step in steps]


def as_lines(steps: Sequence[Step], dry_run: bool, terminal: Terminal, wide: bool = False) -> Iterator[str]:
    """Yield a table of the steps, and a line that sums up; with `wide`, a row even for each of many that are alike."""
    titles = ("POD", "NODE", "FROM", "CARD", "MIB", "CORES", "WHAT HAPPENS")
    done = "would be entered" if dry_run else "entered"
    rows = []
    for alike in [[step] for step in steps] if wide else gathered(steps, lambda step: str(step.pod), _shown):
        step, share = alike[0], alike[0].share
        amounts = (_cards(alike), str(share.amounts.memory_mib), str(share.amounts.cores)) if share else ("", "", "")
        outcome = ((step.why, "red") if step.why else (done, "green"),)
        pods = list(dict.fromkeys(str(each.pod) for each in alike))
        rows.append((title_of(pods), nodes_named(each.node_name for each in alike), step.source, *amounts, outcome))
    if rows:
        yield from ruled(terminal, [Column(title, fold=title == "WHAT HAPPENS") for title in titles], rows)
    yield _summary(steps, done)


def _shown(step: Step) -> Hashable:
    return step.source, step.why, step.share and (step.share.amounts, step.share.exclusive)


def _cards(alike: Sequence[Step]) -> str:
    uuids = list(dict.fromkeys(step.share.uuid for step in alike if step.share))
    return uuids[0] if len(uuids) == 1 else f"{len(uuids)} cards"


def _summary(steps: Sequence[Step], done: str) -> str:
    if not steps:
        return "Nothing to migrate: every bound pod has its shares in the ledger."
    blocked = sum(bool(step.why) for step in steps)
    needs = "needs" if blocked == 1 else "need"
    return f"{plural(len(steps) - blocked, 'share')} {done}, {blocked} {needs} a decision."


def _as_json(step: Step) -> Json:
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
