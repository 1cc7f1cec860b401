"""What a ResourceClaim has of this node's cards: by the ledger, and by nothing that stands in the claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuledger.agent.isolation.ways import GrantedCard
from gpuledger.agent.kubelet.dra_plugin import ClaimKey
from gpuledger.agent.ledger_view import granted_card
from gpuledger.agent.shared_read import SharedRead
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.model.errors import NotKnownYet, StartRefused
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, HolderState, Pod
from gpuledger.model.stored_card import StoredCard


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A request's part of one card."""

    claim: ClaimRef
    pod_claim: str
    """The claim's name in its pod."""
    request: str
    """Without the name of a subrequest: containers can't name these."""
    card: GrantedCard


@dataclass(frozen=True, slots=True)
class HeldClaims:
    """The holder of a claim, and what it has of this node's cards by claims: by others of its own as well."""

    holder: Pod
    parts: tuple[HeldPart, ...]
    containers: frozenset[str]
    """Those that have cards by their own resources."""


class NodeCards(Protocol):
    """The ledger at the API server."""

    async def allocations_of_node(self, node_name: str) -> list[dict[str, Any]]:
        """Return the objects of a node's cards; others may be among them."""


class ClaimLedger:
    """The ledger, as far as claims on this node's cards go."""

    def __init__(self, node_name: str, cards: NodeCards, own_cards: Callable[[], Mapping[str, int]]) -> None:
        self._node_name = node_name
        self._own_cards = own_cards  # returns UUID of each of this node's cards -> its index, as the driver says now
        self._read = SharedRead(lambda: cards.allocations_of_node(node_name))

    async def held(self, claim: ClaimKey) -> HeldClaims:
        """Return what the holder of a claim has by claims.

        Raises StartRefused if the claim holds nothing here; NotKnownYet if it is being taken back; ApiError.
        """
        found = [stored_card(each) for each in await self._read.result()]
        cards = [each for each in found if each.card.node_name == self._node_name]
        holders = {
            holder.pod.uid: holder
            for stored in cards
            for holder in stored.holders or ()
            if any(part.claim is not None and part.claim.uid == claim.uid for part in holder.share.containers)
        }
        if len(holders) != 1:
            raise StartRefused(self._refusal(claim, len(holders)))
        (holder,) = holders.values()
        if holder.pod.namespace != claim.namespace:
            raise StartRefused(self._refusal(claim, 0))
        return self._held(claim, holder.pod, cards)

    def _held(self, claim: ClaimKey, pod: Pod, cards: list[StoredCard]) -> HeldClaims:
        own, parts, containers = self._own_cards(), list[HeldPart](), set[str]()
        for stored in cards:
            uuid = stored.card.uuid
            for holder in (each for each in stored.holders or () if each.pod.uid == pod.uid):
                for share in holder.share.containers:
                    if share.claim is None:
                        containers.add(share.name)
                        continue
                    if share.claim.uid == claim.uid:
                        self._check(claim, holder, uuid, uuid in own)
                    if uuid in own and holder.state is HolderState.ALLOCATED:
                        parts.append(_part(stored, holder, share, share.claim, own[uuid]))
        return HeldClaims(pod, tuple(parts), frozenset(containers))

    def _check(self, claim: ClaimKey, holder: Holder, uuid: str, is_listed: bool) -> None:
        if not is_listed:
            raise StartRefused(
                f"the driver of node {self._node_name} no longer lists {uuid}, which claim {claim} has: delete its "
                "pods, so that they get another card"
            )
        if holder.state is not HolderState.ALLOCATED:
            raise NotKnownYet(f"the share of card {uuid} is {holder.state}")

    def _refusal(self, claim: ClaimKey, holders: int) -> str:
        if holders:
            return f"{holders} pods hold cards of node {self._node_name} by claim {claim}: see `gpuledger audit`"
        return (
            f"claim {claim} holds no GPU of node {self._node_name} in the ledger, whatever its status says: it was not "
            "allocated by gpuledger. Set spec.schedulerName of its pod to gpuledger's, leave out spec.nodeName, and "
            "recreate pod and claim"
        )


def _part(stored: StoredCard, holder: Holder, share: ContainerShare, claim: ClaimRef, index: int) -> HeldPart:
    card = granted_card(stored, holder, share.name, index)
    assert card is not None  # noqa: S101 - it is one of the holder's own
    pod_claim, _, requests = share.name.partition("/")
    return HeldPart(claim, pod_claim, requests.partition("/")[0], card)
