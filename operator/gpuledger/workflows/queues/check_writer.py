"""Writes what an admission check says of a workload: only as long as the workload is as it was looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gpuledger.formats.kubernetes.condition import shortened
from gpuledger.formats.kubernetes.workload import CheckState, Workload, check_patch, workload
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, Conflict, NotFound
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.tasks.pauses import sleep_backoff

logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""While Kueue is down, the API server refuses each after 10 s, for Kueue's webhook does not answer."""


class CheckWriter:
    """Sends one write at a time for each workload, each in a task of its own."""

    def __init__(self, store: KubeStore, counts: Counts, clock: Clock, is_active: Callable[[], bool]) -> None:
        self._store = store
        self._counts = counts
        self._clock = clock
        self._is_active = is_active
        self._tasks: dict[str, asyncio.Task[None]] = {}  # UID of a workload -> what is being written of it

    def is_writing(self, uid: str) -> bool:
        """Return whether a write about a workload is under way."""
        return uid in self._tasks

    def say(
        self,
        of: Workload,
        check: str,
        state: CheckState,
        message: str,
        done: Callable[[Workload | None], None],
    ) -> None:
        """Begin to write, after what is being written already.

        `done` is called with the workload as it is then, None if it could not be written.
        """
        before = self._tasks.get(of.uid)

        async def write() -> None:
            written = None
            try:
                if before is not None:
                    await asyncio.wait([before])
                written = await self._write(of, check, state, message)
            finally:
                if self._tasks.get(of.uid) is task:
                    del self._tasks[of.uid]
                done(written)

        task = self._tasks[of.uid] = asyncio.create_task(write(), name=f"check of workload {of.name}")

    async def _write(self, of: Workload, check: str, state: CheckState, message: str) -> Workload | None:
        now = of
        for attempt in range(ATTEMPTS):
            if not self._is_active():
                return None
            patch = check_patch(now, check, state, message, self._clock.wall().isoformat())
            try:
                found = await self._store.patch_workload_status(now.name.namespace, now.name.name, patch)
                self._counts.workload_checks.labels(state.value).inc()
                return workload(found)
            except Conflict:
                try:
                    now = workload(await self._store.workload(now.name.namespace, now.name.name))
                except ApiError:
                    return None
                if attempt and _says(now, of, check, state, message):  # the answer to an earlier attempt was lost
                    return now
                if not _is_as_before(of, now, check):
                    return None
            except NotFound:
                return None
            except ApiError as error:
                logger.info("workload %s: its check %s can't be written: %s", of.name, check, error)
                await sleep_backoff(attempt, error)
        return None

    async def stop(self) -> None:
        """Write no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _says(now: Workload, of: Workload, check: str, state: CheckState, message: str) -> bool:
    """Return whether a workload has the quota that it had, and its check says this."""
    said = now.check((check,)) or {}
    return (
        (now.uid, now.reserved_at) == (of.uid, of.reserved_at)
        and now.has_quota
        and (said.get("state"), said.get("message")) == (state, shortened(message))
    )


def _is_as_before(before: Workload, now: Workload, check: str) -> bool:
    """Return whether what was decided about a workload still holds: the same quota, and the check said the same."""
    state, state_now = (each.check((check,)) or {} for each in (before, now))
    return (
        (now.uid, now.cluster_queue, now.reserved_at, now.is_admitted)
        == (before.uid, before.cluster_queue, before.reserved_at, before.is_admitted)
        and now.has_quota
        and state.get("state") == state_now.get("state")
    )
