"""`gpuledger admission-policies`: the API server's policies."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from gpuledger.command_line.options import read_settings, settings_option


@click.command("admission-policies")
@settings_option
@click.option(
    "--kind",
    type=click.Choice(["all", "validating", "mutating", "agents"]),
    default="all",
    show_default=True,
    help="Policies to print. The mutating policy needs Kubernetes 1.36, all others need 1.30.",
)
@click.option("--output", type=click.File("w"), default="-", help="File to write to instead of standard output.")
def admission_policies(settings_file: Path | None, kind: str, output: TextIO) -> None:
    """Print the admission policies on pods and nodes that match the settings."""
    from gpuledger.configuration.dialects import policies

    kinds = frozenset(("validating", "mutating", "agents") if kind == "all" else (kind,))
    output.write(policies(read_settings(settings_file), kinds))
