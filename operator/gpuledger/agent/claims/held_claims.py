"""What a ResourceClaim has of this node's cards: by the ledger, and by nothing that stands in the claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuledger.agent.isolation.kinds import GrantedCard
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
    entry: str
    """The claim's name in its pod, the request's, and that of a subrequest, if one was chosen, with slashes between."""
    card: GrantedCard

    @property
    def pod_claim(self) -> str:
        """The claim's name in its pod."""
        return self.entry.split("/")[0]

    @property
    def request(self) -> str:
        """Without the name of a subrequest: containers can't name these."""
        return self.entry.split("/")[1]


@dataclass(frozen=True, slots=True)
class HeldClaims:
    """What a pod has of this node's cards by its own claims; or what pods share by one claim."""

    pod: Pod | None
    """The holder; None for a claim that pods share: the ledger has it under one of them, and later under another."""
    parts: tuple[HeldPart, ...]
    containers: frozenset[str] = frozenset()
    """Those of the pod that have cards by their own resources."""
    shared: frozenset[str] = frozenset()
    """Names of the claims in the pod's namespace that pods share, and that have cards of this node."""


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
        """Return what there is of a claim; of one that is its pod's own, with all that the pod has by such claims.

        Raises StartRefused if the claim holds nothing here; NotKnownYet if it is being taken back; ApiError.
        """
        found = [stored_card(each) for each in await self._read.result()]
        parts = [part for stored in found if stored.card.node_name == self._node_name for part in _parts(stored)]
        own = [part for part in parts if part.claim is not None and part.claim.uid == claim.uid]
        pods = {part.holder.pod.uid for part in own}
        if not own or any(part.holder.pod.namespace != claim.namespace for part in own):
            raise StartRefused(self._refusal(claim))
        for part in own:
            self._check(claim, part)
        if any(part.claim is not None and part.claim.shared for part in own):
            return HeldClaims(None, tuple(self._held(part, part.claim.name) for part in own if part.claim))
        if len(pods) > 1:
            raise StartRefused(f"{len(pods)} pods have GPUs by claim {claim} of one of them: see `gpuledger audit`")
        of_pod = [part for part in parts if part.holder.pod.uid in pods]
        shared = (part.claim for part in parts if part.holder.pod.namespace == claim.namespace)
        return HeldClaims(
            own[0].holder.pod,
            tuple(self._held(part) for part in of_pod if self._is_own(part)),
            frozenset(part.share.name for part in of_pod if part.claim is None),
            frozenset(each.name for each in shared if each is not None and each.shared),
        )

    def _held(self, part: _Part, called: str = "") -> HeldPart:
        """Return a part of one of this node's cards; `called` is for a claim that each pod calls as it likes."""
        stored, share = part.stored, part.share
        card = granted_card(stored, part.holder, share.name, self._own_cards()[stored.card.uuid])
        assert card is not None and share.claim is not None  # noqa: PT018, S101 - the caller has looked
        pod_claim, _, request = share.name.partition("/")
        return HeldPart(share.claim, f"{called or pod_claim}/{request}", card)

    def _is_own(self, part: _Part) -> bool:
        is_there = part.stored.card.uuid in self._own_cards() and part.holder.state is HolderState.ALLOCATED
        return is_there and part.claim is not None and not part.claim.shared

    def _check(self, claim: ClaimKey, part: _Part) -> None:
        uuid, state = part.stored.card.uuid, part.holder.state
        if uuid not in self._own_cards():
            raise StartRefused(
                f"the driver of node {self._node_name} no longer lists {uuid}, which claim {claim} has: delete its "
                "pods, so that they get another card"
            )
        if state is not HolderState.ALLOCATED:
            raise NotKnownYet(f"the share of card {uuid} is {state}")

    def _refusal(self, claim: ClaimKey) -> str:
        return (
            f"claim {claim} has no GPU of node {self._node_name} in the ledger, whatever its status says: it was not "
            "allocated by gpuledger. Set spec.schedulerName of its pod to gpuledger's, leave out spec.nodeName, and "
            "recreate pod and claim"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A container's part of a card, or that of a claim's request, as the ledger has it."""

    stored: StoredCard
    holder: Holder
    share: ContainerShare

    @property
    def claim(self) -> ClaimRef | None:
        return self.share.claim


def _parts(stored: StoredCard) -> list[_Part]:
    return [_Part(stored, holder, share) for holder in stored.holders or () for share in holder.share.containers]
