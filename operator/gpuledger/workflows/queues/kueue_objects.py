"""Kueue's objects that say which workloads are ours to check, and which nodes they may go to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpuledger.formats.kubernetes.workload import (
    ClusterQueue,
    Flavor,
    active_patch,
    cluster_queue,
    flavor,
    is_ours,
)
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.clock import Clock, Listeners
from gpuledger.model.errors import ApiError, BadInput, Conflict, NotFound
from gpuledger.model.json_object import JsonMapping
from gpuledger.workflows.tasks.pauses import sleep_backoff

logger = logging.getLogger(__name__)


class KueueObjects:
    """Knows AdmissionChecks of ours, ResourceFlavors and ClusterQueues."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checks: dict[
            str, tuple[str, JsonMapping | None]
        ] = {}  # UID of a check of ours -> name, and what to write there
        self._flavors: dict[str, tuple[str, Flavor]] = {}  # UID -> name, and what it adds to pods
        self._queues: dict[str, ClusterQueue] = {}  # UID -> the ClusterQueue
        self.changes = 0
        """How often a flavor or a ClusterQueue has come, gone, or changed so far, as far as it matters here."""
        self.on_change = Listeners[[]]()
        """Called when there is a check more, or a flavor or ClusterQueue says something else."""

    @property
    def checks(self) -> list[str]:
        """Return the names of the AdmissionChecks that gpuledger answers."""
        return [name for name, _ in self._checks.values()]

    def flavors(self, names: tuple[str, ...]) -> list[Flavor]:
        """Return those of these flavors that are known."""
        by_name = dict(self._flavors.values())
        return [by_name[name] for name in names if name in by_name]

    def check(self, found: JsonMapping, gone: bool) -> None:
        """Observe an AdmissionCheck."""
        uid = str(found["metadata"]["uid"])
        if gone or not is_ours(found):
            self._checks.pop(uid, None)
            return
        patch = active_patch(found, self._clock.wall().isoformat())
        self._checks[uid] = str(found["metadata"]["name"]), patch
        self.on_change()

    def flavor(self, found: JsonMapping, gone: bool) -> None:
        """Observe a ResourceFlavor."""
        uid = str(found["metadata"]["uid"])
        known = None if gone else (str(found["metadata"]["name"]), flavor(found))
        before = self._flavors.pop(uid, None)
        if known is not None:
            self._flavors[uid] = known
        if known != before:
            self.changes += 1
            self.on_change()

    def queue(self, found: JsonMapping, gone: bool) -> None:
        """Observe a ClusterQueue. One that can't be read takes nothing back, and gives nothing."""
        uid = str(found["metadata"]["uid"])
        before = self._queues.pop(uid, None)
        with suppress(BadInput):
            if not gone:
                self._queues[uid] = cluster_queue(found)
        if self._queues.get(uid) != before:
            self.changes += 1
            self.on_change()

    def queues(self) -> dict[str, ClusterQueue]:
        """Return the ClusterQueues by their names."""
        return {queue.name: queue for queue in self._queues.values()}

    async def report_active(self, store: KubeStore) -> None:
        """Set the AdmissionCheck's Active condition; without it Kueue admits nothing from its queues."""
        attempt = 0
        while (failed := await self._try_to_say_active(store)) is not None:
            if attempt == 0:
                logger.warning("admission checks can't be said to be active, retrying: %s", failed)
            await sleep_backoff(attempt, failed)
            attempt += 1

    async def _try_to_say_active(self, store: KubeStore) -> ApiError | None:
        failed = None
        for uid, (name, patch) in list(self._checks.items()):
            if patch is None:
                continue
            try:
                await store.patch_admission_check_status(name, patch)
            except (Conflict, NotFound):  # it has changed, which the watch shows
                pass
            except ApiError as error:
                failed = error
                continue
            if self._checks.get(uid) == (name, patch):
                self._checks[uid] = name, None
        return failed

    def listing_checks(self) -> Callable[[set[str]], None]:
        """Return what forgets the checks that are not in the list read since."""
        return _forgets(self._checks)

    def listing_queues(self) -> Callable[[set[str]], None]:
        """Return what forgets the ClusterQueues that are not in the list read since."""
        return _forgets(self._queues)

    def listing_flavors(self) -> Callable[[set[str]], None]:
        """Return what forgets the flavors that are not in the list read since."""
        return _forgets(self._flavors)


def _forgets(known: dict[str, Any]) -> Callable[[set[str]], None]:
    before = set(known)

    def listed(uids: set[str]) -> None:
        for uid in before - uids:
            known.pop(uid, None)

    return listed
