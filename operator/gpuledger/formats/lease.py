"""The Lease by which the kube-schedulers of several replicas agree on who schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEASE_NAMESPACE = "gpuledger-system"
LEASE_NAME = "gpuledger-scheduler"


def holder_host(lease: Mapping[str, Any]) -> str:
    """Return the host name of the kube-scheduler that holds the Lease, an empty string if none does.

    Source: kube-scheduler's identity is its host name and a UUID, joined by an underscore. In a pod the host name is
    the pod's name, for all of its containers.
    """
    identity = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return identity.rpartition("_")[0]
