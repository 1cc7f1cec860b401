"""`gpuledger simulate`: where pods would go. What it takes is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuledger.command_line.options import (
    Common,
    Failed,
    common_options,
    errors_shown,
    read_settings,
    settings_option,
)
from gpuledger.command_line.output import NARROWEST

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.kube_api.client import KubeClient
    from gpuledger.placement.policy import Policy
    from gpuledger.what_if.scene import Scene


NEEDED = "needed"


class NodesToAdd(click.IntRange):
    """A number, or the word for as many as are needed."""

    name = "integer or needed"

    def __init__(self) -> None:
        super().__init__(0, 10_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or the word."""
        return value if value == NEEDED else super().convert(value, param, ctx)


@click.command()
@settings_option
@click.option(
    "--policy",
    metavar="NAME",
    help="Policy, for both nodes and cards or as NODES/CARDS.  [default: from the settings]",
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    help="Nodes and Pods: a YAML or JSON file, a folder, or - for standard input.",
)
@click.option("--from-cluster", is_flag=True, help="Start from the live cluster's nodes, ledger and waiting pods.")
@click.option(
    "--add-nodes",
    type=NodesToAdd(),
    default=0,
    help=f"Number of nodes to add; {NEEDED}: as many as the pods need.",
)
@click.option("--like", metavar="NODE", default="", help="Node that the added nodes copy.")
@common_options("csv")
@click.pass_context
def simulate(
    command: click.Context,
    /,
    settings_file: Path | None,
    policy: str | None,
    files: tuple[str, ...],
    from_cluster: bool,
    add_nodes: int | str,
    like: str,
    common: Common,
) -> None:
    """Try placement without a cluster: see where pods would go.

    With -f, it reads Nodes (with the register of any device plugin) and Pods. Bound pods with their cards in an
    annotation keep them; the others are placed in turn, and shown with their cards or the reasons. With --from-cluster,
    it starts from the cluster as it is: would this pod fit, and would it with four more nodes (--add-nodes 4 --like
    NODE)? How many would be needed (--add-nodes needed --like NODE)? It respects kube-scheduler's conditions on CPU,
    memory, taints, nodeSelector and required node affinity, but not preferences, affinity between pods, spread
    constraints, volumes, ports and the number of pods. Pods that are alike are one line; -o wide shows each. Exit
    status: 1 if an object can't be read, 2 after an error or if there are no nodes.
    """
    if not files and not from_cluster:
        raise click.UsageError("give Nodes and Pods (-f FILE), those of the cluster (--from-cluster), or both")
    if bool(add_nodes) != bool(like):
        raise click.UsageError("--add-nodes N and --like NODE go together")
    settings = read_settings(settings_file, common.kubeconfig, common.context)
    chosen = _policy(policy or "/".join(settings.policies))

    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.what_if.answer import answer, as_json, as_lines
    from gpuledger.what_if.needed_nodes import answer_needed
    from gpuledger.what_if.scene import Scene, in_few_lines, read_files

    dialects = dialects_of(settings)

    async def read(client: KubeClient) -> Scene:
        from gpuledger.kube_api.reads import KubeReads
        from gpuledger.what_if.live import read_cluster

        return await read_cluster(KubeReads(client), settings.scheduler_names, dialects)

    with errors_shown():
        scene = common.in_cluster(read) if from_cluster else Scene()
        read_files(files, scene)
        scene.zone_labels = settings.gang_zones
        if isinstance(add_nodes, str):
            found = answer_needed(scene, dialects, chosen, like)
        else:
            found = answer(scene, dialects, chosen, add_nodes, like)
    if found.has_nodes:
        shown = None if common.for_people else as_json(found)
        common.show(shown, lambda terminal: as_lines(found, terminal, common.wide), narrowest=NARROWEST)
    for note in in_few_lines(found.notes):
        click.echo(f"note: {note}", err=True)
    for problem in in_few_lines(found.problems):
        click.echo(f"error: {problem}", err=True)
    if not found.has_nodes:
        raise Failed(_no_nodes(bool(scene.nodes), from_cluster))
    command.exit(1 if found.problems else 0)


def _policy(name: str) -> Policy:
    from gpuledger.model.errors import did_you_mean
    from gpuledger.placement.policy import Preference, policy_of

    try:
        return policy_of(name)
    except KeyError:
        known = f"policies are {', '.join(Preference)}, and two of these as NODES/CARDS{did_you_mean(name, Preference)}"
        raise click.UsageError(f"--policy: there is no policy {name[:40]!r}; {known}") from None


def _no_nodes(given: bool, from_cluster: bool) -> str:
    if given:
        return "no node can be used, so there is nowhere to place pods: see the errors above"
    if from_cluster:
        return "the cluster has no nodes, and no file has one, so there is nowhere to place pods"
    return (
        "no Node was given, so there is nowhere to place pods: add some with -f "
        "(kubectl get nodes -o yaml > nodes.yaml), or take those of the cluster with --from-cluster"
    )
