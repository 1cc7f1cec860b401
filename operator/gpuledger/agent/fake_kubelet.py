"""Plays the kubelets of simulated nodes: tells the API server what would become of the pods (fake_pods.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from datetime import UTC, datetime

from gpuledger.agent.fake_pods import next_status
from gpuledger.formats.kubernetes.pod import bound_node, is_being_deleted
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads
from gpuledger.kube_api.writes import KubeletWrites
from gpuledger.model.errors import Conflict, NotFound, Unreachable
from gpuledger.model.json_object import Json

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.3


class FakeKubelet:
    """Reports on the pods of some nodes, and removes those that have ended. It polls, and is no model of a kubelet."""

    def __init__(self, client: KubeClient, node_names: Collection[str]) -> None:
        self._reads, self._writes = KubeReads(client), KubeletWrites(client)
        self._node_names = node_names

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            try:
                async for page in self._reads.all_bound_pods():
                    for pod in page:
                        if bound_node(pod) in self._node_names:
                            await self.play(pod)
            except Unreachable as error:
                logger.info("the API server does not answer: %s", error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def play(self, pod: Json) -> None:
        """Do what there is to do for a pod now."""
        status = next_status(pod, datetime.now(UTC))
        try:
            if status:
                await self._writes.set_pod_status(pod, status)
            if is_being_deleted(pod) and pod["metadata"].get("deletionGracePeriodSeconds") != 0:  # 0: only a finalizer
                await self._writes.remove_pod(pod)
        except (NotFound, Conflict):
            pass  # it went meanwhile
