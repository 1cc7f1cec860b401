"""Room for gangs: kept for all missing members at once, or for none; and which gangs have found none.

Places of members that have failed or were deleted are kept for a while, for the pods that replace them. A place is put
on hold at the moment when the ledger's share ends, before others are looked at; under a name of its own, as the pod may
be gone. That is done only as long as other members are there and stay, so not where a whole training is deleted. The
same is done for a member that was not bound when others of its gang were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.formats.scheduler import LONGEST_BACK_OFF_S
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import QuotaExceeded, ShareRefused, WorkLimitExceeded
from gpuledger.model.gang import GangName, QuotaLimit
from gpuledger.model.request import PodRequest
from gpuledger.model.share import HolderState, Placement
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import Found, GangPlanner, Seat
from gpuledger.workflows.gangs.members import GangState, Member
from gpuledger.workflows.preemption.find_victims import PodLifecycles
from gpuledger.workflows.tasks import Step

KEPT = " (kept)"

MOST_ENDING = 256
"""How many deleted members of a namespace, whose shares are still in the ledger, keep their places at most."""


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """The cards of a member that is gone."""

    gang: GangName
    pod_uid: str
    placement: Placement
    until_s: float

    @property
    def key(self) -> str:
        """Return the key under which the place is held, in place of a pod's UID."""
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
        """Record that a member is bound, or was deleted before: its kept place is not needed any more."""
        self._ending.pop(pod_uid, None)
        if self._held.pop(pod_uid, None):
            self._ledger.drop_hold(_key(pod_uid))

    def _will_end(self, pod_uid: str, name: GangName, wait_s: float) -> None:
        """Record the place of a member whose share is still in the ledger."""
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


COME_S = LONGEST_BACK_OFF_S + 2.0
"""How long room is kept for members that were woken, until they stand in Bind; they may have to sit out a back-off."""

TRY_PAUSE_S = 0.5
"""Between two tries of a gang that finds no room: in a busy cluster something changes all the time."""

PAUSE_TO_WORK = 10
"""How many times as long as the last try has taken the pause is at least."""

UNKNOWN_CHANGE = -1
"""Stands for the last change of a ledger that has changed while room was looked for."""


class _Try(NamedTuple):
    """A try of a gang that has found no room."""

    change: int
    """The last change of the ledger before."""
    asked: int
    """How often kube-scheduler had named other nodes for a member before."""
    again_s: float
    """From when on it may be tried again."""
    fitted: int
    """For how many of the missing members there was room."""
    exceeded: QuotaLimit | None
    """The limit of its namespace that was in the way, if one was."""
    left: tuple[int, ...]
    """The amounts that the limits of its namespace left."""


@define(eq=False, slots=False)
class GangPlans:
    """Keeps room for gangs."""

    _ledger: Ledger
    _chooser: Chooser
    _kept_places: KeptPlaces
    _avoided: Callable[[str], Collection[str]]
    _gather_s: float
    _next_try_s: float
    _clock: Clock

    def __attrs_post_init__(self) -> None:
        self._planner = GangPlanner(self._ledger, self._chooser)
        self._planning: set[GangName] = set()
        self._in_vain = 0  # changes of the ledger by tries that have found no room
        self._tried: WeakKeyDictionary[GangState, _Try] = WeakKeyDictionary()  # gangs that have found no room

    def kept_for(self, member: Member) -> Placement | None:
        """Return where room is kept for a member, if it can go there; on another node if that one has led nowhere."""
        uid, names = member.pod.uid, member.node_names
        hold = self._ledger.hold_of(uid)
        if hold is None or names is None or hold.placement.node_name not in names:
            return None
        avoided = self._avoided(uid)
        if hold.placement.node_name in avoided:
            other = self._chooser.best(member.request, names - set(avoided))
            if other is not None:
                with suppress(QuotaExceeded):  # its cards are larger than those that it has
                    self._ledger.hold(uid, other, hold.deadline_s)
                    return other
        return hold.placement

    def place_of_one_more(
        self, name: GangName, pod_uid: str, request: PodRequest, node_names: Collection[str]
    ) -> Placement | None:
        """Return a place that is kept for a gang, on hold for a pod that it does not need; None if there is none."""
        places = () if self._ledger.hold_of(pod_uid) else self._kept_places.kept_for(name)
        for place in places:
            if place.node_name in node_names:
                self._kept_places.let_go(place)
                placement = self._chooser.best(request, {place.node_name})
                with suppress(ShareRefused):  # of another size, or its quota has too little left
                    if placement is not None:
                        self._ledger.hold(pod_uid, placement, place.until_s)
                        return placement
                self._kept_places.put_back([place])
        return None

    def have_room(self, state: GangState) -> int:
        """Return for how many members that wait room is kept."""
        return sum(self._ledger.hold_of(uid) is not None for uid in state.pending)

    def has_found_none(self, state: GangState) -> bool:
        """Return whether a gang has found no room, and nothing has changed since."""
        tried = self._tried.get(state)
        if tried is None or (tried.change, tried.asked) != (self._changes, state.asked):
            return False
        return tried.left == self._ledger.quotas.left_of_each(state.name.namespace)

    @property
    def _changes(self) -> int:
        """Return how often the ledger has changed, without the holds that vain tries have made and dropped again."""
        return self._ledger.changes - self._in_vain

    def has_to_pause(self, state: GangState) -> bool:
        """Return whether a gang found no room a moment ago, and has to wait for its next try."""
        tried = self._tried.get(state)
        return tried is not None and self._clock.now_s() < tried.again_s

    def forget(self, state: GangState) -> None:
        """Record that a gang may need fewer members than before: it can be tried again."""
        self._tried.pop(state, None)

    def fitted(self, state: GangState) -> int | None:
        """Return for how many missing members there was room at the last try; None if it found room for all."""
        tried = self._tried.get(state)
        return tried.fitted if tried else None

    def exceeded(self, state: GangState) -> QuotaLimit | None:
        """Return the limit of a gang's namespace that was in the way at its last try, if one was."""
        tried = self._tried.get(state)
        return tried.exceeded if tried else None

    def keep(self, state: GangState, first: Member, stands: Callable[[str], bool]) -> Generator[Step, None, bool]:
        """Hold room for as many members as are missing, this one among them; return whether there is room for all.

        Members that have room keep it, unless the others then find none: then all are planned anew but those in Bind,
        which kube-scheduler counts on their nodes. If there is not enough, the holds of these stay. Raises
        WorkLimitExceeded.
        """
        if state.name in self._planning:
            raise WorkLimitExceeded(f"room for gang {state.name.name} is being looked for")
        self._planning.add(state.name)
        begin_s, asked = self._clock.work_s(), state.asked
        before, holds = self._ledger.changes, self.have_room(state)
        places = self._kept_places.take(state.name)
        try:
            found = yield from self._keep(state, first, stands, places)
        except WorkLimitExceeded:
            self._kept_places.put_back(places)
            raise
        finally:
            self._planning.discard(state.name)
        if found.number >= state.missing:
            taken = self.have_room(state) - holds
            self._kept_places.put_back(places, len(places) - taken)  # for members that are to come
            self._tried.pop(state, None)
            return True
        self._kept_places.put_back(places)
        took_s = self._clock.work_s() - begin_s
        again_s = self._clock.now_s() + max(TRY_PAUSE_S, PAUSE_TO_WORK * took_s)
        if found.is_current and self.have_room(state) == holds:
            self._in_vain += self._ledger.changes - before
        change = self._changes if found.is_current else UNKNOWN_CHANGE
        left = self._ledger.quotas.left_of_each(state.name.namespace)
        self._tried[state] = _Try(change, asked, again_s, found.number, found.exceeded, left)
        return False

    def _keep(
        self, state: GangState, first: Member, stands: Callable[[str], bool], places: Collection[KeptPlace]
    ) -> Generator[Step, None, Found]:
        """Keep room; return for how many of the missing members there is room."""
        self._ledger.drop_hold(first.pod.uid)
        self._ledger.take_back_spares()
        others = [member for member in state.pending.values() if member is not first]
        without = [member for member in others if self._ledger.hold_of(member.pod.uid) is None]
        loose = [m for m in others if self._ledger.hold_of(m.pod.uid) is not None and not stands(m.pod.uid)]
        missing = state.missing
        need = missing - (len(others) - len(without))
        asking = [first, *sorted(without, key=_asked_first)][:need]
        found = yield from self._hold(state, asking, places)
        if found.number < len(asking) and loose:
            for member in loose:
                self._ledger.drop_hold(member.pod.uid)
            asking += loose
            found = yield from self._hold(state, asking, places)
        return found._replace(number=missing - len(asking) + found.number)

    def _hold(
        self, state: GangState, members: Collection[Member], places: Collection[KeptPlace]
    ) -> Generator[Step, None, Found]:
        """Hold room for some members; those that kube-scheduler has not asked for can go wherever another one can."""
        anywhere = _all_named(state)
        wait_s = self._gather_s + COME_S
        if state.bound:  # the rest of a gang whose operator has ended: kube-scheduler may learn of that late
            wait_s = max(wait_s, self._next_try_s)
        deadline_s = max([self._clock.now_s() + wait_s, *(place.until_s for place in places)])
        kept_on = {place.node_name for place in places}
        seats = [
            Seat(
                member.pod.uid,
                member.request,
                anywhere if member.node_names is None else member.node_names,
                preferred=kept_on,
                avoided=self._avoided(member.pod.uid),
            )
            for member in members
        ]
        beside: set[str] = set()
        if self._ledger.zones.labels:
            beside = {name for uid in (*state.bound, *state.pending) for name in self._nodes_of(uid)}
        return (yield from self._planner.hold(seats, deadline_s, beside))

    def _nodes_of(self, pod_uid: str) -> list[str]:
        hold = self._ledger.hold_of(pod_uid)
        return [hold.placement.node_name] if hold else [card.node_name for card, _ in self._ledger.holders_of(pod_uid)]


def _all_named(state: GangState) -> Collection[str] | None:
    """Return the nodes to which some member can go; None if kube-scheduler has not asked for any yet."""
    named = {id(each.node_names): each.node_names for each in state.pending.values() if each.node_names is not None}
    if len(named) <= 1:
        return next(iter(named.values()), None)
    return frozenset[str]().union(*named.values())


def _asked_first(member: Member) -> tuple[bool, str, str]:
    """Sort key: kube-scheduler asks for no pod that it would find no CPU for anywhere, so asked ones come first."""
    return member.node_names is None, member.since, member.pod.uid
