"""The API server as the workflows know it."""

from __future__ import annotations

from gpuledger.kube_api.kueue import KueueRequests
from gpuledger.kube_api.reads import KubeReads
from gpuledger.kube_api.writes import KubeWrites


class KubeStore(KubeReads, KubeWrites, KueueRequests):
    """All requests to the API server behind the protocols of the workflows."""
