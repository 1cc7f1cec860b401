"""ResourceClaims, their templates and DeviceClasses in memory, from the first pod on that brings a claim."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpuledger.formats.objects.pod import resource_version
from gpuledger.formats.resource_claims.objects import (
    Claim,
    ClaimSpec,
    DeviceClass,
    read_claim,
    read_class,
    read_template,
)
from gpuledger.formats.resource_claims.pod_claims import claim_names, has_claims
from gpuledger.ledger.book import Ledger
from gpuledger.model.listeners import Listeners
from gpuledger.workflows.apart import apart
from gpuledger.workflows.counts import Counts

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Name = tuple[str, str]  # namespace, name

LISTS_WAIT_S = 5.0
"""How long the first question about a pod with claims waits for the lists: kube-scheduler asks again after that."""


class Kind(StrEnum):
    """What is followed, by the names of the API."""

    CLAIMS = "resourceclaims"
    TEMPLATES = "resourceclaimtemplates"
    CLASSES = "deviceclasses"


@dataclass(slots=True)
class _Kept:
    """The objects of one kind."""

    objects: dict[Name, Any] = field(default_factory=dict)
    uids: dict[Name, str] = field(default_factory=dict)
    tried: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class WaitingClaims:
    """A pod that waits for a node, and brings claims."""

    resource_version: str
    names: dict[str, str]
    """Claim in the pod -> its ResourceClaim, empty if it is not made yet."""


_READERS: dict[Kind, Callable[[Json], Any]] = {
    Kind.CLAIMS: read_claim,
    Kind.TEMPLATES: read_template,
    Kind.CLASSES: read_class,
}


class ClaimBook:
    """What is known of claims; a cluster whose pods bring none is not asked about them."""

    def __init__(self, ledger: Ledger, counts: Counts, all_drivers_scheduler_name: str = "") -> None:
        self._ledger, self._counts = ledger, counts
        self._all_drivers_scheduler_name = all_drivers_scheduler_name
        self._kept = {kind: _Kept() for kind in Kind}
        self._pods: dict[str, WaitingClaims] = {}  # UID of a pod without a node
        self._news: dict[str, list[asyncio.Future[None]]] = defaultdict(list)  # pod UID -> who waits for its claims
        self.wanted = asyncio.Event()
        """Set when a pod has brought a claim."""
        self.on_claim = Listeners[[Name]]()
        """Called when a claim has changed, or is gone."""
        self.on_waits_no_more = Listeners[[str]]()
        """Called with the UID of a pod that waited, and brings claims."""
        self.on_appeared = Listeners[[Kind, Name]]()
        """Called when an object is there that was not."""
        self.changes = 0
        """How often a template or a class has changed, has come, or has gone."""

    # What formats ask, see ClaimObjects.

    def claim(self, namespace: str, name: str) -> Claim | None:
        """See ClaimObjects."""
        found: Claim | None = self._kept[Kind.CLAIMS].objects.get((namespace, name))
        return found

    def template(self, namespace: str, name: str) -> ClaimSpec | None:
        """See ClaimObjects."""
        found: ClaimSpec | None = self._kept[Kind.TEMPLATES].objects.get((namespace, name))
        return found

    def device_class(self, name: str) -> DeviceClass | None:
        """See ClaimObjects."""
        found: DeviceClass | None = self._kept[Kind.CLASSES].objects.get(("", name))
        return found

    def serves_other_drivers(self, scheduler_name: str) -> bool:
        """See ClaimObjects."""
        return bool(scheduler_name) and scheduler_name == self._all_drivers_scheduler_name

    def holder_of(self, claim: Claim) -> str:
        """See ClaimObjects. Who holds a claim's cards is among those that may use it."""
        return next((uid for uid in claim.reserved_for if self._holds(uid, claim.uid)), "")

    def shares_with_others(self, pod_uid: str) -> bool:
        """Tell whether other pods would go on using the cards that a pod holds: it makes no room by leaving."""
        parts = (part.claim for _, holder in self._ledger.holders_of(pod_uid) for part in holder.share.containers)
        shared = (claim.name for claim in parts if claim is not None and claim.shared)
        holders = self._ledger.holders_of(pod_uid)
        stored = (self.claim(holders[0][1].pod.namespace, name) for name in shared)
        return any(claim is not None and {*claim.reserved_for} - {pod_uid} for claim in stored)

    def _holds(self, pod_uid: str, claim_uid: str) -> bool:
        parts = (part for _, holder in self._ledger.holders_of(pod_uid) for part in holder.share.containers)
        return any(part.claim is not None and part.claim.uid == claim_uid for part in parts)

    # Pods.

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker."""
        if not has_claims(pod):
            return
        self.wanted.set()
        uid = pod["metadata"]["uid"]
        names = {name: object_name for name, object_name, _ in claim_names(pod)}
        self._pods[uid] = WaitingClaims(resource_version(pod), names)
        self._tell(uid)

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        if self._pods.pop(pod_uid, None) is not None:
            self._tell(pod_uid)
            self.on_waits_no_more(pod_uid)

    def known_pending(self) -> AbstractSet[str]:
        """See PendingPodTracker."""
        return self._pods.keys()

    def observe_bound(self, pod: Json, bound_before: bool) -> None:
        """See BoundPodTracker."""
        if has_claims(pod):
            self.wanted.set()

    def forget_bound(self, pod_uid: str, last: Json | None) -> None:
        """See BoundPodTracker."""

    def known_bound(self) -> AbstractSet[str]:
        """See BoundPodTracker."""
        return frozenset()

    def waiting(self, pod_uid: str) -> WaitingClaims | None:
        """Return what the watch has shown of a pod that waits and brings claims."""
        return self._pods.get(pod_uid)

    async def news_of(self, pod_uid: str) -> None:
        """Wait until the pod, or a claim that was made for it, has changed."""
        future = asyncio.get_running_loop().create_future()
        self._news[pod_uid].append(future)
        try:
            await future
        finally:
            with suppress(ValueError, KeyError):
                self._news[pod_uid].remove(future)
            if not self._news.get(pod_uid):
                self._news.pop(pod_uid, None)

    def _tell(self, pod_uid: str) -> None:
        for future in self._news.pop(pod_uid, ()):
            if not future.done():
                future.set_result(None)

    # Objects.

    async def ready_for(self, pod: Json) -> None:
        """Know what a pod's claims are that kube-scheduler asks about, even before the watch has shown the pod."""
        if not has_claims(pod):
            return
        known = self._pods.get(pod["metadata"]["uid"])
        if known is None:
            self.observe_pending(pod)
        await self.lists_are_read()

    async def know_claims_of(self, pod: Json) -> None:
        """Know what the claims of a pod ask for that does not exist yet."""
        if has_claims(pod):
            self.wanted.set()
            await self.lists_are_read()

    async def lists_are_read(self) -> None:
        """Wait until each kind was read, or could not be; for a while, and only if a pod has brought a claim."""
        if not self.wanted.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTS_WAIT_S):
                for kept in self._kept.values():
                    await kept.tried.wait()

    def observe(self, kind: Kind, obj: Json, gone: bool) -> None:
        """Observe an object of a kind."""
        with apart(kind.value, obj, self._counts):
            metadata = obj["metadata"]
            name = (metadata.get("namespace") or "", metadata["name"])
            if gone:
                self._forget(kind, name, metadata["uid"])
                return
            kept = self._kept[kind]
            is_new = name not in kept.objects
            kept.objects[name] = found = _READERS[kind](obj)
            kept.uids[name] = metadata["uid"]
            if kind is Kind.CLAIMS:
                self._changed(name, found)
            else:
                self.changes += 1
            if is_new:
                self.on_appeared(kind, name)

    def learn(self, claim: Claim) -> None:
        """Note a claim as the API server has answered, before the watch shows it."""
        kept, name = self._kept[Kind.CLAIMS], (claim.namespace, claim.name)
        kept.objects[name], kept.uids[name] = claim, claim.uid

    def _changed(self, name: Name, claim: Claim) -> None:
        self._tell(claim.owner)
        self.on_claim(name)

    def listing(self, kind: Kind) -> Callable[[set[str]], None]:
        """See `follow`."""
        before = dict(self._kept[kind].uids)

        def listed(uids: set[str]) -> None:
            for name, uid in before.items():
                if uid not in uids:
                    self._forget(kind, name, uid)
            self._kept[kind].tried.set()

        return listed

    def can_not_be_read(self, kind: Kind, why: str) -> None:
        """Note that a kind can't be read."""
        if not self._kept[kind].tried.is_set():
            logger.warning("%s can't be read: %s; pods that bring claims get no cards by them", kind, why)
        self._kept[kind].tried.set()

    def _forget(self, kind: Kind, name: Name, uid: str) -> None:
        kept = self._kept[kind]
        if kept.uids.get(name) != uid:  # another one has its name by now
            return
        del kept.uids[name]
        kept.objects.pop(name, None)
        if kind is Kind.CLAIMS:
            self.on_claim(name)
        else:
            self.changes += 1
