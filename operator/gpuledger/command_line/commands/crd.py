"""`gpuledger crd`: the custom resource."""

from __future__ import annotations

import click


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinition of GPUAllocation."""
    from gpuledger.formats.custom_resource.crd import as_yaml

    click.echo(as_yaml(), nl=False)
