"""Has the youngest pods leave a card that has no room for all that use it, where the administrator wants that.

A ledger that was lost, or restored to an earlier state, can come back with fewer shares than containers have: what does
not fit is listed in the card's `status.conflicts`, and the card takes no pod. Here, the pods that were bound first keep
their places. The others leave by the Eviction API, and what was listed is entered as soon as it fits (repair.py).

Nothing but bound pods is believed: when a pod was bound, the API server knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from attrs import define

from gpuledger.formats.kubernetes.pod import bound_at, controller_uid, created_at, is_finished, leaves_at
from gpuledger.ledger.adoption import Claimant, without_room
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.card import total
from gpuledger.model.errors import ApiError, EventReason
from gpuledger.model.json_object import Json
from gpuledger.model.share import Holder, HolderState, Share
from gpuledger.workflows.card_evictions import PAUSE_S, Cause, Evictions
from gpuledger.workflows.context import Component
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.tasks import KeyedWorker, gather_all

logger = logging.getLogger(__name__)

YOUNGEST_LEAVES = "youngest-leaves"

SETTLE_S = 10.0
"""How long a share is listed before a pod leaves for it: the end of another one may be under way."""

CARDS_AT_ONCE = 4


@define(eq=False, slots=False)
class ConflictingShares(Component):
    """Follows which cards list shares that do not fit, and has the youngest pods leave them."""

    _lives: PodLifecycles
    _evictions: Evictions

    def __attrs_post_init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}  # UUID of a card with conflicts -> until it is looked at
        self.worker = KeyedWorker(self._make_room, CARDS_AT_ONCE, self._is_active)

    def observe_card(self, entry: CardEntry) -> None:
        """See Follower."""
        if self._settings.conflict_policy != YOUNGEST_LEAVES:
            return
        uuid = entry.card.uuid
        if entry.misfits and entry.confirmed:
            if uuid not in self._timers:
                self._look_again(uuid, SETTLE_S)
        elif uuid in self._timers:
            self._timers.pop(uuid).cancel()
            self._evictions.forget(uuid)

    def became_active(self) -> None:
        """See Follower."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()  # what was due while another operator was the active one was left to it
        for entry in self._ledger.entries_with_misfits():
            self.observe_card(entry)

    async def stop(self) -> None:
        """Ask nobody any more."""
        await self.worker.stop()

    def _look_again(self, uuid: str, wait_s: float) -> None:
        self._timers[uuid] = self._tasks.after(wait_s, self.worker.mark, uuid)

    async def _make_room(self, uuid: str) -> None:
        """Have those leave a card for whom it has no room; look again as long as it lists somebody."""
        entry = self._ledger.entry(uuid)
        if entry is None or not entry.misfits or not entry.confirmed:
            self._timers.pop(uuid, None)
            return
        try:
            await self._evict_youngest(entry)
        except ApiError as error:
            logger.info("card %s, which has no room for all its pods, is looked at again: %s", uuid, error)
        finally:
            self._look_again(uuid, PAUSE_S)

    async def _evict_youngest(self, entry: CardEntry) -> None:
        cause = self._cause(entry)
        await self._evictions.evict_left_behind(cause)
        found = await gather_all(self._read(each) for each in self._who_uses(entry))
        there = [(holder, pod) for holder, pod in found if pod is not None]
        claimants = [_claimant(holder, pod) for holder, pod in there if not leaves_at(pod)]
        others = _others(entry, {holder.pod.uid for holder, _ in found})
        free = entry.card.capacity - total(share.amounts for share in others)
        youngest = {each.pod.uid for each in without_room(free, bool(others), claimants)}
        have_to_leave = [(holder, pod) for holder, pod in there if holder.pod.uid in youngest]
        await self._evictions.evict(cause, [holder for holder, pod in have_to_leave if controller_uid(pod)])
        for holder, pod in have_to_leave:
            if not controller_uid(pod):
                self._evictions.tell_why_it_stays(cause, holder.pod, "no controller would make it anew; delete it")

    def _who_uses(self, entry: CardEntry) -> list[Holder]:
        """Return the bound pods on a card, those that it lists as conflicts among them."""
        held = [each for each in entry.holders.values() if each.state is HolderState.ALLOCATED]
        held += [
            Holder(each.pod, Share(entry.card.uuid, each.amounts, exclusive=False, containers=()))
            for each in entry.misfits
            if each.pod.uid not in entry.holders
        ]
        return [each for each in held if self._lives.is_bound(each.pod.uid)]

    async def _read(self, holder: Holder) -> tuple[Holder, Json | None]:
        """Return a pod as it is now; None if it is gone, or uses the card no more. Raises ApiError."""
        pod = await self._store.pod_now(holder.pod)
        return holder, None if pod is None or is_finished(pod) else pod

    def _cause(self, entry: CardEntry) -> Cause:
        return Cause(
            card=entry.card,
            why=f"card {entry.card.uuid} has no room for all pods that use it, and others were bound before",
            state="has no room for all pods that use it, and others were bound before",
            evicted=EventReason.EVICTED_FOR_OLDER,
            held=EventReason.STAYS_BESIDE_OLDER,
            count=self._counts.conflict_evictions,
        )


def _claimant(holder: Holder, pod: Json) -> Claimant:
    return Claimant(holder.pod, holder.share.amounts, bound_at(pod) or created_at(pod), holder.share.exclusive)


def _others(entry: CardEntry, but: Collection[str]) -> list[Share]:
    """Return what other pods may still use of a card. What is kept for pods that wait makes no pod leave that runs."""
    held = [each for uid, each in entry.holders.items() if uid not in but]
    return [each.share for each in held if each.state is not HolderState.RESERVED]
