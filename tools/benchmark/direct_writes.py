"""Pods that are entered and bound without operator and scheduler: by the same requests, made by the same code.

So it is known what the API server alone takes (the floor), and a ledger is full in a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex

from benchmark.site import IN_FLIGHT, REQUEST_S, Json, Site, in_parallel
from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.formats.annotations import DEVICES_ANNOTATION, devices_annotation
from gpuledger.formats.custom_resource.stored_card import stored_card
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.kubernetes.pod import pod_identity, resource_version
from gpuledger.kube_api.reads import ALLOCATIONS
from gpuledger.kube_api.writes import KubeWrites
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.ledger.seats import Seat
from gpuledger.model.node import NodeOffer
from gpuledger.model.share import Holder, Placement
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy
from gpuledger.workflows.journal.entries import Add, Entry, Remove, patch_of
from gpuledger.workflows.journal.journal import ATTEMPT_BYTES

SERVED = NodeOffer(resources=frozenset({"nvidia.com/gpu"}))


@dataclass(frozen=True, slots=True)
class Planned:
    """A pod that does not exist yet, and the cards that it will have."""

    body: Json
    placement: Placement


class DirectWriter:
    """Writes what the operator would write. It must not run meanwhile."""

    def __init__(self, site: Site) -> None:
        self._site, self._writes = site, KubeWrites(site.account)
        self._ledger, self._dialects = Ledger(), dialects_of(Settings())
        self.created: dict[str, float] = {}
        """Name of a pod -> when it was sent."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # card UUID -> one writer at a time

    async def read(self) -> None:
        """Read the cards."""
        async for page in self._site.admin.pages(ALLOCATIONS):
            for allocation in page:
                self._ledger.load(stored_card(allocation))
        for node in self._site.nodes:
            self._ledger.set_offer(node.name, SERVED)

    def plan(self, bodies: Sequence[Json]) -> list[Planned]:
        """Choose each pod's cards, as the operator does by default. Costs the API server nothing."""
        chooser, planned = Chooser(self._ledger, Policy()), []
        for body in bodies:
            request = pod_request(body, self._dialects)
            placement = chooser.best(request, None) if request else None
            if placement is None:
                raise ValueError(f"there is no room for {body['metadata']['name']}")
            self._ledger.seats.take(Seat(body["metadata"]["name"], placement, float("inf")))
            planned.append(Planned(body, placement))
        for each in planned:
            self._ledger.seats.give_up(each.body["metadata"]["name"])
        return planned

    async def write(self, planned: Sequence[Planned], pods_per_write: int = 1) -> None:
        """Create the pods, enter their shares and bind them; neighbours share the writes of their cards."""
        groups = [planned[begin : begin + pods_per_write] for begin in range(0, len(planned), pods_per_write)]
        at_once = max(1, IN_FLIGHT // pods_per_write)
        await in_parallel(self._write_group, groups, at_once)

    async def clear(self) -> None:
        """Take all pods off their cards."""
        held = [entry for entry in self._ledger.entries() if entry.holders]
        await in_parallel(self._clear_card, held)

    async def _clear_card(self, card: CardEntry) -> None:
        await self._patch(card.card.uuid, [Remove(pod_uid=uid) for uid in card.holders])

    async def _write_group(self, group: Sequence[Planned]) -> None:
        self.created |= {each.body["metadata"]["name"]: time.monotonic() for each in group}
        created = await asyncio.gather(*(self._site.create(each.body) for each in group))
        entries: defaultdict[str, list[Entry]] = defaultdict(list)  # card UUID -> what is entered there
        for each, found in zip(group, created, strict=True):
            for share in each.placement.shares:
                holder = Holder(pod_identity(found), share, attempt=token_hex(ATTEMPT_BYTES))
                entries[share.uuid].append(Add(holder=holder))
        await asyncio.gather(*(self._patch(uuid, changes) for uuid, changes in entries.items()))
        await asyncio.gather(*(self._bind(found, each) for each, found in zip(group, created, strict=True)))

    async def _patch(self, uuid: str, changes: Sequence[Entry]) -> None:
        async with self._locks[uuid]:
            card = self._card(uuid)
            answer = await self._writes.patch_allocation_status(
                card.card.object_name, patch_of(card, changes), REQUEST_S
            )
            self._ledger.load(stored_card(answer))

    async def _bind(self, found: Json, planned: Planned) -> None:
        placement = planned.placement
        annotations = {DEVICES_ANNOTATION: devices_annotation(placement.shares)}
        pod, version = pod_identity(found), resource_version(found)
        await self._writes.bind_pod(pod, version, placement.node_name, annotations, REQUEST_S)

    def _card(self, uuid: str) -> CardEntry:
        card = self._ledger.entry(uuid)
        if card is None:
            raise LookupError(f"there is no card {uuid}")
        return card
