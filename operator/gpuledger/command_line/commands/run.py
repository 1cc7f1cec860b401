"""`gpuledger run`: the operator."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.command_line.options import (
    end_without_cluster,
    extender_secret_option,
    program_access_options,
    settings_option,
    settings_refused,
    until_interrupted,
)


@click.command()
@settings_option
@program_access_options
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    envvar="GPULEDGER_LEADER_ELECT",
    help="Write only while the kube-scheduler beside this operator holds the schedulers' Lease.  "
    "[env: GPULEDGER_LEADER_ELECT]",
)
@click.option(
    "--host",
    envvar="GPULEDGER_HOST",
    help="Host name of that kube-scheduler; without it, this host's name (same pod).  [env: GPULEDGER_HOST]",
)
@click.option(
    "--scheduler-config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GPULEDGER_SCHEDULER_CONFIG",
    help="Named pipe from which that kube-scheduler reads its configuration, so that it starts after the operator.  "
    "[env: GPULEDGER_SCHEDULER_CONFIG]",
)
@extender_secret_option
def run(
    settings_file: Path | None,
    kubeconfig: str | None,
    context: str | None,
    leader_elect: bool,
    host: str | None,
    scheduler_config: Path | None,
    extender_secret: Path | None,
) -> None:
    """Run the operator: keep the ledger, and serve kube-scheduler as its extender."""
    end_without_cluster(kubeconfig)
    import uvloop  # a second, which the help does without

    from gpuledger.configuration.files import settings_before_cluster
    from gpuledger.controller.kopf_frame import run as run_operator
    from gpuledger.controller.startup import RunOptions, followed_host_name

    with settings_refused():
        settings = settings_before_cluster(settings_file)
    options = RunOptions(
        settings=settings,
        settings_file=settings_file,
        kubeconfig=kubeconfig,
        context=context,
        host_name=followed_host_name(leader_elect, host),
        scheduler_pipe=scheduler_config,
        extender_secret=extender_secret,
    )
    until_interrupted(lambda: run_operator(options), uvloop.new_event_loop)
