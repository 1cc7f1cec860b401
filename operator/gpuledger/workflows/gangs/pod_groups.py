"""What PodGroups say of gangs: of those kinds that a pod has named, as far as they can be read.

A kind that no pod names costs nothing. One that a pod names, and that the API server does not have, is asked for again
every few seconds while the pod waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gpuledger.formats.kubernetes.gang import OF_WAY, PODGROUPS, GroupWords, name_of, pod_group
from gpuledger.kube_api.watch import Listed, forgetting
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import GangName, GangWay, PodGroup
from gpuledger.model.json_object import Json
from gpuledger.workflows.kinds import POD_GROUPS, Subscription
from gpuledger.workflows.reporting import Counts

logger = logging.getLogger(__name__)


NOT_READ_YET = "PodGroups have not been read yet"


class _Known(NamedTuple):
    uid: str
    group: PodGroup


class PodGroups:
    """Knows PodGroups. A kind that no pod names is not read at all."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._known: dict[GangName, _Known] = {}
        self._unread = {words.way: NOT_READ_YET for words in PODGROUPS}  # why a kind is not known; not those that are
        self.named = {words.way: asyncio.Event() for words in PODGROUPS}
        """Set when a pod has named one of a kind."""
        self.on_change = Listeners[[GangName]]()
        """Called with the gang of a PodGroup that has come, has changed, or is gone."""
        self.on_read = Listeners[[GangWay]]()
        """Called when it becomes known of a whole kind that it can be read, or can't."""

    def of(self, name: GangName) -> PodGroup | None:
        """Return a gang's PodGroup; None for a gang that needs none, as its pods' labels say all."""
        words = OF_WAY.get(name.way)
        if words is None:
            return None
        self.named[name.way].set()
        known = self._known.get(name)
        if known is not None:
            return known.group
        why = self._unread.get(name.way)
        text = f"PodGroup {name} of {words.api_group} "
        return PodGroup(0, problem=text + (f"is not known: {why}" if why else "does not exist"))

    def observe(self, words: GroupWords, group: Json, gone: bool) -> None:
        """Observe a PodGroup. An invalid one is counted, and its pods wait with its problem as their reason."""
        name, uid = name_of(group, words), str(group["metadata"].get("uid"))
        if gone:
            self._forget(name, uid)
            return
        try:
            said = pod_group(group, words)
        except BadInput as error:
            said = PodGroup(0, problem=str(error))
        before = self._known.get(name)
        self._known[name] = _Known(uid, said)
        if before is not None and before.group == said:
            return
        if said.problem:
            self._counts.bad_input.labels("podgroup").inc()
            logger.error("podgroup %s can't be used: %s", name, said.problem)
        self.on_change(name)

    def listing(self, words: GroupWords) -> Listed:
        """Record the known PodGroups of a kind; return a function that forgets those missing in a later list."""
        before = {known.uid: name for name, known in self._known.items() if name.way is words.way}
        return forgetting(before, lambda uid: self._forget(before[uid], uid), lambda: self._tell(words.way, ""))

    def can_not_be_read(self, words: GroupWords, why: str) -> None:
        """Note why a kind can't be read: the API server has none, or does not allow it."""
        for name in [name for name in self._known if name.way is words.way]:
            del self._known[name]
        self._tell(words.way, why)

    def subscriptions(self, is_named: Callable[[GangWay], bool]) -> list[Subscription]:
        """Return a subscription for each kind; `is_named` returns whether a pod names one of a kind at the moment."""
        return [
            Subscription(
                POD_GROUPS[words.way],
                partial(self.observe, words),
                partial(self.listing, words),
                wanted=self.named[words.way],
                is_wanted=partial(is_named, words.way),
                can_not_be_read=partial(self.can_not_be_read, words),
            )
            for words in PODGROUPS
        ]

    def _tell(self, way: GangWay, why: str) -> None:
        before = self._unread.pop(way, "")
        if why:
            self._unread[way] = why
        if before != why:
            self.on_read(way)

    def _forget(self, name: GangName, uid: str) -> None:
        known = self._known.get(name)
        if known is not None and known.uid == uid:
            del self._known[name]
            self.on_change(name)
