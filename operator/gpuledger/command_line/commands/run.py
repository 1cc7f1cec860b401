"""The commands that run in a cluster: the operator, the node agent, MPS daemons; and those that simulate nodes."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from gpuledger.command_line.options import (
    end_without_cluster,
    extender_secret_option,
    program_access_options,
    read_settings,
    settings_option,
    settings_refused,
    until_interrupted,
)
from gpuledger.model.errors import BadInput


@click.command()
@settings_option
@program_access_options
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    envvar="GPULEDGER_LEADER_ELECT",
    help="Write only while the kube-scheduler beside this operator holds the schedulers' Lease.  "
    "[env: GPULEDGER_LEADER_ELECT]",
)
@click.option(
    "--host",
    envvar="GPULEDGER_HOST",
    help="Host name of that kube-scheduler; without it, this host's name (same pod).  [env: GPULEDGER_HOST]",
)
@click.option(
    "--scheduler-config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GPULEDGER_SCHEDULER_CONFIG",
    help="Named pipe from which that kube-scheduler reads its configuration, so that it starts after the operator.  "
    "[env: GPULEDGER_SCHEDULER_CONFIG]",
)
@extender_secret_option
@click.option(
    "--history",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="GPULEDGER_HISTORY",
    help="Directory where the history is kept for the next process.  [env: GPULEDGER_HISTORY]",
)
@click.option(
    "--replica-token",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GPULEDGER_REPLICA_TOKEN",
    help="File with a token for the audience gpuledger.dev/history: the other replicas give their history for it.  "
    "[env: GPULEDGER_REPLICA_TOKEN]",
)
def run(
    settings_file: Path | None,
    kubeconfig: str | None,
    context: str | None,
    leader_elect: bool,
    host: str | None,
    scheduler_config: Path | None,
    extender_secret: Path | None,
    **of_history: Path | None,
) -> None:
    """Run the operator: keep the ledger, and serve kube-scheduler as its extender."""
    end_without_cluster(kubeconfig)
    import uvloop  # a second, which the help does without

    from gpuledger.configuration.files import settings_before_cluster
    from gpuledger.controller.kopf_frame import run as run_operator
    from gpuledger.controller.startup import RunOptions, followed_host_name

    with settings_refused():
        settings = settings_before_cluster(settings_file)
    options = RunOptions(
        settings=settings,
        settings_file=settings_file,
        kubeconfig=kubeconfig,
        context=context,
        host_name=followed_host_name(leader_elect, host),
        scheduler_pipe=scheduler_config,
        extender_secret=extender_secret,
        **of_history,
    )
    until_interrupted(lambda: run_operator(options), uvloop.new_event_loop)


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
    if find_spec("grpc") is None:  # it is imported in the child, which would be started again and again
        raise ModuleNotFoundError("gRPC is not installed", name="grpc")
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


@click.command("mps-daemon")
@settings_option
@click.option("--pod-uid", envvar="POD_UID", default="", help="UID of the pod that it runs in.  [env: POD_UID]")
@click.option(
    "--mount-shared-memory",
    "shared_memory",
    metavar="SIZE",
    help="Mount so much memory, such as 50%, as shm in mps_directory, unless it is mounted, and end.",
)
def mps_daemon(settings_file: Path | None, pod_uid: str, shared_memory: str | None) -> None:
    """Run NVIDIA's MPS daemons for this node's GPUs, and watch them.

    One for each card, and one for containers with several; when this program ends, they end, and with them the programs
    that use them. It needs nvidia-cuda-mps-control, the setting mps_directory, and the process ids of the node.
    """
    from gpuledger.agent.config import device_source
    from gpuledger.agent.isolation.mps_daemons import MpsPlan, mount_shared_memory, run_mps
    from gpuledger.configuration.files import settings_before_cluster

    with settings_refused():
        settings = settings_before_cluster(settings_file)
    if shared_memory is not None:
        with settings_refused():
            mount_shared_memory(Path(settings.mps_directory), shared_memory)
        return
    plan = MpsPlan(
        directory=Path(settings.mps_directory),
        multiuser=settings.mps_multiuser,
        most_memory_percent=settings.mps_client_memory_percent,
        most_cores_percent=settings.mps_client_cores_percent,
        pod_uid=pod_uid,
    )
    until_interrupted(lambda: run_mps(plan, lambda: device_source(settings)))


@click.command("fake-nodes")
@settings_option
@program_access_options
@click.option("--count", default=3, show_default=True, help="Number of nodes.")
@click.option("--gpus", default=8, show_default=True, help="Cards per node.")
@click.option("--model", default="A100-40GB", show_default=True, help="Model of the cards; see --list-models.")
@click.option("--slots", type=int, help="Slots per card: how many shares it has at most.  [default: slots_per_card]")
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
