"""What Bind writes into a pod's ResourceClaims: their cards, and that the pod may use them.

The order at Bind is: the shares into the ledger, the allocation into the claim, the Binding. The ledger is the
authority, so a claim that says less than it is harmless, and one that says more gets nothing on the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuledger.formats.objects.pod import later_version
from gpuledger.formats.resource_claims.allocation import (
    MOST_CONSUMERS,
    allocation,
    consumer,
    devices_in,
    is_allocated_as,
    with_consumer,
)
from gpuledger.formats.resource_claims.device import device_name
from gpuledger.formats.resource_claims.objects import Claim
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BindFailed, NotFound
from gpuledger.model.pod_claim import JoinedClaim, PodClaim
from gpuledger.model.request import PodRequest
from gpuledger.model.share import HolderState, Placement, Pod, stamped
from gpuledger.workflows.journal.card_reader import CardReader
from gpuledger.workflows.resource_claims.claim_book import ClaimBook
from gpuledger.workflows.resource_claims.claim_status import ClaimStatusWriter
from gpuledger.workflows.tasks.together import gather_all

Json = dict[str, Any]

MADE_WITHIN_S = 5.0
"""How long a Bind waits for kube-controller-manager to make a claim from its template; the next one waits again."""


class GivenOtherCards(BindFailed):
    """A claim gives its pod other cards than those that were to be written: by `allocation`, as it is stored."""

    def __init__(self, claim: PodClaim, allocation: Json) -> None:
        super().__init__(f"claim {claim.name}: another operator gives ResourceClaim {claim.object_name} other cards")
        self.allocation = allocation


async def write_allocation(
    status: ClaimStatusWriter, pod: Pod, claim: PodClaim, wanted: Json, replaceable: Callable[[Json], bool]
) -> None:
    """Have a claim's status give its pod these cards. Idempotent.

    Raises BindFailed if other pods use the claim, GivenOtherCards if it gives the pod others that are not
    `replaceable`; ApiError.
    """

    def change(status: Mapping[str, Any]) -> Json | None:
        present = status.get("allocation")
        consumers = {each.get("uid") for each in status.get("reservedFor") or ()}
        if present and is_allocated_as(present, wanted) and pod.uid in consumers:
            return None
        if consumers - {pod.uid}:
            raise BindFailed(f"claim {claim.name}: ResourceClaim {claim.object_name} is in use by another pod")
        if present and not is_allocated_as(present, wanted):
            if not replaceable(present):
                raise GivenOtherCards(claim, present)
            return {"allocation": None, "reservedFor": None}  # no allocation is changed into another one
        return {"allocation": wanted, "reservedFor": [consumer(pod)]}

    await status.change(pod.namespace, claim.object_name, claim.uid, change, protected=claim.shared, is_new=True)


class ClaimWriter:
    """Allocates claims to the cards that their pods hold."""

    def __init__(
        self, book: ClaimBook, ledger: Ledger, status: ClaimStatusWriter, reader: CardReader, clock: Clock
    ) -> None:
        self._book, self._ledger, self._status, self._reader, self._clock = book, ledger, status, reader, clock

    async def know_claims_of(self, pod: Mapping[str, Any]) -> None:
        """Know what a pod's claims are that kube-scheduler asks about.

        It may have seen that a claim was made for the pod before our watch shows the claim. Raises ApiError.
        """
        await self._book.ready_for(dict(pod))

    async def identified(
        self, pod: Pod, version: str, request: PodRequest, placement: Placement
    ) -> tuple[str, PodRequest, Placement]:
        """Return the pod's resourceVersion, its request and its shares with the claims' UIDs in them.

        Waits for claims that are to be made from templates. Raises BindFailed if that takes too long, or if a claim is
        another one than what its cards were chosen for.
        """
        if request.joined_node not in ("", placement.node_name):
            raise BindFailed(f"claim {request.joined[0].name} is allocated on node {request.joined_node}")
        deadline_s = self._clock.now_s() + MADE_WITHIN_S
        claims = [await self._identified(pod, claim, deadline_s) for claim in request.claims]
        waiting = self._book.waiting(pod.uid)
        if waiting is not None:  # kube-scheduler's watch can be ahead of ours
            version = later_version(version, waiting.resource_version)
        shares = tuple(stamped(share, claims) for share in placement.shares)
        return version, replace(request, claims=tuple(claims)), replace(placement, shares=shares)

    async def _identified(self, pod: Pod, claim: PodClaim, deadline_s: float) -> PodClaim:
        while True:
            waiting = self._book.waiting(pod.uid)
            name = claim.object_name or (waiting.names.get(claim.name, "") if waiting else "")
            stored = self._book.stored(pod.namespace, name) if name else None
            if stored is not None:
                _check(claim, stored)
                return replace(claim, object_name=name, uid=stored.uid)
            left_s = deadline_s - self._clock.now_s()
            if left_s <= 0:
                raise BindFailed(f"claim {claim.name}: its ResourceClaim has not been created yet")
            try:
                async with asyncio.timeout(left_s):
                    await self._book.news_of(pod.uid)
            except TimeoutError:
                continue

    async def allocate(self, pod: Pod, request: PodRequest, placement: Placement) -> None:
        """Have the API server know which cards the pod's claims have, and that the pod may use them. Idempotent.

        Raises BindFailed if a claim has changed, or is another scheduler's; ApiError.
        """
        own = [self._allocate(pod, claim, placement) for claim in request.claims]
        await gather_all([*own, *(self._join(pod, claim) for claim in request.joined)])

    async def _allocate(self, pod: Pod, claim: PodClaim, placement: Placement) -> None:
        cards = {entry.card.uuid: entry.card for entry in self._ledger.entries_of_node(placement.node_name)}
        wanted = allocation(claim, placement.node_name, placement.shares, cards, self._book)
        try:
            await write_allocation(self._status, pod, claim, wanted, lambda _: False)
        except GivenOtherCards as given:
            left = given.allocation
            if await self._has_any(pod, claim, devices_in(left) - devices_in(wanted)):
                raise
            await write_allocation(self._status, pod, claim, wanted, lambda present: present == left)

    async def _has_any(self, pod: Pod, claim: PodClaim, devices: Collection[tuple[str, str]]) -> bool:
        """Tell whether the API server has a share of the pod, by this claim, of one of these devices of nodes.

        Shares are entered before they are written into a claim. So if there is one, another operator is binding the
        pod just now, or gives the share back; if there is none, the claim says what nobody relies on.
        """
        entries = [each for node in {node for node, _ in devices} for each in self._ledger.entries_of_node(node)]
        for entry in entries:
            if (entry.card.node_name, device_name(entry.card.uuid)) not in devices:
                continue
            with suppress(NotFound):
                holders = (await self._reader.read(entry)).holders or ()
                if any(holder.pod.uid == pod.uid and holder.share.is_by_claim(claim.uid) for holder in holders):
                    return True
        return False

    async def _join(self, pod: Pod, claim: JoinedClaim) -> None:
        """Have a claim's status name the pod.

        Raises BindFailed while the last pods leave the claim: they take out whoever joins them, again and again.
        """

        def change(status: Mapping[str, Any]) -> Json | None:
            if not status.get("allocation"):
                raise BindFailed(f"claim {claim.name}: the pods that had ResourceClaim {claim.object_name} have ended")
            if self._status.is_closing(claim.uid) or self._is_being_left(claim):
                raise BindFailed(f"claim {claim.name}: the pod that had ResourceClaim {claim.object_name} is ending")
            after = with_consumer(status, pod)["reservedFor"]
            if len(after) > MOST_CONSUMERS:
                raise BindFailed(f"claim {claim.name}: {MOST_CONSUMERS} pods use ResourceClaim {claim.object_name}")
            return None if after == status.get("reservedFor") else {"reservedFor": after}

        await self._status.change(pod.namespace, claim.object_name, claim.uid, change)

    def _is_being_left(self, claim: JoinedClaim) -> bool:
        """Tell whether all shares by a claim are being taken back."""
        entries = self._ledger.entries_of_node(claim.node_name)
        states = {
            holder.state
            for entry in entries
            for holder in entry.holders.values()
            if holder.share.is_by_claim(claim.uid)
        }
        return states == {HolderState.RELEASING}


def _check(claim: PodClaim, stored: Claim) -> None:
    if stored.spec != claim.wishes:
        raise BindFailed(f"claim {claim.name}: its ResourceClaim asks for something else than its template did before")
    if stored.is_being_deleted:
        raise BindFailed(f"claim {claim.name}: ResourceClaim {stored.name} is being deleted")
