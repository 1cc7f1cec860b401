"""Tells kube-scheduler where room is being made for a pod: `status.nominatedNodeName`.

Cards are promised in the ledger; CPU, memory and ports are kube-scheduler's. What the victims free of these, and what
was free when they were chosen, it keeps from pods of the same or lower priority on a node that a pod is nominated for.
It is a hint: kube-scheduler may clear it, and nothing of ours relies on it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from gpuledger.formats.kubernetes.pod import nominated_node, resource_version
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.clock import Backoff, Clock
from gpuledger.model.errors import ApiError
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod

logger = logging.getLogger(__name__)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Between two nominations of one pod that are made again: kube-scheduler tries a pod when its nomination changes, and
clears it where the pod does not fit."""


@dataclass(slots=True)
class _Pause:
    """When a nomination may be made again, by the clock."""

    until_s: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class _Shown:
    """The nomination in one version of a pod."""

    version: int
    node_name: str


class Nominator:
    """Names the nodes on which the operator makes room, with a write only where it changes something."""

    def __init__(self, store: KubeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._named: dict[str, str] = {}  # pod UID -> node that this operator has named for it
        self._shown: dict[str, _Shown] = {}  # pod UID -> what is known of it, once there was a nomination
        self._pauses: dict[str, _Pause] = {}  # pod UID -> since its nomination was made again

    def shows(self, pod: Json) -> None:
        """Observe a pod without a node, as a watch or a list shows it; that can be older than our own write."""
        uid, found = pod["metadata"]["uid"], _Shown(int(resource_version(pod) or 0), nominated_node(pod))
        known = self._shown.get(uid)
        if found.node_name if known is None else found.version > known.version:
            self._shown[uid] = found

    def forget(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone."""
        for known in (self._named, self._shown, self._pauses):
            known.pop(pod_uid, None)

    async def name(self, pod: Pod, node_name: str) -> None:
        """Name the node on which room is being made for a pod."""
        self._named[pod.uid] = node_name
        await self._write(pod, node_name)

    async def keep(self, pod: Pod) -> float:
        """Name it again, if it was named and another client has cleared that; not time and again.

        Returns after how many seconds to ask again, infinity if the nomination stands.
        """
        node_name = self._named.get(pod.uid)
        if node_name is None or self._shows(pod.uid, node_name):
            return math.inf
        pause = self._pauses.setdefault(pod.uid, _Pause())
        now_s = self._clock.now_s()
        if now_s < pause.until_s:
            return pause.until_s - now_s
        pause.until_s = now_s + pause.backoff.next_s()
        await self._write(pod, node_name)
        return math.inf

    async def clear(self, pod: Pod, node_name: str, is_ours: bool) -> None:
        """Take a nomination for a node back, if there is one and this operator has made it, or `is_ours` says so."""
        named = self._named.pop(pod.uid, None)
        self._pauses.pop(pod.uid, None)
        known = self._shown.get(pod.uid)
        if known is not None and known.node_name == node_name and (is_ours or named == node_name):
            await self._write(pod, "")

    def _shows(self, pod_uid: str, node_name: str) -> bool:
        known = self._shown.get(pod_uid)
        return (known.node_name if known else "") == node_name

    async def _write(self, pod: Pod, node_name: str) -> None:
        if self._shows(pod.uid, node_name):
            return
        try:
            self.shows(await self._store.nominate_pod(pod, node_name))
        except ApiError as error:
            logger.info("pod %s can't be nominated for node %s: %s", pod, node_name or "none", error)
