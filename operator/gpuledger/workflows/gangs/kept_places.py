"""Places of members that have failed or were deleted: kept for a while, for the pods that come in their stead.

A place is put on hold at the moment when the ledger's share ends, before others are looked at; under a name of its own,
as the pod may be gone. That is done only as long as other members are there and stay, so not where a whole training is
deleted. The same is done for a member that was not bound when others of its gang were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ShareRefused
from gpuledger.model.gang import GangName
from gpuledger.model.share import HolderState, Placement
from gpuledger.workflows.gangs.gang_state import GangState
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles

KEPT = " (kept)"

MOST_ENDING = 256
"""Members of one namespace that are gone whose shares are still in the ledger: of more, no places are kept."""


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
        return _key(self.pod_uid)

    @property
    def node_name(self) -> str:
        """Return the name of the node."""
        return self.placement.node_name


class KeptPlaces:
    """Remembers them.

    `room_s` is for how long the place of a bound member is kept, 0 for not at all; `next_try_s` is for how long that of
    one is that kube-scheduler tries again.
    """

    def __init__(self, ledger: Ledger, lives: PodLifecycles, room_s: float, next_try_s: float, clock: Clock) -> None:
        self._ledger = ledger
        self._lives = lives
        self._room_s = room_s
        self._next_try_s = next_try_s
        self._clock = clock
        self._ending: dict[str, KeptPlace] = {}  # pod UID -> its place, as long as the ledger has its share
        self._held: dict[str, KeptPlace] = {}  # pod UID -> its place, on hold

    def member_left(self, pod_uid: str, state: GangState) -> None:
        """Record that a bound member has failed or was deleted; its share is still in the ledger."""
        if not self._room_s:
            return
        if all(self._lives.is_leaving(uid) for uid in state.bound):
            self.forget(state.name)
            return
        self._will_end(pod_uid, state.name, self._room_s)

    def member_is_not_bound(self, pod_uid: str, state: GangState) -> None:
        """Record that the share of a member is about to be taken back, which was not bound when others were."""
        if pod_uid in state.pending:
            self._will_end(pod_uid, state.name, self._next_try_s)

    def hold_has_ended(self, pod_uid: str) -> None:
        """Record that a bind of a member is over: until now, its own hold has kept its place."""
        place = self._ending.get(pod_uid)
        if place is not None and not self._ledger.holders_of(pod_uid):
            del self._ending[pod_uid]
            self.put_back([place])

    def member_waits_no_more(self, pod_uid: str, state: GangState) -> None:
        """Record that a member is bound, or gone before it was: its place is its own then, or nobody's."""
        self._ending.pop(pod_uid, None)
        if self._held.pop(pod_uid, None):
            self._ledger.drop_hold(_key(pod_uid))

    def _will_end(self, pod_uid: str, name: GangName, wait_s: float) -> None:
        """Note the place of a member whose share is still in the ledger."""
        holders = [each for each in self._ledger.holders_of(pod_uid) if each[1].state is not HolderState.RESERVED]
        ending = sum(place.gang.namespace == name.namespace for place in self._ending.values())
        if holders and ending < MOST_ENDING:
            placement = Placement(holders[0][0].node_name, tuple(holder.share for _, holder in holders))
            self._ending[pod_uid] = KeptPlace(name, pod_uid, placement, self._clock.now_s() + wait_s)

    def others_leave(self, state: GangState) -> None:
        """Record that bound members of a gang have begun to leave: if all do, nothing is kept."""
        if (self._ending or self._held) and all(self._lives.is_leaving(uid) for uid in state.bound):
            self.forget(state.name)

    def stored(self, node_name: str) -> None:
        """Hold what has become free on a node just now. Called whenever the API server has stored a card."""
        for place in [place for place in self._ending.values() if place.node_name == node_name]:
            used = {card.uuid for card, _ in self._ledger.holders_of(place.pod_uid)}
            free = tuple(share for share in place.placement.shares if share.uuid not in used)
            if self._ledger.hold_of(place.pod_uid) is not None:
                continue  # until its bind is over; see hold_has_ended
            if not used:
                del self._ending[place.pod_uid]
                self.put_back([place])
            elif free and place.until_s > self._clock.now_s():
                with suppress(ShareRefused):
                    self._ledger.hold(place.key, replace(place.placement, shares=free), place.until_s)

    def keep_for(self, name: GangName, reserved: Mapping[str, Placement], until_s: float) -> None:
        """Keep places for a gang that were reserved before its pods were there, each under the key that it had."""
        self.put_back([KeptPlace(name, key, placement, until_s) for key, placement in reserved.items()])

    def take(self, name: GangName) -> list[KeptPlace]:
        """Give up what is kept for a gang, so that its members can be placed there; return it."""
        now_s = self._clock.now_s()
        for uid in [uid for uid, place in self._held.items() if place.until_s <= now_s]:
            del self._held[uid]
        places = self.kept_for(name)
        for place in places:
            self.let_go(place)
        return places

    def let_go(self, place: KeptPlace) -> None:
        """Give up a place that is kept."""
        del self._held[place.pod_uid]
        self._ledger.drop_hold(place.key)

    def kept_for(self, name: GangName) -> list[KeptPlace]:
        """Return the places that are kept for a gang's next members."""
        return [place for place in self._held.values() if place.gang == name]

    def gang_of(self, key: str) -> GangName | None:
        """Return for which gang a place is kept that stands in the ledger under this key; None if it is none."""
        uid = key.removesuffix(KEPT)
        place = self._held.get(uid) or self._ending.get(uid) if uid != key else None
        return place.gang if place else None

    def put_back(self, places: Sequence[KeptPlace], most: int | None = None) -> None:
        """Keep places, if they are free, until their time is over; at most so many of them."""
        left = len(places) if most is None else most
        for place in places:
            if left > 0 and place.until_s > self._clock.now_s():
                with suppress(ShareRefused):  # promised to others, or the card is gone
                    self._ledger.hold(place.key, place.placement, place.until_s)
                    self._held[place.pod_uid] = place
                    left -= 1

    def forget(self, name: GangName) -> None:
        """Keep nothing for a gang any more."""
        self.take(name)
        for place in [place for place in self._ending.values() if place.gang == name]:
            del self._ending[place.pod_uid]
            self._ledger.drop_hold(place.key)


def _key(pod_uid: str) -> str:
    return f"{pod_uid}{KEPT}"
