"""Places of members that have failed or were deleted: kept for a while, for the pods that come in their stead.

A place is put on hold at the moment when the ledger's share ends, before others are looked at; under a name of its own,
as the pod may be gone. That is done only as long as other members are there and stay, so not where a whole training is
deleted. The same is done for a member whose Binding is refused when those of others have been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuledger.formats.scheduler.scheduler_config import LONGEST_BACK_OFF_S
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ShareRefused
from gpuledger.model.gang import GangName
from gpuledger.model.share import HolderState, Placement
from gpuledger.workflows.gangs.gang_state import GangState
from gpuledger.workflows.preemption.pod_lives import PodLives

NEXT_TRY_S = LONGEST_BACK_OFF_S + 2.0
"""How long the place of a member is kept whose Binding was refused."""

KEPT = " (kept)"

MOST_ENDING = 256
"""Members that are gone whose shares are still in the ledger: of more, no places are kept."""


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """The cards of a member that is gone."""

    gang: GangName
    pod_uid: str
    placement: Placement
    until_s: float

    @property
    def key(self) -> str:
        """Return what stands for a pod's UID where it is held."""
        return f"{self.pod_uid}{KEPT}"

    @property
    def node_name(self) -> str:
        """Return the name of the node."""
        return self.placement.node_name


class KeptPlaces:
    """Remembers them; `room_s` is for how long, 0 for not at all."""

    def __init__(self, ledger: Ledger, lives: PodLives, room_s: float, clock: Clock) -> None:
        self._ledger = ledger
        self._lives = lives
        self._room_s = room_s
        self._clock = clock
        self._ending: dict[str, KeptPlace] = {}  # pod UID -> its place, as long as the ledger has its share
        self._held: dict[str, KeptPlace] = {}  # pod UID -> its place, on hold
        self._refused: dict[str, KeptPlace] = {}  # pod UID -> its place, as long as its own hold is there

    def member_left(self, pod_uid: str, state: GangState) -> None:
        """Note that a bound member has failed or was deleted; its share is still in the ledger."""
        if not self._room_s:
            return
        if all(self._lives.is_leaving(uid) for uid in state.bound):
            self.forget(state.name)
            return
        holders = [each for each in self._ledger.holders_of(pod_uid) if each[1].state is not HolderState.RESERVED]
        if holders and len(self._ending) < MOST_ENDING:
            placement = Placement(holders[0][0].node_name, tuple(holder.share for _, holder in holders))
            until_s = self._clock.now_s() + self._room_s
            self._ending[pod_uid] = KeptPlace(state.name, pod_uid, placement, until_s)

    def binding_was_refused(self, pod_uid: str, name: GangName, placement: Placement) -> None:
        """Note that a member was not bound although others of its gang are; its own hold ends in a moment."""
        self._refused[pod_uid] = KeptPlace(name, pod_uid, placement, self._clock.now_s() + NEXT_TRY_S)

    def hold_has_ended(self, pod_uid: str) -> None:
        """Keep the place of such a member for its next try: now, or when its share has left the ledger."""
        place = self._refused.pop(pod_uid, None)
        if place is not None and self._ledger.holders_of(pod_uid):
            self._ending[pod_uid] = place
        elif place is not None:
            self.put_back([place])

    def others_leave(self, state: GangState) -> None:
        """Note that bound members of a gang have begun to leave: if all do, nothing is kept."""
        if (self._ending or self._held) and all(self._lives.is_leaving(uid) for uid in state.bound):
            self.forget(state.name)

    def stored(self, node_name: str) -> None:
        """Hold what has become free on a node just now. Called whenever the API server has stored a card."""
        for place in [place for place in self._ending.values() if place.node_name == node_name]:
            used = {card.uuid for card, _ in self._ledger.holders_of(place.pod_uid)}
            free = tuple(share for share in place.placement.shares if share.uuid not in used)
            if not used:
                del self._ending[place.pod_uid]
                self.put_back([place])
            elif free and place.until_s > self._clock.now_s():
                with suppress(ShareRefused):
                    self._ledger.hold(place.key, replace(place.placement, shares=free), place.until_s)

    def take(self, name: GangName) -> list[KeptPlace]:
        """Give up what is kept for a gang, so that its members can be placed there; return it."""
        now_s = self._clock.now_s()
        for uid in [uid for uid, place in self._held.items() if place.until_s <= now_s]:
            del self._held[uid]
        places = [place for place in self._held.values() if place.gang == name]
        for place in places:
            del self._held[place.pod_uid]
            self._ledger.drop_hold(place.key)
        return places

    def kept_for(self, name: GangName) -> list[KeptPlace]:
        """Return the places that are kept for a gang's next members."""
        return [place for place in self._held.values() if place.gang == name]

    def gang_of(self, key: str) -> GangName | None:
        """Return for which gang a place is kept that stands in the ledger under this key; None if it is none."""
        uid = key.removesuffix(KEPT)
        place = self._held.get(uid) or self._ending.get(uid) if uid != key else None
        return place.gang if place else None

    def put_back(self, places: Sequence[KeptPlace]) -> None:
        """Keep places, if they are free, until their time is over."""
        for place in places:
            if place.until_s > self._clock.now_s():
                with suppress(ShareRefused):  # promised to others, or the card is gone
                    self._ledger.hold(place.key, place.placement, place.until_s)
                    self._held[place.pod_uid] = place

    def forget(self, name: GangName) -> None:
        """Keep nothing for a gang any more."""
        self.take(name)
        for place in [place for place in self._ending.values() if place.gang == name]:
            del self._ending[place.pod_uid]
            self._ledger.drop_hold(place.key)

    def __bool__(self) -> bool:
        return bool(self._ending or self._held)
