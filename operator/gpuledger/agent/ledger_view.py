"""A container's cards by the ledger: read from the API server each time, the only trusted source."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gpuledger.agent.isolation.kinds import GrantedCard
from gpuledger.formats.custom_resource.gpu_allocation import UUID_PATTERN
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.objects.devices import MAX_UUID_LENGTH
from gpuledger.formats.objects.pod import annotated_cards, pod_identity
from gpuledger.model.errors import NotFound, NotKnownYet, StartRefused
from gpuledger.model.share import Holder, HolderState
from gpuledger.model.stored_card import StoredCard

Json = Mapping[str, Any]

MOST_LOST = 16
"""Cards that are looked up although the driver does not show them: their names are in an annotation."""


class CardStore(Protocol):
    """The ledger at the API server."""

    async def allocation(self, name: str) -> dict[str, Any]:
        """Return a card's object. Raises NotFound."""


class LedgerView:
    """The ledger, as far as this node's cards go."""

    def __init__(self, node_name: str, cards: CardStore, own_cards: Callable[[], Mapping[str, int]]) -> None:
        self._node_name, self._cards = node_name, cards
        self._own_cards = own_cards  # returns UUID of each of this node's cards -> its index, as the driver says now

    async def cards_of(self, pod: Json, container: str, count: int) -> tuple[GrantedCard, ...]:
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
        """Tell whether a pod holds a share of a card. Raises ApiError."""
        return any(holder.pod.uid == pod_uid for stored in await self._read([uuid]) for holder in stored.holders or ())

    async def _found(self, pod: Json, container: str, uuids: Iterable[str]) -> dict[str, GrantedCard]:
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

    def _refusal(self, pod: Json, container: str, count: int, found: int, lost: list[str]) -> str:
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
