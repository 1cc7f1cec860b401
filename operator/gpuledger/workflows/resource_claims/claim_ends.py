"""What becomes of pods' ResourceClaims when their shares end.

A claim that was made for a pod ends with it. One that pods share is handed over to another pod that uses it, or, if
there is none, is allocated no longer: that is written first, by the version of the claim in which nobody else used it.
So a pod that joins at the same time is refused, and never runs on cards that nobody holds for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from gpuledger.formats.objects.patched import RELEASED_ANNOTATION
from gpuledger.formats.objects.pod import bound_node, is_finished, pod_identity
from gpuledger.formats.resource_claims.allocation import devices_of, without_consumer
from gpuledger.formats.resource_claims.device import device_name
from gpuledger.formats.resource_claims.names import claim_names
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import NotFound
from gpuledger.model.share import ClaimRef, Holder, Pod
from gpuledger.workflows.resource_claims.claim_status import ClaimStatusWriter, Json
from gpuledger.workflows.tasks.together import all_of


@dataclass(frozen=True, slots=True)
class Heir:
    """Another pod that uses a claim, and gets its cards."""

    pod: Pod
    claim: ClaimRef
    claim_name: str
    """What the heir calls the claim."""
    devices: frozenset[str] = frozenset()
    """Names of the claim's devices. What the leaving pod has beside them, the claim has no longer: the heir may have
    been given others by now, of its own."""

    def inherits(self, uuid: str, holders: Sequence[Holder]) -> bool:
        """Tell whether the heir, who has these holders, gets what the leaving pod has of a card by the claim.

        It may have it already: handed over before a crash, or entered for itself when the claim was free for a moment.
        """
        mine = (holder.share for holder in holders if holder.share.uuid == uuid)
        has_it = any(part.claim is not None and part.claim.uid == self.claim.uid for s in mine for part in s.containers)
        return device_name(uuid) in self.devices and not has_it


def claims_of(holders: Sequence[Holder]) -> list[ClaimRef]:
    """Return the claims by which a pod has its shares, each once."""
    parts = (part.claim for holder in holders for part in holder.share.containers)
    return list(dict.fromkeys(claim for claim in parts if claim is not None))


class ClaimEnds:
    """Takes back what was written into claims, or finds out who goes on using them."""

    def __init__(self, store: KubeStore, ledger: Ledger, status: ClaimStatusWriter) -> None:
        self._store, self._ledger, self._status = store, ledger, status

    async def left_by(self, pod: Pod, holders: Sequence[Holder], was_bound: bool) -> dict[str, Heir]:
        """Have a pod's claims be without it, before its shares leave the ledger. Idempotent.

        Returns the heirs, by the claim's UID. What was made for a pod that has run is left to kube-controller-manager.
        Raises ApiError.
        """
        claims = claims_of(holders)
        await all_of([self._withdraw(pod, claim) for claim in claims if not claim.shared and not was_bound])
        heirs = [await self._heir(pod, claim) for claim in claims if claim.shared]
        return {heir.claim.uid: heir for heir in heirs if heir is not None}

    async def _withdraw(self, pod: Pod, claim: ClaimRef) -> None:
        """Take a claim's allocation back, if it is this pod's and nobody else uses it."""

        def change(status: Mapping[str, Any]) -> Json | None:
            consumers = {each.get("uid") for each in status.get("reservedFor") or ()}
            if pod.uid not in consumers and (consumers or not status.get("allocation")):
                return None
            after = without_consumer(status, pod.uid)
            return {"reservedFor": after.get("reservedFor"), "allocation": after.get("allocation")}

        try:
            await self._status.change(pod.namespace, claim.name, claim.uid, change)
        except NotFound:
            return

    async def _heir(self, pod: Pod, claim: ClaimRef) -> Heir | None:
        try:
            while True:
                found = await self._store.resource_claim(pod.namespace, claim.name)
                status = found.get("status") or {}
                if found["metadata"]["uid"] != claim.uid or not status.get("allocation"):
                    return None
                others = [each for each in status.get("reservedFor") or () if each.get("uid") != pod.uid]
                for other in others:
                    heir = self._holding(str(other.get("uid")), claim) or await self._running(pod, other, claim)
                    if heir is not None:
                        return replace(heir, devices=devices_of(status))
                # None of them can be bound by now. kube-controller-manager would take them out as well, in a while.
                for each in (*others, {"uid": pod.uid}):
                    await self._withdraw(Pod(str(each.get("uid")), pod.namespace, ""), claim)
        except NotFound:
            return None

    def _holding(self, pod_uid: str, claim: ClaimRef) -> Heir | None:
        """Return a pod that has cards by a claim in the ledger: some were handed over before, or it was the first."""
        for _, holder in self._ledger.holders_of(pod_uid):
            for part in holder.share.containers:
                if part.claim == claim:
                    return Heir(holder.pod, claim, part.name.partition("/")[0])
        return None

    async def _running(self, leaving: Pod, consumer: Json, claim: ClaimRef) -> Heir | None:
        """Return a pod that may use a claim, if it has a node; else no Binding of it that is under way is accepted."""
        name, uid = str(consumer.get("name")), str(consumer.get("uid"))
        try:
            found = await self._store.pod(leaving.namespace, name)
            if found["metadata"]["uid"] != uid or is_finished(found):
                return None
            if not bound_node(found):
                found = await self._store.annotate_pod(pod_identity(found), RELEASED_ANNOTATION, uuid4().hex)
        except NotFound:
            return None
        if not bound_node(found):
            return None
        names = (own for own, object_name, _ in claim_names(found) if object_name == claim.name)
        return Heir(pod_identity(found), claim, next(names, ""))
