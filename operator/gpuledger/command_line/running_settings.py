"""The settings that the operator in a cluster has: what other commands say of that cluster has to rest on the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.command_line.options import read_settings
from gpuledger.formats.kubernetes.lease import LEASE_NAMESPACE
from gpuledger.model.errors import BadInput, Denied, NotFound

if TYPE_CHECKING:
    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.client import KubeClient

DEPLOYMENT, CONTAINER = "gpuledger", "operator"


def named_settings(file: Path | None, kubeconfig: str | None, context: str | None) -> Settings | None:
    """Return the settings of a file that was named, None if none was. A bad one ends the program with a message."""
    return None if file is None else read_settings(file, kubeconfig, context)


async def settings_in_use(client: KubeClient, named: Settings | None) -> Settings:
    """Return the settings that were named; else those of the cluster's Deployment; without one, the defaults.

    Raises BadInput if the Deployment's settings can't be read, and says that --settings names others.
    """
    from gpuledger.configuration.settings import Settings
    from gpuledger.doctor.workload_settings import settings_of_workload
    from gpuledger.kube_api.reads import KubeReads

    if named is not None:
        return named
    try:
        deployment = await KubeReads(client).deployment(LEASE_NAMESPACE, DEPLOYMENT)
    except NotFound:  # it runs outside, or is not installed yet
        return Settings()
    except Denied as error:
        raise BadInput(f"the operator's settings can't be read: {error}; name them by --settings") from error
    try:
        found = await settings_of_workload(client, deployment, CONTAINER)
    except (BadInput, Denied, NotFound) as error:
        where = f"Deployment {LEASE_NAMESPACE}/{DEPLOYMENT}"
        raise BadInput(f"the settings of {where} can't be read: {error}; name them by --settings") from error
    return found[1] if found else Settings()
