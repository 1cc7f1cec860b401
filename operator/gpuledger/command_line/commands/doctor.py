"""`gpuledger doctor`: whether a cluster has what gpuledger needs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.command_line.cluster_access import ClusterAccess, where_asked
from gpuledger.command_line.options import (
    Common,
    common_options,
    errors_shown,
    named_settings,
    operator_option,
    settings_option,
)
from gpuledger.command_line.output import plural
from gpuledger.doctor.kinds import Finding, FindingKind, Severity
from gpuledger.model.errors import BadInput
from gpuledger.reports.tables import Cell, Column, Terminal, table

if TYPE_CHECKING:
    from gpuledger.configuration.settings import Settings
    from gpuledger.doctor.examination import Examination

logger = logging.getLogger(__name__)

COLUMNS = (
    Column("SEVERITY"),
    Column("FINDING"),
    Column("WHERE", fold=True),
    Column("WHAT IS WRONG", fold=True),
    Column("HOW TO FIX IT", fold=True),
)
STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


@click.command(short_help="Find what keeps gpuledger from working.")
@settings_option
@click.option(
    "--scheduler-config",
    "scheduler_configs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration of a kube-scheduler that you run yourself, to compare with the settings.",
)
@click.option("--as-init", is_flag=True, help="Check only what the operator needs before it starts; log the findings.")
@operator_option
@common_options("csv")
def doctor(
    settings_file: Path | None,
    scheduler_configs: tuple[Path, ...],
    as_init: bool,
    operator_url: str | None,
    common: Common,
) -> None:
    """Check that a cluster has what gpuledger needs, and print how to fix what is wrong. Changes nothing.

    Reads with your account; what it may not read is a finding, too. Without --settings, the Deployment's settings
    count. An operator that runs outside the cluster is named by --operator-url. Exit status: 1 if an error was found,
    else 2 if something could not be checked, else 0: warnings alone are no failure.
    """
    with errors_shown():
        settings = _settings_of(settings_file, common.kubeconfig, common.context)
        configs = {str(file): _yaml_of(file) for file in scheduler_configs}
        elsewhere = _answering(operator_url) if operator_url and not as_init else ""
        found = _examined(settings, configs, elsewhere, common, as_init)
        if as_init:
            _log(found)
        else:
            common.show(found.json(), lambda terminal: lines_of(found, terminal))
    sys.exit(int(bool(found.errors)) if as_init else found.exit_code)


def _examined(
    settings: Settings | None,
    configs: dict[str, dict[str, Any]],
    elsewhere: str,
    common: Common,
    as_init: bool,
) -> Examination:
    async def look(access: ClusterAccess) -> Examination:
        from gpuledger.doctor.examination import BEFORE_THE_OPERATOR, CHECKS, examine
        from gpuledger.doctor.reading import Reading

        async with access.client() as client:
            reading = Reading(client, settings, configs, elsewhere)
            if as_init:
                return examine(await reading.before_the_operator(), BEFORE_THE_OPERATOR)
            return examine(await reading.all(), tuple(CHECKS))

    with common.cluster() as access:
        access.open()
        with where_asked():
            return access.run(lambda: look(access))


def _answering(url: str) -> str:
    """Return the address if an operator answers there, else nothing: it is then looked for in the cluster alone."""
    from gpuledger.command_line.operator_view import ask

    try:
        ask("/v1/history", {"limit": "0"}, url, None, None)
    except BadInput as error:
        logger.warning("%s", error)
        return ""
    return url


def _settings_of(file: Path | None, kubeconfig: str | None, context: str | None) -> Settings | None:
    try:
        return named_settings(file, kubeconfig, context)
    except click.ClickException as error:
        raise BadInput(error.message) from error


def _log(found: Examination) -> None:
    for finding in found.findings:
        level = logging.ERROR if finding.kind.severity is Severity.ERROR else logging.WARNING
        logger.log(level, "%s", log_line(finding))
    if not found.findings:
        logger.info("everything that the operator needs is there")


def _yaml_of(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{file} is not YAML: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != "KubeSchedulerConfiguration":
        raise BadInput(f"{file} is not a KubeSchedulerConfiguration")
    return content


def lines_of(examination: Examination, terminal: Terminal) -> list[str]:
    """Return a table of the findings, if there are any, and a sentence."""
    alike: dict[tuple[FindingKind, str], list[Finding]] = {}
    for each in examination.findings:
        alike.setdefault((each.kind, each.text), []).append(each)
    rows = [_row(group) for group in alike.values()]
    if terminal.csv:
        return table(terminal, COLUMNS, rows)
    shown = [*table(terminal, COLUMNS, rows), ""] if rows else []
    return [*shown, *_isolation(examination), _sentence(examination, terminal)]


def _isolation(examination: Examination) -> list[str]:
    """Return how nodes keep shares apart, if any have cards."""
    ways = [f"{way} on {plural(nodes, 'node')}" for way, nodes in examination.isolation.items()]
    return [f"Isolation: {', '.join(ways)}."] if ways else []


def _row(alike: Sequence[Finding]) -> tuple[Cell, ...]:
    """Return a row for findings that say the same of several places."""
    from gpuledger.doctor.facts import some_of

    first = alike[0]
    return (
        ((first.kind.severity.value, STYLES[first.kind.severity]),),
        ((first.kind.value, "bold"),),
        some_of([each.where for each in alike]),
        first.text,
        ((first.remedy, "cyan"),),
    )


def log_line(finding: Finding) -> str:
    """Return a finding as one line, for a log."""
    return f"{finding.kind.value}: {finding.where}: {finding.text}. {finding.remedy}"


def _sentence(examination: Examination, terminal: Terminal) -> str:
    errors = len(examination.errors)
    left_out = sum(each.kind is FindingKind.NOT_CHECKED for each in examination.findings)
    warnings = len(examination.findings) - errors - left_out
    made = plural(len(examination.checked), "check")
    if not examination.findings:
        return terminal.paint(f"{made}, nothing found.", "green")
    skipped = f", {plural(left_out, 'thing')} could not be read" if left_out else ""
    return f"{made}: {plural(errors, 'error')}, {plural(warnings, 'warning')}{skipped}."
