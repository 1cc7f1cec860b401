"""The cards of a container or a ResourceClaim on this node, by the ledger: read from the API server each time.

The ledger is the only trusted source: nothing that stands in a pod or a claim counts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuledger.agent.isolation.choice import GrantedCard
from gpuledger.agent.kubelet.dra import ClaimKey
from gpuledger.agent.kubelet.slot_owners import SharedRead
from gpuledger.formats.annotations import MAX_UUID_LENGTH
from gpuledger.formats.custom_resource.stored_card import UUID_PATTERN, stored_card
from gpuledger.formats.kubernetes.pod import annotated_cards, pod_identity
from gpuledger.kube_api.reads import KubeReads
from gpuledger.model.errors import NotFound, NotKnownYet, StartRefused
from gpuledger.model.json_object import JsonMapping
from gpuledger.model.share import ClaimRef, ContainerShare, Holder, HolderState, Pod, StoredCard

MOST_LOST = 16
"""Cards that are looked up although the driver does not show them: their names are in an annotation."""


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
    """A pod's parts of this node's cards by its own claims; or the parts that pods share by one claim."""

    pod: Pod | None
    """The holder; None for a claim that pods share: the ledger has it under one of them, and later under another."""
    parts: tuple[HeldPart, ...]
    containers: frozenset[str] = frozenset()
    """Those of the pod that have cards by their own resources."""
    shared: frozenset[str] = frozenset()
    """Names of the claims in the pod's namespace that pods share, and that have cards of this node."""


class LedgerView:
    """The ledger, as far as this node's cards go."""

    def __init__(self, node_name: str, cards: KubeReads, own_cards: Callable[[], Mapping[str, int]]) -> None:
        self._node_name, self._cards = node_name, cards
        self._own_cards = own_cards  # returns UUID of each of this node's cards -> its index, as the driver says now
        self._of_node = SharedRead(lambda: cards.allocations_of_node(node_name))

    async def cards_of(self, pod: JsonMapping, container: str, count: int) -> tuple[GrantedCard, ...]:
        """Return the `count` cards of a container, in the order of their index.

        The pod's annotation only says where to look first. Raises StartRefused if the ledger gives the container no
        cards, or another number; NotKnownYet if they are being taken back; ApiError.
        """
        own = set(self._own_cards())
        said = annotated_cards(pod)
        hinted = said & own
        found = await self._found(pod, container, hinted)
        if len(found) != count:
            found |= await self._found(pod, container, own - hinted)
        if len(found) != count:
            lost = await self._found(
                pod, container, [uuid for uuid in sorted(said - own) if _is_uuid(uuid)][:MOST_LOST]
            )
            raise StartRefused(self._refusal(pod, container, count, len(found), sorted(lost)))
        return tuple(sorted(found.values(), key=lambda card: (card.index, card.uuid)))

    async def holds(self, pod_uid: str, uuid: str) -> bool:
        """Return whether a pod holds a share of a card. Raises ApiError."""
        return any(holder.pod.uid == pod_uid for stored in await self._read([uuid]) for holder in stored.holders or ())

    async def held(self, claim: ClaimKey) -> HeldClaims:
        """Return the parts of a claim; of one that is its pod's own, with all that the pod has by such claims.

        Raises StartRefused if the claim holds nothing here; NotKnownYet if it is being taken back; ApiError.
        """
        found = [stored_card(each) for each in await self._of_node.result()]
        parts = [part for stored in found if stored.card.node_name == self._node_name for part in _parts(stored)]
        own = [part for part in parts if part.claim is not None and part.claim.uid == claim.uid]
        pods = {part.holder.pod.uid for part in own}
        if not own or any(part.holder.pod.namespace != claim.namespace for part in own):
            raise StartRefused(self._refusal_of_claim(claim))
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

    async def _found(self, pod: JsonMapping, container: str, uuids: Iterable[str]) -> dict[str, GrantedCard]:
        uid = pod_identity(pod).uid
        found = {}
        for stored in await self._read(uuids):
            holder = next((each for each in stored.holders or () if each.pod.uid == uid), None)
            if holder is None or stored.card.node_name != self._node_name:
                continue
            # After a reboot the ledger may still have the number of before: what the driver says now counts.
            granted = granted_card(
                stored, holder, container, self._own_cards().get(stored.card.uuid, stored.card.index)
            )
            if granted is not None:
                if holder.state is not HolderState.ALLOCATED:
                    raise NotKnownYet(f"the share of card {stored.card.uuid} is {holder.state}")
                found[stored.card.uuid] = granted
        return found

    async def _read(self, uuids: Iterable[str]) -> list[StoredCard]:
        async def read(uuid: str) -> StoredCard | None:
            try:
                return stored_card(await self._cards.allocation(uuid.lower()))
            except NotFound:
                return None

        return [stored for stored in await asyncio.gather(*map(read, sorted(uuids))) if stored is not None]

    def _refusal(self, pod: JsonMapping, container: str, count: int, found: int, lost: list[str]) -> str:
        title = str(pod_identity(pod))
        if lost:
            return (
                f"the driver of node {self._node_name} no longer lists {', '.join(lost)}, which container "
                f"{container} of pod {title} has: delete the pod, so that it gets another card"
            )
        if found:
            return (
                f"container {container} of pod {title} asks for {count} GPUs, and the ledger gives it {found}: "
                "see `gpuledger audit`"
            )
        return (
            f"pod {title} holds no GPU of node {self._node_name} in the ledger: it was not placed by gpuledger's "
            "scheduler. Set spec.schedulerName to gpuledger's, leave out spec.nodeName, and recreate the pod"
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

    def _refusal_of_claim(self, claim: ClaimKey) -> str:
        return (
            f"claim {claim} has no GPU of node {self._node_name} in the ledger, whatever its status says: it was not "
            "allocated by gpuledger. Set spec.schedulerName of its pod to gpuledger's, leave out spec.nodeName, and "
            "recreate pod and claim"
        )


def _is_uuid(text: str) -> bool:
    return bool(re.fullmatch(UUID_PATTERN, text)) and len(text) <= MAX_UUID_LENGTH


def granted_card(stored: StoredCard, holder: Holder, container: str, index: int) -> GrantedCard | None:
    """Return a container's part of a card, or that of a claim's request, None if its holder has none for it."""
    share = next((each for each in holder.share.containers if each.name == container), None)
    if share is None:
        return None
    card = stored.card
    return GrantedCard(
        card.uuid,
        index,
        card.vendor,
        card.mode,
        share.memory_mib,
        share.cores,
        holder.share.exclusive,
        card.capacity.memory_mib,
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
