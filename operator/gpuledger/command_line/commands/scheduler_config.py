"""`gpuledger scheduler-config`: the configuration of kube-scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from gpuledger.command_line.options import extender_secret_option, read_settings, settings_option, settings_refused


@click.command("scheduler-config")
@settings_option
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True)
@click.option("--output", type=click.File("w"), default="-", help="File to write to instead of standard output.")
@click.option(
    "--pipe",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Named pipe to create instead of printing; `gpuledger run --scheduler-config` fills it.",
)
@extender_secret_option
def scheduler_config(
    settings_file: Path | None, leader_elect: bool, output: TextIO, pipe: Path | None, extender_secret: Path | None
) -> None:
    """Print the kube-scheduler configuration that matches the settings."""
    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.configuration.files import settings_before_cluster
    from gpuledger.controller.extender_server import extender_secret as secret_in
    from gpuledger.controller.scheduler_pipe import make_pipe, scheduler_config_text

    if pipe is None:
        with settings_refused():
            secret = secret_in(extender_secret)
        output.write(scheduler_config_text(read_settings(settings_file), leader_elect, secret))
        return
    with settings_refused():  # so that a pod with bad settings does not begin
        dialects_of(settings_before_cluster(settings_file))
    make_pipe(pipe)
