"""The commands that print what an installation needs, to match the settings: the CRD, policies, and configurations."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, TextIO

import click

from gpuledger.command_line.options import extender_secret_option, read_settings, settings_option, settings_refused

file_option = click.option(
    "--output", type=click.File("w"), default="-", help="File to write to instead of standard output."
)


@click.command()
@click.option(
    "--kind",
    type=click.Choice(["all", "GPUAllocation", "GPUReservation", "GPUUsage"]),
    default="all",
    show_default=True,
    help="Which of them to print.",
)
def crd(kind: str) -> None:
    """Print the CustomResourceDefinitions."""
    from gpuledger.formats.custom_resource import crd as of_cards
    from gpuledger.formats.custom_resource import gpu_reservation as of_reservations
    from gpuledger.formats.custom_resource import gpu_usage as of_usage

    texts = {
        "GPUAllocation": of_cards.as_yaml,
        "GPUReservation": of_reservations.as_yaml,
        "GPUUsage": of_usage.as_yaml,
    }
    click.echo("---\n".join(text() for name, text in texts.items() if kind in ("all", name)), nl=False)


@click.command("admission-policies")
@settings_option
@click.option(
    "--kind",
    type=click.Choice(["all", "validating", "mutating", "agents"]),
    default="all",
    show_default=True,
    help="Policies to print. The mutating policy needs Kubernetes 1.36, all others need 1.30.",
)
@file_option
def admission_policies(settings_file: Path | None, kind: str, output: TextIO) -> None:
    """Print the admission policies on pods and nodes that match the settings."""
    from gpuledger.configuration.dialects import policies

    kinds = frozenset(("validating", "mutating", "agents") if kind == "all" else (kind,))
    output.write(policies(read_settings(settings_file), kinds))


@click.command("scheduler-config")
@settings_option
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True)
@file_option
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


@click.command("webhook-config")
@settings_option
@click.option(
    "--kind",
    type=click.Choice(["all", "validating", "mutating"]),
    default="all",
    show_default=True,
    help="Configuration to print: mutating (fills in pods), validating (rejects pods), or both.",
)
@click.option(
    "--url",
    default="",
    help="Address at which the API server reaches the webhook: https://HOST:PORT.  [default: our Service]",
)
@click.option("--ca-file", type=click.File("rb"), help="CA certificates, PEM, that verify the webhook's certificate.")
@click.option(
    "--cert-manager", default="", metavar="NAMESPACE/NAME", help="Certificate whose CA cert-manager fills in."
)
@file_option
def webhook_config(
    settings_file: Path | None, kind: str, url: str, ca_file: BinaryIO | None, cert_manager: str, output: TextIO
) -> None:
    """Print the admission webhook's configurations, for clusters without the policies."""
    from gpuledger.configuration.dialects import webhook_configuration
    from gpuledger.formats.admission.webhook import WebhookAddress

    ca_bundle = ca_file.read() if ca_file else b""
    if ca_file and b"-----BEGIN CERTIFICATE-----" not in ca_bundle:
        raise click.ClickException(f"{ca_file.name} has no PEM certificate")
    if url and not url.startswith("https://"):
        raise click.UsageError("--url must begin with https://")
    kinds = frozenset(("validating", "mutating") if kind == "all" else (kind,))
    address = WebhookAddress(url, ca_bundle, cert_manager)
    output.write(webhook_configuration(read_settings(settings_file), kinds, address))
