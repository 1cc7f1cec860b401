"""`gpuledger agent`: the node agent. The parent process imports little: it only watches its child."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpuledger.command_line.options import (
    end_without_cluster,
    program_access_options,
    settings_option,
    settings_refused,
    until_interrupted,
)


@click.command()
@settings_option
@program_access_options
@click.option(
    "--node-name", envvar="NODE_NAME", required=True, help="Name of the node that the agent runs on.  [env: NODE_NAME]"
)
@click.option(
    "--kubelet-directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Directory of the kubelet, with its sockets.",
)
@click.option("--pod-uid", envvar="POD_UID", default="", help="UID of the pod that the agent runs in.  [env: POD_UID]")
def agent(
    settings_file: Path | None,
    kubeconfig: str | None,
    context: str | None,
    node_name: str,
    kubelet_directory: Path,
    pod_uid: str,
) -> None:
    """Run the node agent: report this node's GPUs, and give containers their cards."""
    from gpuledger.agent.supervisor import Supervisor
    from gpuledger.configuration.dialects import dialects_of
    from gpuledger.configuration.files import config_maps, nodes_config, settings_before_cluster

    end_without_cluster(kubeconfig)
    with settings_refused():
        settings = settings_before_cluster(settings_file)
        if not config_maps(settings):  # else the child finds out
            nodes_config(settings)
        dialects_of(settings)

    def serve(pipe: int) -> int:
        # Imported in the child alone, so that the parent stays small.
        from gpuledger.agent.agent import AgentOptions, run_agent

        options = AgentOptions(
            settings=settings,
            settings_file=settings_file,
            node_name=node_name,
            kubelet_directory=kubelet_directory,
            pod_uid=pod_uid,
            kubeconfig=kubeconfig,
            context=context,
        )
        until_interrupted(lambda: run_agent(options, pipe))
        return 0

    sys.exit(Supervisor(serve).run())
