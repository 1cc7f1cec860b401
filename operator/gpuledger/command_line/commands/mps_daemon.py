"""`gpuledger mps-daemon`: NVIDIA's MPS on a node. It talks to nobody but the daemons."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.command_line.options import settings_option, settings_refused, until_interrupted


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
