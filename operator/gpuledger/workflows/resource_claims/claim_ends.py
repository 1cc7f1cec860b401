"""What becomes of pods' ResourceClaims when their shares end.

A claim that was made for a pod ends with it. One that pods share is handed over to another pod that uses it, or, if
there is none, is allocated no longer: that is written first, by the version of the claim in which nobody else used it.
So a pod that joins at the same time is refused, and never runs on cards that nobody holds for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import uuid4

from gpuledger.formats.objects.patched import RELEASED_ANNOTATION
from gpuledger.formats.objects.pod import bound_node, is_finished, pod_identity
from gpuledger.formats.resource_claims.allocation import devices_of, without_consumers
from gpuledger.formats.resource_claims.device import device_name
from gpuledger.formats.resource_claims.names import claim_names
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import NotFound
from gpuledger.model.share import ClaimRef, Holder, HolderState, Pod
from gpuledger.workflows.resource_claims.claim_status import ClaimStatusWriter, Json
from gpuledger.workflows.tasks.pauses import pause_s
from gpuledger.workflows.tasks.together import gather_all


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
        has_it = any(holder.share.uuid == uuid and holder.share.is_by_claim(self.claim.uid) for holder in holders)
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
        left = {claim: _left(holders, claim) for claim in claims_of(holders)}
        own = [claim for claim in left if not claim.shared and not was_bound]
        await gather_all([self._withdraw(pod.namespace, claim, left[claim], {pod.uid}) for claim in own])
        heirs = [await self._heir(pod, claim, devices) for claim, devices in left.items() if claim.shared]
        return {heir.claim.uid: heir for heir in heirs if heir is not None}

    async def _withdraw(
        self, namespace: str, claim: ClaimRef, left: AbstractSet[str], pod_uids: Collection[str]
    ) -> None:
        """Take pods out of a claim, all at once; if nobody else uses it, its allocation as well."""

        def change(status: Mapping[str, Any]) -> Json | None:
            if _is_anothers(status, left):
                return None
            consumers = {each.get("uid") for each in status.get("reservedFor") or ()}
            if consumers.isdisjoint(pod_uids) and (consumers or not status.get("allocation")):
                return None
            after = without_consumers(status, pod_uids)
            return {"reservedFor": after.get("reservedFor"), "allocation": after.get("allocation")}

        with suppress(NotFound):
            await self._status.change(namespace, claim.name, claim.uid, change)

    async def _heir(self, pod: Pod, claim: ClaimRef, left: AbstractSet[str]) -> Heir | None:
        for attempt in count():
            status = await self._allocated(pod.namespace, claim)
            if status is None or _is_anothers(status, left):
                return None
            others = [each for each in status.get("reservedFor") or () if each.get("uid") != pod.uid]
            heir = self._holding(others, claim) or await self._bound_or_none_left(pod, others, claim, left)
            if heir is not None:
                return replace(heir, devices=devices_of(status))
            if attempt:  # another operator's pods join meanwhile
                await asyncio.sleep(pause_s(attempt))
        return None

    async def _allocated(self, namespace: str, claim: ClaimRef) -> Json | None:
        """Return the status of a claim that is allocated, None if it is not, or is gone."""
        try:
            found = await self._store.resource_claim(namespace, claim.name)
        except NotFound:
            return None
        status: Json = found.get("status") or {}
        return status if found["metadata"]["uid"] == claim.uid and status.get("allocation") else None

    async def _bound_or_none_left(
        self, leaving: Pod, others: Sequence[Json], claim: ClaimRef, left: AbstractSet[str]
    ) -> Heir | None:
        """Return one of the pods that has a node. If none has, they are fenced and all taken out of the claim.

        Who is fenced has to try again: where one has a node, the others can go on.
        """
        living = await self._living(leaving.namespace, others)
        if living and bound_node(living[-1]):
            return _heir_of(living[-1], claim)
        with self._status.closing(claim.uid):
            heir = await self._fenced(living, claim)
            if heir is None:  # kube-controller-manager would take them out as well, in a while
                uids = {leaving.uid, *(str(each.get("uid")) for each in others)}
                await self._withdraw(leaving.namespace, claim, left, uids)
            return heir

    def _holding(self, consumers: Sequence[Json], claim: ClaimRef) -> Heir | None:
        """Return a pod that has cards by a claim in the ledger: some were handed over before, or it was the first.

        One whose shares are being taken back as well is none: each of two would leave the claim to the other.
        """
        for each in consumers:
            for _, holder in self._ledger.holders_of(str(each.get("uid"))):
                for part in holder.share.containers:
                    if part.claim == claim and holder.state is not HolderState.RELEASING:
                        return Heir(holder.pod, claim, part.name.partition("/")[0])
        return None

    async def _living(self, namespace: str, consumers: Sequence[Json]) -> list[Json]:
        """Return the pods that may use a claim and have not ended, in order, up to the first that has a node."""
        living: list[Json] = []
        for each in consumers:
            with suppress(NotFound):
                found = await self._store.pod(namespace, str(each.get("name")))
                if found["metadata"]["uid"] == each.get("uid") and not is_finished(found):
                    living.append(found)
                    if bound_node(found):
                        break
        return living

    async def _fenced(self, pods: Sequence[Json], claim: ClaimRef) -> Heir | None:
        """Have no Binding of these pods accepted that is under way; return one that has been accepted before."""
        for each in pods:
            with suppress(NotFound):
                found = await self._store.annotate_pod(pod_identity(each), RELEASED_ANNOTATION, uuid4().hex)
                if bound_node(found):
                    return _heir_of(found, claim)
        return None


def _left(holders: Sequence[Holder], claim: ClaimRef) -> frozenset[str]:
    """Return the names of the devices that a pod with these holders has by a claim."""
    return frozenset(device_name(holder.share.uuid) for holder in holders if holder.share.is_by_claim(claim.uid))


def _is_anothers(status: Mapping[str, Any], left: AbstractSet[str]) -> bool:
    """Tell whether a claim is allocated, and to none of the devices that are left: by another attempt to bind the pod.

    That one takes it back itself. It may have bound the pod by now.
    """
    return bool(status.get("allocation")) and left.isdisjoint(devices_of(status))


def _heir_of(pod: Json, claim: ClaimRef) -> Heir:
    names = (own for own, object_name, _ in claim_names(pod) if object_name == claim.name)
    return Heir(pod_identity(pod), claim, next(names, ""))
