"""Tells kube-scheduler where room is being made for a pod: `status.nominatedNodeName`.

Cards are promised in the ledger; CPU, memory and ports are kube-scheduler's. What the victims free of these, and what
was free when they were chosen, it keeps from pods of the same or lower priority on a node that a pod is nominated for.
It is a hint: kube-scheduler may clear it, and nothing of ours relies on it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.objects.pod import nominated_node, resource_version
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.errors import ApiError
from gpuledger.model.share import Pod

logger = logging.getLogger(__name__)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Shown:
    """The nomination in one version of a pod."""

    version: int
    node_name: str


class Nominator:
    """Names the nodes on which the operator makes room, with a write only where it changes something."""

    def __init__(self, store: KubeStore) -> None:
        self._store = store
        self._named: dict[str, str] = {}  # pod UID -> node that this operator has named for it
        self._shown: dict[str, _Shown] = {}  # pod UID -> what is known of it, once there was a nomination

    def shows(self, pod: Json) -> None:
        """Observe a pod without a node, as a watch or a list shows it; that can be older than our own write."""
        uid, found = pod["metadata"]["uid"], _Shown(int(resource_version(pod) or 0), nominated_node(pod))
        known = self._shown.get(uid)
        if found.node_name if known is None else found.version > known.version:
            self._shown[uid] = found

    def forget(self, pod_uid: str) -> None:
        """Note that a pod is bound or gone."""
        self._named.pop(pod_uid, None)
        self._shown.pop(pod_uid, None)

    async def name(self, pod: Pod, node_name: str) -> None:
        """Name the node on which room is being made for a pod."""
        self._named[pod.uid] = node_name
        await self.keep(pod)

    async def keep(self, pod: Pod) -> None:
        """Name it again, if it was named and another client has cleared that."""
        node_name = self._named.get(pod.uid)
        if node_name is not None:
            await self._write(pod, node_name)

    async def clear(self, pod: Pod, node_name: str, is_ours: bool) -> None:
        """Take a nomination for a node back, if there is one and this operator has made it, or `is_ours` says so."""
        named = self._named.pop(pod.uid, None)
        known = self._shown.get(pod.uid)
        if known is not None and known.node_name == node_name and (is_ours or named == node_name):
            await self._write(pod, "")

    async def _write(self, pod: Pod, node_name: str) -> None:
        known = self._shown.get(pod.uid)
        if (known.node_name if known else "") == node_name:
            return
        try:
            self.shows(await self._store.nominate_pod(pod, node_name))
        except ApiError as error:
            logger.info("pod %s can't be nominated for node %s: %s", pod, node_name or "none", error)
