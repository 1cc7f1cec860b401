"""`gpuledger webhook-config`: which pods the API server asks the webhook about."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, TextIO

import click

from gpuledger.command_line.options import read_settings, settings_option


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
@click.option("--output", type=click.File("w"), default="-", help="File to write to instead of standard output.")
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
