"""Room for gangs: kept for all missing members at once, or for none; and which gangs have found none.

Places of members that have failed or were deleted are kept for a while, for the pods that replace them: as seats, which
count from the moment when the ledger's share ends. That is done as long as other members are there and stay, and where
all leave after one has failed: a JobSet, for example, then makes all of them anew. So it is not done where a whole
training is deleted. The same is done for a member that was not bound when others of its gang were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.configuration.settings import Settings
from gpuledger.formats.scheduler import LONGEST_BACK_OFF_S
from gpuledger.ledger.seats import Seat, Strength
from gpuledger.model.errors import QuotaExceeded, ShareRefused, WorkLimitExceeded
from gpuledger.model.gang import GangName, GroupSeat, QuotaLimit, SeatKey
from gpuledger.model.request import PodRequest
from gpuledger.model.share import HolderState, Placement, are_shares_of
from gpuledger.placement.group import Asking, GroupPlanner, Plan
from gpuledger.placement.sketch import Sketch
from gpuledger.workflows.binding.bind_pod import BindFailures
from gpuledger.workflows.context import Component
from gpuledger.workflows.gangs.members import GangState, Member, Members
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.pending.queue import Attempts
from gpuledger.workflows.tasks import Step


@define(eq=False, slots=False)
class KeptPlaces(Component):
    """Keeps them, as seats of the gang."""

    _members: Members
    _lives: PodLifecycles

    def __attrs_post_init__(self) -> None:
        self._room_s = self._settings.gang_replacement_s
        """For how long the place of a bound member is kept, 0 for not at all."""
        self._next_try_s = next_try_s(self._settings)
        self._members.on_left.append(self.member_left)
        self._members.on_gone.append(self.member_waits_no_more)
        self._members.on_bound.append(self.others_leave)

    def member_left(self, pod_uid: str, state: GangState) -> None:
        """Record that a bound member has failed or was deleted; its share is still in the ledger."""
        if not self._room_s:
            return
        if self._leaves_for_good(state):
            self.forget(state.name)
            return
        self._keep(pod_uid, state, self._room_s)
        if self._may_come_anew(state):
            self._wait_longer(state)

    def _wait_longer(self, state: GangState) -> None:
        """Keep all its places from now on: those of a gang that ends slowly have to be there when the last one has."""
        now_s = state.failed_s = self._clock.now_s()
        for place in self.kept_for(state.name):
            self._ledger.seats.strengthen(place.key, place.strength, now_s + self._room_s)

    def _leaves_for_good(self, state: GangState) -> bool:
        return not self._may_come_anew(state) and all(self._lives.is_leaving(uid) for uid in state.bound)

    def _may_come_anew(self, state: GangState) -> bool:
        """Return whether a member had failed just before: then all leave, one after the other, for others to come."""
        return state.failed_s is not None and self._clock.now_s() <= state.failed_s + self._room_s

    def member_is_not_bound(self, pod_uid: str, state: GangState) -> None:
        """Record that the share of a member is about to be taken back, which was not bound when others were."""
        if pod_uid in state.pending:
            self._keep(pod_uid, state, self._next_try_s)

    def _keep(self, pod_uid: str, state: GangState, wait_s: float) -> None:
        """Keep the place of a member whose share is in the ledger: the seat counts when that is not any more."""
        holders = [each for each in self._ledger.holders.of(pod_uid) if each[1].state is not HolderState.RESERVED]
        if holders:
            placement = Placement(holders[0][0].node_name, tuple(holder.share for _, holder in holders))
            self.put_back([self._seat(state, pod_uid, placement, self._clock.now_s() + wait_s)], 1)

    def _seat(self, state: GangState, member: str, placement: Placement, until_s: float) -> Seat:
        name = state.name
        return Seat(GroupSeat(name, member), placement, until_s, Strength.WAITING, group=name, priority=state.priority)

    def member_waits_no_more(self, pod_uid: str, state: GangState) -> None:
        """Record that a member is bound, or was deleted before: its kept place is not needed any more."""
        self._ledger.seats.give_up(GroupSeat(state.name, pod_uid))

    def others_leave(self, state: GangState) -> None:
        """Record that bound members of a gang have begun to leave: if all do, nothing is kept."""
        if self.kept_for(state.name) and self._leaves_for_good(state):
            self.forget(state.name)

    def kept_for(self, name: GangName) -> list[Seat]:
        """Return the places that are kept for a gang's next members."""
        return [seat for seat in self._ledger.seats.of_group(name) if isinstance(seat.key, GroupSeat)]

    def put_back(self, places: Iterable[Seat], most: int) -> None:
        """Keep as many of these places, at most, as are free, until their time is over."""
        for place in places:
            if most > 0 and place.until_s > self._clock.now_s():
                with suppress(ShareRefused):  # promised to others, or the card is gone
                    self._ledger.seats.take(place)
                    most -= 1

    def forget(self, name: GangName) -> None:
        """Keep nothing for a gang any more."""
        for place in self.kept_for(name):
            self._ledger.seats.give_up(place.key)


COME_S = LONGEST_BACK_OFF_S + 2.0
"""How long room is kept for members that were woken, until they stand in Bind; they may have to sit out a back-off."""


def next_try_s(settings: Settings) -> float:
    """Return for how long room is kept for a member that kube-scheduler tries again."""
    return settings.extender_timeout_s + COME_S


TRY_PAUSE_S = 0.5
"""Between two tries of a gang that finds no room: in a busy cluster something changes all the time."""

PAUSE_TO_WORK = 10
"""How many times as long as the last try has taken the pause is at least."""


class _Try(NamedTuple):
    """A try of a gang that has found no room."""

    fitted: int
    """For how many of the missing members there was room."""
    exceeded: QuotaLimit | None
    """The limit of its namespace that was in the way, if one was."""


@define(eq=False, slots=False)
class GangPlans(Component):
    """Keeps room for gangs."""

    _kept_places: KeptPlaces
    _failures: BindFailures

    def __attrs_post_init__(self) -> None:
        self._planner = GroupPlanner(self._ledger, self._chooser)
        self._planning: set[GangName] = set()
        self._tried: WeakKeyDictionary[GangState, _Try] = WeakKeyDictionary()  # gangs that have found no room
        self._attempts = Attempts[GangState](self._clock)
        self._next_try_s, self._gather_s = next_try_s(self._settings), self._settings.gather_s

    def kept_for(self, member: Member) -> Placement | None:
        """Return where room is kept for a member, if it can go there; on another node if that one has led nowhere.

        From now on nobody else gets it.
        """
        uid, names = member.pod.uid, member.node_names
        seat = self._ledger.seats.of(uid)
        if seat is None or names is None or seat.placement.node_name not in names:
            return None
        node_name, avoided = seat.placement.node_name, self._failures.avoided(uid)
        if node_name in avoided or node_name in self._ledger.slow:
            other = self._chooser.best(member.request, names - {node_name, *avoided})
            if other is not None:
                with suppress(QuotaExceeded):  # its cards are larger than those that it has
                    self._ledger.seats.take(replace(seat, placement=other))
        self._ledger.seats.strengthen(uid, max(seat.strength, Strength.CHOSEN), seat.until_s)
        return self._placement_of(uid)

    def _placement_of(self, pod_uid: str) -> Placement | None:
        seat = self._ledger.seats.of(pod_uid)
        return seat.placement if seat else None

    def place_of_one_more(
        self, name: GangName, pod_uid: str, request: PodRequest, node_names: Collection[str]
    ) -> Placement | None:
        """Return a place that is kept for a gang, as the seat of a pod that it does not need; None if there is none."""
        places = () if self._ledger.seats.of(pod_uid) else self._kept_places.kept_for(name)
        for place in places:
            if place.placement.node_name in node_names:
                sketch = Sketch(self._ledger, {place.key})
                placement = sketch.best(self._chooser, request, {place.placement.node_name})
                with suppress(ShareRefused):  # of another size, or its quota has too little left
                    if placement is not None:
                        seat = Seat(pod_uid, placement, place.until_s, stored_as=place.stored_as)
                        self._ledger.seats.take(seat, without={place.key})
                        return placement
        return None

    def have_room(self, state: GangState) -> int:
        """Return for how many members that wait room is kept."""
        return sum(self._ledger.seats.of(uid) is not None for uid in state.pending)

    def has_found_none(self, state: GangState) -> bool:
        """Return whether a gang has found no room, and nothing has changed since."""
        return self._attempts.is_as_before(state, self._seen(state, self._ledger.changes))

    def has_to_pause(self, state: GangState) -> bool:
        """Return whether a gang found no room a moment ago, and has to wait for its next try."""
        return self._attempts.pauses(state)

    def _seen(self, state: GangState, change: int) -> tuple[object, ...]:
        """Return what it depends on whether a gang finds room."""
        quotas, namespace = self._ledger.quotas, state.namespace
        left = tuple(limit.most - quotas.used(namespace, limit) for limit in quotas.limits(namespace))
        return change, state.asked, left

    def forget(self, state: GangState) -> None:
        """Record that a gang may need fewer members than before: it can be tried again."""
        self._tried.pop(state, None)
        self._attempts.forget(state)

    def fitted(self, state: GangState) -> int | None:
        """Return for how many missing members there was room at the last try; None if it found room for all."""
        tried = self._tried.get(state)
        return tried.fitted if tried else None

    def exceeded(self, state: GangState) -> QuotaLimit | None:
        """Return the limit of a gang's namespace that was in the way at its last try, if one was."""
        tried = self._tried.get(state)
        return tried.exceeded if tried else None

    def keep(self, state: GangState, first: Member, stands: Callable[[str], bool]) -> Generator[Step, None, bool]:
        """Keep room for as many members as are missing, this one among them; return whether there is room for all.

        Members that have room keep it, unless the others then find none: then all are planned anew but those in Bind,
        which kube-scheduler counts on their nodes. At last, room that waits for pods of lower priority counts as free.
        If there is not enough, nothing changes. Raises WorkLimitExceeded.
        """
        if state.name in self._planning:
            raise WorkLimitExceeded(f"room for gang {state.name.name} is being looked for")
        if self._have_reserved(state, first):
            self.forget(state)
            return True
        self._planning.add(state.name)
        begin_s, seen = self._clock.work_s(), self._seen(state, self._ledger.changes)
        try:
            found, places = yield from self._plan(state, first, stands)
        finally:
            self._planning.discard(state.name)
        if not found.lacking:
            with suppress(ShareRefused):  # kube-scheduler was told a place meanwhile that was to yield
                self._commit(state, found.sketch, places)
                self.forget(state)
                return True
        took_s = self._clock.work_s() - begin_s
        self._attempts.failed(state, seen, max(TRY_PAUSE_S, PAUSE_TO_WORK * took_s))
        self._tried[state] = _Try(state.missing - found.lacking, found.exceeded)
        return False

    def _have_reserved(self, state: GangState, first: Member) -> bool:
        """Let all missing members have places that the API server keeps for the gang; return whether these suffice.

        A member takes one as it is: what the API server has of it then becomes the member's share.
        """
        seats, places = self._ledger.seats, self._kept_places.kept_for(state.name)
        free = [place for place in places if place.stored_as]
        others = [member for member in state.pending.values() if member is not first]
        waiting = [first, *(member for member in others if seats.of(member.pod.uid) is None)]
        taken: dict[SeatKey, Seat] = {}
        until_s = self._clock.now_s() + max(self._gather_s + COME_S, self._next_try_s if state.bound else 0.0)
        for member in waiting[: max(state.missing - len(others) + len(waiting) - 1, 0)]:
            place = next((each for each in free if each.key not in taken and self._is_for(each, member)), None)
            if place is None:
                return False
            taken[place.key] = replace(
                place, key=member.pod.uid, until_s=until_s, group=state.name, priority=state.priority
            )
        with suppress(ShareRefused):  # a card is gone, or the quota has too little left
            seats.take(*taken.values(), without=taken.keys())
            return bool(taken)
        return False

    def _is_for(self, place: Seat, member: Member) -> bool:
        """Return whether a place is what a member would get there, and the member may go there."""
        name = place.placement.node_name
        if member.node_names is not None and name not in member.node_names:
            return False
        shares, cards = place.placement.shares, self._ledger.node_room(name).cards
        return (
            bool(shares)
            and name not in self._failures.avoided(member.pod.uid)
            and are_shares_of(shares, member.request, cards)
        )

    def _commit(self, state: GangState, sketch: Sketch, places: Sequence[Seat]) -> None:
        wait_s = self._gather_s + COME_S
        if state.bound:  # the rest of a gang whose operator has ended: kube-scheduler may learn of that late
            wait_s = max(wait_s, self._next_try_s)
        until_s = max([self._clock.now_s() + wait_s, *(place.until_s for place in places)])
        had = sum(key in sketch.places and self._ledger.seats.of(key) is not None for key in sketch.without)
        yielding = self._yielding(state).intersection(sketch.without)
        sketch.commit(until_s, Strength.WAITING, state.name, state.priority, yielding)
        taken = len(sketch.places) - had
        self._kept_places.put_back(places, len(places) - taken)  # for members that are to come

    def _plan(
        self, state: GangState, first: Member, stands: Callable[[str], bool]
    ) -> Generator[Step, None, tuple[Plan, Sequence[Seat]]]:
        """Look for room for those that have none; return also the places that are kept for the gang."""
        places, seats = self._kept_places.kept_for(state.name), self._ledger.seats
        others = [member for member in state.pending.values() if member is not first]
        asking = [first, *sorted((each for each in others if seats.of(each.pod.uid) is None), key=_asked_first)]
        loose = [each for each in others if seats.of(each.pod.uid) is not None and not stands(each.pod.uid)]
        asking = asking[: max(state.missing - sum(seats.of(each.pod.uid) is not None for each in others), 0)]
        without = {first.pod.uid, *(place.key for place in places)}
        found = yield from self._planner.plan(self._asking(state, asking, places), without, self._beside(state))
        if found.lacking and loose:
            asking += loose
            without |= {member.pod.uid for member in loose}
            found = yield from self._planner.plan(self._asking(state, asking, places), without, self._beside(state))
        if found.lacking and (yielding := self._yielding(state)):
            without |= yielding
            found = yield from self._planner.plan(self._asking(state, asking, places), without, self._beside(state))
        return found, places

    def _yielding(self, state: GangState) -> set[SeatKey]:
        """Return the seats that every member that waits may take over."""
        return self._ledger.seats.yielding(min(member.pod.priority for member in state.pending.values()))

    def _asking(self, state: GangState, members: Iterable[Member], places: Iterable[Seat]) -> list[Asking]:
        """Return members that want room; those that kube-scheduler has not asked for can go wherever others can."""
        anywhere, kept_on = _all_named(state), {place.placement.node_name for place in places}
        return [
            Asking(
                member.pod.uid,
                member.request,
                anywhere if member.node_names is None else member.node_names,
                preferred=kept_on,
                avoided=self._failures.avoided(member.pod.uid),
            )
            for member in members
        ]

    def _beside(self, state: GangState) -> set[str]:
        """Return the nodes of the other members, where zones count."""
        if not self._ledger.zones.labels:
            return set()
        return {name for uid in (*state.bound, *state.pending) for name in self._nodes_of(uid)}

    def _nodes_of(self, pod_uid: str) -> list[str]:
        seat = self._ledger.seats.of(pod_uid)
        return [seat.placement.node_name] if seat else [card.node_name for card, _ in self._ledger.holders.of(pod_uid)]


def _all_named(state: GangState) -> Collection[str] | None:
    """Return the nodes to which some member can go; None if kube-scheduler has not asked for any yet."""
    named = {id(each.node_names): each.node_names for each in state.pending.values() if each.node_names is not None}
    if len(named) <= 1:
        return next(iter(named.values()), None)
    return frozenset[str]().union(*named.values())


def _asked_first(member: Member) -> tuple[bool, str, str]:
    """Sort key: kube-scheduler asks for no pod that it would find no CPU for anywhere, so asked ones come first."""
    return member.node_names is None, member.since, member.pod.uid
