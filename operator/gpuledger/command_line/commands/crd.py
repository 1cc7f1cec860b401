"""`gpuledger crd`: the custom resource."""

from __future__ import annotations

import click

from gpuledger.formats.custom_resource.crd import as_yaml


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinition of GPUAllocation."""
    click.echo(as_yaml(), nl=False)
