"""`gpuledger fake-nodes`: simulated nodes."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.command_line.options import (
    end_without_cluster,
    program_access_options,
    read_settings,
    settings_option,
    until_interrupted,
)
from gpuledger.model.errors import BadInput


@click.command("fake-nodes")
@settings_option
@program_access_options
@click.option("--count", default=3, show_default=True, help="Number of nodes.")
@click.option("--gpus", default=8, show_default=True, help="Cards per node.")
@click.option("--model", default="A100-40GB", show_default=True, help="Model of the cards; see --list-models.")
@click.option("--slots", type=int, help="Slots per card: how many shares it can have at once.  [default: 10]")
@click.option("--prefix", default="gpu-node", show_default=True, help="Nodes are called PREFIX-1, PREFIX-2, ...")
@click.option(
    "--run-pods", is_flag=True, help="Keep running, and report on the pods there as a kubelet would. No container runs."
)
@click.option("--list-models", is_flag=True, help="List the models and exit.")
def fake_nodes(
    settings_file: Path | None,
    kubeconfig: str | None,
    context: str | None,
    count: int,
    gpus: int,
    model: str,
    slots: int | None,
    prefix: str,
    run_pods: bool,
    list_models: bool,
) -> None:
    """Register simulated nodes, as a node agent and its kubelet would."""
    from gpuledger.agent import simulated as fake
    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.configuration.files import nodes_config

    if list_models:
        for name, memory_mib in fake.MODELS_MIB.items():
            click.echo(f"{name:<16} {memory_mib:>7} MiB")
        return
    end_without_cluster(kubeconfig)
    settings = read_settings(settings_file, kubeconfig, context)
    try:
        nodes = fake.fake_nodes(prefix, count, gpus, model, slots, nodes_config(settings))
        counts = dialects_of(settings).counts(of=fake.VENDOR)
    except (ValueError, BadInput) as error:
        raise click.ClickException(str(error)) from error
    until_interrupted(lambda: fake.register(nodes, counts, run_pods, kubeconfig, context))
