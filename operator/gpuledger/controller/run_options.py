"""How an operator is run: by the options of `gpuledger run`, or by the same as variables of the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.configuration.files import settings_before_cluster
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput

BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""As the command line reads variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What does not stand in the settings."""

    settings: Settings
    """Before the cluster was asked: of ConfigMaps that they name, only the names."""
    settings_file: Path | None = None
    """Where they are from."""
    kubeconfig: str | None = None
    """How to reach the API server: files, parted by colons; None: as the pod's service account."""
    context: str | None = None
    """Which context of these files; None: the current one."""
    host_name: str | None = None
    """Write only while the kube-scheduler of this host holds the schedulers' Lease; None: always."""
    scheduler_pipe: Path | None = None
    """Named pipe through which that kube-scheduler gets its configuration."""
    extender_secret: Path | None = None
    """File with the secret by which the extender knows that kube-scheduler; None: it answers whoever reaches it."""


def followed_host_name(leader_elect: bool, host_name: str | None) -> str | None:
    """Return whose kube-scheduler is followed: that of a host, or else of this one."""
    return (host_name or socket.gethostname()) if leader_elect else None


def options_from(environment: Mapping[str, str]) -> RunOptions:
    """Return the options of the environment, by the names under which `gpuledger run` reads them. Raises BadInput."""
    leader_elect = BOOLEANS.get(environment.get("GPULEDGER_LEADER_ELECT", "true").lower())
    if leader_elect is None:
        raise BadInput("GPULEDGER_LEADER_ELECT: must be true or false")
    file = _path(environment, "GPULEDGER_SETTINGS")
    return RunOptions(
        settings=settings_before_cluster(file),
        settings_file=file,
        kubeconfig=environment.get("KUBECONFIG") or None,
        host_name=followed_host_name(leader_elect, environment.get("GPULEDGER_HOST")),
        scheduler_pipe=_path(environment, "GPULEDGER_SCHEDULER_CONFIG"),
        extender_secret=_path(environment, "GPULEDGER_EXTENDER_SECRET"),
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None
