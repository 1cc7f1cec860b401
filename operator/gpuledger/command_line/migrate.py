"""The command `gpuledger migrate`: enters the pods that another system has placed, or shows what that would do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from gpuledger.command_line.audit import audit_settings
from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.migration import Step
from gpuledger.workflows.repair.audit import Auditor
from gpuledger.workflows.system_clock import SystemClock

OTHER_SCHEDULERS = ("hami-scheduler", "volcano")
"""Pods of these are shown, even where the settings do not name them: then with that as what stands in the way."""

NARROWEST = 140
"""Columns of the table on a terminal: it has more of them than others."""


async def run_migration(settings: Settings, kubeconfig: Path | None, dry_run: bool) -> Sequence[Step]:
    """Return the steps; unless it is a dry run, carry out those that nothing stands in the way of.

    Raises GpuledgerError.
    """
    names = tuple(dict.fromkeys((*settings.scheduler_names, *OTHER_SCHEDULERS)))
    client = await KubeClient.connect(kubeconfig)
    try:
        audited = audit_settings(settings, settle_s=0.0, scheduler_names=names)
        auditor = Auditor(KubeStore(client), audited, clock=SystemClock())
        return await auditor.migrate(settings.scheduler_names, dry_run)
    finally:
        await client.close()


def as_json(steps: Iterable[Step]) -> str:
    """Return the steps as a list of objects, for scripts: fields may be added, and none goes."""
    return orjson.dumps([_as_json(step) for step in steps], option=orjson.OPT_INDENT_2).decode()


def as_table(steps: Sequence[Step], dry_run: bool) -> str:
    """Return a table of the steps, and a line that sums up; in colours if they go to a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from gpuledger.command_line.tables import printed

    table = Table(box=box.SIMPLE_HEAD, header_style="dim")
    for column in ("POD", "NODE", "FROM", "CARD", "MIB", "CORES", "WHAT HAPPENS"):
        table.add_column(column, no_wrap=column != "WHAT HAPPENS", overflow="fold")
    done = "would be entered" if dry_run else "entered"
    for step in steps:
        share = step.share
        amounts = (share.uuid, str(share.amounts.memory_mib), str(share.amounts.cores)) if share else ("", "", "")
        outcome = Text(step.why, "red") if step.why else Text(done, "green")
        table.add_row(str(step.pod), step.node_name, step.source, *amounts, outcome)
    return printed([*([table] if steps else []), _summary(steps, done)], NARROWEST)


def _summary(steps: Sequence[Step], done: str) -> str:
    if not steps:
        return "Nothing to move over: every bound pod has its shares in the ledger."
    blocked = sum(bool(step.why) for step in steps)
    return f"{len(steps) - blocked} shares {done}, {blocked} need a person."


def _as_json(step: Step) -> dict[str, Any]:
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
