"""`gpuledger run`: the operator."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from gpuledger.command_line.options import kubeconfig_option, read_settings, settings_option, until_interrupted


@click.command()
@settings_option
@kubeconfig_option
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Write only while the kube-scheduler beside this operator holds the schedulers' Lease.",
)
@click.option("--host", help="Host name of that kube-scheduler; without it, this host's: they share a pod.")
@click.option(
    "--scheduler-config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Named pipe from which that kube-scheduler reads its configuration: it starts when this operator runs.",
)
def run(
    settings_file: Path | None,
    kubeconfig: Path | None,
    leader_elect: bool,
    host: str | None,
    scheduler_config: Path | None,
) -> None:
    """Run the operator: the ledger, and the scheduler's extender."""
    import uvloop  # a second, which the help does without

    from gpuledger.controller.startup import run as run_operator

    followed = (host or socket.gethostname()) if leader_elect else None
    until_interrupted(
        lambda: run_operator(read_settings(settings_file), kubeconfig, followed, scheduler_config),
        uvloop.new_event_loop,
    )
