"""Shows in the status of ResourceQuotas what is used of their keys for GPUs, where `kubectl describe quota` reads it.

Kubernetes' own quota controller writes the rest of that status. It leaves alone what is used of keys that it does not
count, and both write so that a write of the other in between is not undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.quotas import Quotas
from gpuledger.model.errors import Denied, NotFound
from gpuledger.workflows.quota.namespace_quotas import KnownQuota, NamespaceQuotas
from gpuledger.workflows.tasks.keyed_worker import KeyedWorker

logger = logging.getLogger(__name__)

GATHER_S = 2.0
"""From the first change of a sum to the write: what changes until then is one write."""

WRITE_PAUSE_S = 0.05
"""There can be a thousand quotas: what has to be done at once goes first."""

DENIED_PAUSE_S = 30.0
"""After a write that we have no permission for, and for which there may be one later."""


class QuotaStatusWriter:
    """Writes what differs from what the watch shows, some time after it has begun to differ."""

    def __init__(
        self, sums: Quotas, quotas: NamespaceQuotas, store: KubeStore, is_active: Callable[[], bool] = lambda: True
    ) -> None:
        self._sums = sums
        self._quotas = quotas
        self._store = store
        self._timers: dict[str, asyncio.TimerHandle] = {}  # UID of a quota -> when it is looked at
        self._was_denied = False
        self.writes = 0
        """How often a status was written so far."""
        self.worker = KeyedWorker(self._bring_up_to_date, 1, is_active)
        sums.on_change.append(self._sum_has_changed)
        quotas.on_seen.append(self._look_soon)

    def look_again(self) -> None:
        """Compare all quotas with what they should show: others may have written until now."""
        for uid in self._quotas.uids():
            self._look_soon(uid)

    async def stop(self) -> None:
        """Write no more."""
        for timer in self._timers.values():
            timer.cancel()
        await self.worker.stop()

    def _sum_has_changed(self, namespace: str) -> None:
        for uid in self._quotas.of_namespace(namespace):
            self._look_soon(uid)

    def _look_soon(self, uid: str) -> None:
        if uid not in self._timers:
            self._timers[uid] = asyncio.get_running_loop().call_later(GATHER_S, self._due, uid)

    def _due(self, uid: str) -> None:
        del self._timers[uid]
        known = self._quotas.find(uid)
        if known is not None and self._not_shown(known):
            self.worker.mark(uid)

    def _not_shown(self, known: KnownQuota) -> dict[str, str]:
        """Return what is used of the keys of which the status says something else."""
        used = {each.key: each.as_stated(self._sums.used(known.namespace, each)) for each in known.limits}
        return {key: str(amount) for key, amount in used.items() if known.used.get(key) != amount}

    async def _bring_up_to_date(self, uid: str) -> None:
        known = self._quotas.find(uid)
        change = self._not_shown(known) if known else {}
        if known is None or not change:
            return
        try:
            await self._store.set_quota_used(known.namespace, known.name, uid, change)
        except NotFound:
            return
        except Denied as error:
            if not self._was_denied:
                logger.error("what is used of quotas is not shown in their status: %s", error)
            self._was_denied = True
            await asyncio.sleep(DENIED_PAUSE_S)
            self.worker.mark(uid)
            return
        self.writes += 1
        await asyncio.sleep(WRITE_PAUSE_S)
