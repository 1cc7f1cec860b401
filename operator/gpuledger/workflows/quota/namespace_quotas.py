"""Follows ResourceQuotas, and tells the ledger what each namespace may have of GPUs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.objects.resource_quota import limits_of, used_of
from gpuledger.ledger.quotas import Quotas
from gpuledger.model.listeners import Listeners
from gpuledger.model.quota import QuotaLimit
from gpuledger.workflows.counts import Counts

logger = logging.getLogger(__name__)

Json = dict[str, Any]


class KnownQuota(NamedTuple):
    """A ResourceQuota that has a key of ours."""

    namespace: str
    name: str
    limits: tuple[QuotaLimit, ...]
    problems: tuple[str, ...]
    used: Mapping[str, int]
    """What its status says is used of these limits, by their keys."""


class NamespaceQuotas:
    """What is known of ResourceQuotas that have a key of ours; others cost nothing but their place in the watch."""

    def __init__(self, quotas: Quotas, dialects: Dialects, counts: Counts) -> None:
        self._quotas = quotas
        self._dialects = dialects
        self._counts = counts
        self._known: dict[str, KnownQuota] = {}  # UID -> what it says
        self._of_namespace: dict[str, set[str]] = {}  # namespace -> UIDs of its quotas
        self.listed = asyncio.Event()
        """Set once all are known."""
        self.on_seen = Listeners[[str]]()
        """Called with the UID of a quota that the API server has in another version than before."""

    def observe(self, quota: Json, gone: bool) -> None:
        """Observe a ResourceQuota. A key that can't be used is counted, and limits nothing."""
        metadata = quota["metadata"]
        uid, namespace, name = str(metadata["uid"]), str(metadata["namespace"]), str(metadata["name"])
        if gone:
            self._forget(uid)
            return
        limits, problems = limits_of(quota, self._dialects)
        before = self._known.get(uid)
        known = KnownQuota(namespace, name, tuple(limits), tuple(problems), used_of(quota, limits))
        if before == known:
            return
        for problem in problems:
            if before is None or problem not in before.problems:
                self._counts.bad_input.labels("resourcequota").inc()
                logger.error("resourcequota %s/%s, spec.hard, %s; it limits nothing", namespace, name, problem)
        if not limits and not problems:
            self._forget(uid)
            return
        self._known[uid] = known
        self._of_namespace.setdefault(namespace, set()).add(uid)
        if before is None or before.limits != known.limits:
            self._tell(namespace)
        self.on_seen(uid)

    def find(self, uid: str) -> KnownQuota | None:
        """Return a quota, None if there is none with a key of ours."""
        return self._known.get(uid)

    def uids(self) -> Collection[str]:
        """Return the UIDs of all."""
        return self._known.keys()

    def of_namespace(self, namespace: str) -> Collection[str]:
        """Return the UIDs of those of a namespace."""
        return self._of_namespace.get(namespace, ())

    def listing(self) -> Callable[[set[str]], None]:
        """Note what is known; return what forgets those that are not in the list read since."""
        before = set(self._known)

        def listed(uids: set[str]) -> None:
            for uid in before - uids:
                self._forget(uid)
            self.listed.set()

        return listed

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker: what is on hold for a pod counts for its namespace."""
        self._quotas.knows(str(pod["metadata"]["uid"]), str(pod["metadata"]["namespace"]))

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._quotas.forget(pod_uid)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return self._quotas.known()

    def _forget(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        if known is None:
            return
        uids = self._of_namespace[known.namespace]
        uids.remove(uid)
        if not uids:
            del self._of_namespace[known.namespace]
        self._tell(known.namespace)

    def _tell(self, namespace: str) -> None:
        known = sorted((self._known[uid] for uid in self._of_namespace.get(namespace, ())), key=lambda each: each.name)
        self._quotas.set_limits(namespace, [limit for each in known for limit in each.limits])
