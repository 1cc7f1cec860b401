"""What the ledger has of a pod that is not bound yet: room kept for it, and what its attempts to bind have left."""

from __future__ import annotations

from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Card
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Holder, HolderState, Placement, fitting_variant
from gpuledger.placement.fit import takes_pods


class EnteredShares:
    """Reads the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def reserved(self, pod_uid: str, request: PodRequest) -> Placement | None:
        """Return the cards that were kept for the pod until others had left them, if they are all there, and well."""
        holders = self._ledger.holders_of(pod_uid)
        shares = tuple(holder.share for _, holder in holders if holder.state is HolderState.RESERVED)
        if not shares or self._ledger.promises.claims_of(pod_uid):
            return None
        node = self._ledger.node_room(holders[0][0].node_name)
        variant = fitting_variant(shares, request, node.cards)
        if variant is None:
            return None
        if not takes_pods(node, variant.shape) or not node.can_give([share.uuid for share in shares]):
            return None
        return Placement(node.name, shares, request.host)

    def allocated(self, pod_uid: str) -> list[tuple[Card, Holder]]:
        """Return what earlier attempts to bind the pod have left; what is reserved for it was never to be used yet."""
        return [each for each in self._ledger.holders_of(pod_uid) if each[1].state is not HolderState.RESERVED]

    def complete(self, pod_uid: str, request: PodRequest) -> Placement | None:
        """Return what the pod holds, if the ledger has all that it asks for, on one node, and nothing else."""
        holders = self._ledger.holders_of(pod_uid)
        node_name = holders[0][0].node_name
        shares = tuple(holder.share for _, holder in holders)
        cards = self._ledger.node_room(node_name).cards
        whole = fitting_variant(shares, request, cards) is not None and all(
            card.node_name == node_name and holder.state is HolderState.ALLOCATED for card, holder in holders
        )
        return Placement(node_name, shares, request.host) if whole else None
