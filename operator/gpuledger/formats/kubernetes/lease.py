"""The Lease by which the kube-schedulers of several replicas agree on who schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEASE_NAMESPACE = "gpuledger-system"
LEASE_NAME = "gpuledger-scheduler"

LEASE_DURATION_S = 10
"""How long a kube-scheduler that says nothing keeps the Lease, from when the others have last seen it renewed."""

RENEW_DEADLINE_S = 8
"""After this time without an answer to its renewals a kube-scheduler ends: before another one can begin."""

RETRY_PERIOD_S = 1
"""How often the Lease is renewed, and looked at by those who would take it: they wait up to 2.2 times as long."""


def holder_host_name(lease: Mapping[str, Any]) -> str:
    """Return the host name of the kube-scheduler that holds the Lease, an empty string if none does.

    Source: kube-scheduler's identity is its host name and a UUID, joined by an underscore. In a pod the host name is
    the pod's name, for all of its containers.
    """
    identity = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return identity.rpartition("_")[0]
