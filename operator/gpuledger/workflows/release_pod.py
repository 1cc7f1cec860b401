"""The end of a pod's shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from gpuledger.formats.pod import bound_node, has_started, is_finished
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import NotFound
from gpuledger.model.share import Holder, HolderState
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.journal import Journal
from gpuledger.workflows.keyed_worker import KeyedWorker

logger = logging.getLogger(__name__)

Json = dict[str, Any]

PODS_AT_ONCE = 64


class PodReader(Protocol):
    """The pods at the API server."""

    async def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as it is now. Raises NotFound."""


class PodReleaser:
    """Takes pods out of the ledger that have ended, and no others."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        store: PodReader,
        counts: Counts,
        is_binding: Callable[[str], bool],
        release_delay_s: float,
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._store = store
        self._counts = counts
        self._is_binding = is_binding
        self._release_delay_s = release_delay_s
        self._started: dict[str, bool] = {}  # UID of a bound pod -> whether a kubelet was seen to take it up
        self.worker = KeyedWorker(self._judge, PODS_AT_ONCE)

    def observe(self, pod: Json) -> None:
        """Take in a bound pod: once it is finished, its shares are released."""
        self._counts.pods_examined += 1
        uid = pod["metadata"]["uid"]
        if is_finished(pod):
            self._started.pop(uid, None)
            if self._ledger.holders_of(uid):
                self.worker.mark(uid)
        else:
            self._started[uid] = has_started(pod)

    def known_pods(self) -> set[str]:
        """Return the UIDs of the bound pods that were seen and not seen to end."""
        return set(self._started)

    def forget(self, pod: Json) -> None:
        """Take in that a pod has left the watch. A hint only: the API server is asked before anything is released."""
        self._counts.pods_examined += 1
        self.recheck(pod["metadata"]["uid"])

    def recheck(self, pod_uid: str) -> None:
        """Find out whether a pod that holds shares still has a right to them."""
        if self._ledger.holders_of(pod_uid):
            self.worker.mark(pod_uid)
        else:
            self._started.pop(pod_uid, None)

    async def _judge(self, pod_uid: str) -> None:
        holders = [holder for _, holder in self._ledger.holders_of(pod_uid)]
        if not holders or self._is_binding(pod_uid):
            return
        pod = await self._read(holders[0])
        if self._is_binding(pod_uid):
            return
        if pod is None:
            await self._release_gone(pod_uid, holders)
        elif is_finished(pod) or not bound_node(pod):
            await self._remove(holders)
        else:
            self._started[pod_uid] = has_started(pod)

    async def _read(self, holder: Holder) -> Json | None:
        try:
            pod = await self._store.pod(holder.pod.namespace, holder.pod.name)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == holder.pod.uid else None

    async def _release_gone(self, pod_uid: str, holders: list[Holder]) -> None:
        """Release the shares of a pod that no longer exists, later if it may still run on its node.

        A pod that ends in good order is seen finished before it is deleted. One that was deleted by force while it ran
        can have processes on the card until its kubelet hears of it.
        """
        if not self._started.get(pod_uid, False) and all(h.state is HolderState.ALLOCATED for h in holders):
            await self._remove(holders)
            return
        now = datetime.now(UTC)
        for holder in holders:
            if holder.state is HolderState.ALLOCATED:
                until = now + timedelta(seconds=self._release_delay_s)
                deadline = until.strftime("%Y-%m-%dT%H:%M:%SZ")
                await self._journal.change(replace(holder, state=HolderState.RELEASING, deadline=deadline))
            else:
                until = datetime.fromisoformat(holder.deadline) if holder.deadline else now
            if until <= now:
                await self._remove([holder])
            else:
                wait_s = (until - now).total_seconds() + 1
                asyncio.get_running_loop().call_later(wait_s, self.recheck, pod_uid)

    async def _remove(self, holders: list[Holder]) -> None:
        self._counts.releases += 1
        self._started.pop(holders[0].pod.uid, None)
        await asyncio.gather(*(self._journal.remove(holder.share.uuid, holder.pod.uid) for holder in holders))
