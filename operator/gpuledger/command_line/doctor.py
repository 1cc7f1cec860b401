"""`gpuledger doctor`: whether a cluster has what gpuledger needs."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.command_line.look import access_options, errors_shown, output_option
from gpuledger.command_line.options import read_settings, settings_option
from gpuledger.model.errors import BadInput

if TYPE_CHECKING:
    from gpuledger.configuration.settings import Settings
    from gpuledger.doctor.examination import Examination

logger = logging.getLogger(__name__)


@click.command(short_help="What keeps the cluster from working.")
@settings_option
@click.option(
    "--scheduler-config",
    "scheduler_configs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration of a kube-scheduler that you run yourself, to compare with the settings.",
)
@click.option("--as-init", is_flag=True, help="Check only what must hold before the operator starts; log the findings.")
@output_option("table", "json", "yaml")
@access_options
def doctor(
    settings_file: Path | None,
    scheduler_configs: tuple[Path, ...],
    as_init: bool,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Check what gpuledger needs of a cluster, and say what mends what is wrong. Changes nothing.

    Reads with your account; what it may not read is a finding, too. Without --settings, the settings are those of the
    Deployment. Ends with 1 if an error was found, else with 2 if something could not be checked, else with 0: warnings
    alone are no failure.
    """
    with errors_shown():
        settings = _settings_of(settings_file)
        configs = {str(file): _yaml_of(file) for file in scheduler_configs}
        found = _examined(settings, configs, kubeconfig, context, as_init)
        if as_init:
            _log(found)
        else:
            _show(found, output, no_color)
    sys.exit(int(bool(found.errors)) if as_init else found.exit_code)


def _examined(
    settings: Settings | None,
    configs: dict[str, dict[str, Any]],
    kubeconfig: str | None,
    context: str | None,
    as_init: bool,
) -> Examination:
    import asyncio

    from gpuledger.doctor.access import client_of
    from gpuledger.doctor.examination import BEFORE_THE_OPERATOR, CHECKS, examine
    from gpuledger.doctor.reading import Reading
    from gpuledger.plugin.kubectl import ended_by_signals

    async def look() -> Examination:
        async with client_of(kubeconfig, context) as client:
            reading = Reading(client, settings, configs)
            if as_init:
                return examine(await reading.before_the_operator(), BEFORE_THE_OPERATOR)
            return examine(await reading.all(), tuple(CHECKS))

    with ended_by_signals():
        return asyncio.run(look())


def _settings_of(file: Path | None) -> Settings | None:
    try:
        return None if file is None else read_settings(file)
    except click.ClickException as error:
        raise BadInput(error.message) from error


def _log(found: Examination) -> None:
    from gpuledger.doctor.finding import Severity
    from gpuledger.doctor.show import log_line

    for finding in found.findings:
        level = logging.ERROR if finding.kind.severity is Severity.ERROR else logging.WARNING
        logger.log(level, "%s", log_line(finding))
    if not found.findings:
        logger.info("what the operator needs is there")


def _show(found: Examination, output: str, no_color: bool) -> None:
    from gpuledger.doctor.show import lines_of
    from gpuledger.plugin import output as out

    if output == "table":
        out.write(lines_of(found, out.page_of(no_color)))
    else:
        click.echo(out.data(found.json(), output), nl=False)


def _yaml_of(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{file} is no YAML: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != "KubeSchedulerConfiguration":
        raise BadInput(f"{file} is no KubeSchedulerConfiguration")
    return content
