"""`gpuledger agent`: the node agent. The parent process imports little: it only watches its child."""

from __future__ import annotations

import logging
import sys
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
    from gpuledger.configuration.config_files import nodes_config
    from gpuledger.configuration.dialects import dialects_of

    settings = read_settings(settings_file)
    end_without_cluster(kubeconfig)
    try:
        config, dialects = nodes_config(settings).of(node_name), dialects_of(settings)
    except BadInput as error:
        raise click.ClickException(str(error)) from error

    def serve(pipe: int) -> int:
        # Imported in the child alone, so that the parent stays small.
        from gpuledger.agent.agent_plan import agent_plan, device_source
        from gpuledger.agent.startup import run_agent

        try:
            plan = agent_plan(settings, dialects, config, node_name, kubelet_directory, pod_uid)
        except BadInput as error:
            logging.error("%s", error)
            return 1
        until_interrupted(lambda: run_agent(plan, device_source(settings), pipe, kubeconfig, context))
        return 0

    sys.exit(Supervisor(serve).run())
