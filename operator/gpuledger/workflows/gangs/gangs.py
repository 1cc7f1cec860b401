"""Gangs: pods that get their cards together, or keep none while they wait.

Once as many pods are there as the gang needs, the first question for one of them has room looked up for all
(`plans.py`); if there is room, it is kept for a while, and the others follow. (Room for members that do not exist yet
would let one pod keep hundreds of cards from others.) kube-scheduler then finds CPU, memory and volumes for one member
after the other; `BindBarrier` has the rest. Where that does not come together, as something else than cards is short,
the gang is tried alone (`turns.py`).

A gang that was refused is tried again when something in the ledger has changed, and its members are woken together.

At the barrier the binds of a gang's members wait for each other, twice. First until as many stand in Bind as the gang
needs: a kube-scheduler has then found CPU, memory and volumes for each, and counts them. Then until the shares of all
of these are in the ledger. Only after that the first Binding is sent. What goes wrong for one before fails all of them,
so that nothing is kept. After failed binds a gang pauses: whatever refuses them, others go first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.ledger.quotas import asked_of
from gpuledger.ledger.seats import Seat
from gpuledger.model.clock import Listeners
from gpuledger.model.errors import GangIncomplete, GpuledgerError, Reason, Refusal, WorkLimitExceeded
from gpuledger.model.gang import Gang, GangName, GangStage, GatherEnd, QuotaLimit
from gpuledger.model.node import NodeSets
from gpuledger.model.request import PodRequest
from gpuledger.model.share import HolderState, Placement, Pod
from gpuledger.placement.explain import over_quota
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.binding.bind_pod import NOTHING, EnteredAhead, OpenBindRequest, PodBinder, SeenPod
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import MemberRefused, PodNotBound
from gpuledger.workflows.gangs.members import GangState, Member, Members, PodGroups
from gpuledger.workflows.gangs.plans import TRY_PAUSE_S, GangPlans, KeptPlaces
from gpuledger.workflows.gangs.starvation_guard import StarvationGuard
from gpuledger.workflows.gangs.turns import ArrivalWindow, ExclusiveTurns, Turn
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.pending.queue import RoomQueue
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.tasks import Step, run_cooperatively

logger = logging.getLogger(__name__)


class BindBarrier:
    """Members of one gang that stand in Bind at the same time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._standing: dict[str, Callable[[], bool]] = {}  # UID -> whether kube-scheduler waits for its Binding
        self._entered: dict[str, Callable[[], None]] = {}  # UID -> what raises if its shares can't be used any more
        loop = asyncio.get_running_loop()
        self._complete: asyncio.Future[None] = loop.create_future()
        self._all_entered: asyncio.Future[None] = loop.create_future()
        self.on_entered = Listeners[[]]()
        """Called once the shares of all are in the ledger."""
        self.on_failed = Listeners[[GatherEnd, str]]()
        """Called once, if that does not come about, with why."""

    def __len__(self) -> int:
        """Return how many stand in Bind."""
        return len(self._standing)

    @property
    def is_over(self) -> bool:
        """Return whether it has failed, or all of them have gone on."""
        return self._all_entered.done()

    def stands(self, pod_uid: str) -> bool:
        """Return whether a pod is one of them."""
        return pod_uid in self._standing

    async def stand(
        self, pod_uid: str, is_asked: Callable[[], bool], missing: Callable[[], int], timeout_s: float
    ) -> None:
        """Wait until as many stand in Bind as are missing. Raises GangIncomplete if it takes too long, or one fails.

        Of those for which kube-scheduler does not wait any more, `is_asked`, it has forgotten the CPU: another one may
        count it for others already. They count when it asks for them again: see `look`.
        """
        self._standing[pod_uid] = is_asked
        self.look(missing())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._complete)
        except TimeoutError:
            here, needed = len(self._standing), missing()
            why = f"{here} of {needed} members of gang {self._name} could be bound within {timeout_s:g} s"
            self.fail(why, GatherEnd.LATE)
            await self._complete

    def look(self, missing: int) -> None:
        """Note how many are missing, or that one is asked for: others of the gang may be bound by now."""
        if not self._standing or len(self._standing) < missing or self._complete.done():
            return
        if sum(is_asked() for is_asked in self._standing.values()) >= missing:
            self._complete.set_result(None)

    async def entered(self, pod_uid: str, check: Callable[[], None]) -> None:
        """Wait until the ledger has the shares of all that were there. Raises GangIncomplete if one is missing.

        When it has, `check` of each is called: it raises a GpuledgerError if the pod can't use its shares any more.
        """
        self._entered[pod_uid] = check
        if self._entered.keys() >= self._standing.keys() and not self._all_entered.done():
            self._go_on()
        await asyncio.shield(self._all_entered)

    def _go_on(self) -> None:
        try:
            for check in self._entered.values():
                check()
        except GpuledgerError as error:
            self.fail(f"another member of the gang could not be bound: {error}", GatherEnd.REFUSED)
        else:
            self._all_entered.set_result(None)
            self.on_entered()

    def fail(self, why: str, end: GatherEnd) -> None:
        """Have all that have not gone on fail. Idempotent."""
        is_first = not self.is_over
        for future in (self._complete, self._all_entered):
            if not future.done():
                future.set_exception(GangIncomplete(why))
                future.exception()  # whether or not anybody waits for it
        if is_first:
            self.on_failed(end, why)

    def leave(self, pod_uid: str) -> None:
        """Record that a pod does not stand in Bind any more."""
        self._standing.pop(pod_uid, None)
        self._entered.pop(pod_uid, None)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 16.0


class BindBackoff:
    """Gangs that are not tried for a while: twice as long with each failure in a row. Times are of one clock."""

    def __init__(self) -> None:
        # gang -> how long the pause is, and its end
        self._failed: WeakKeyDictionary[GangState, tuple[float, float]] = WeakKeyDictionary()

    def failed(self, state: GangState, now_s: float) -> None:
        """Record that a gang's Binds have failed. All fail at once: those within the pause are not counted again."""
        last = self._failed.get(state)
        if last is None or last[1] <= now_s:
            pause_s = min(2 * last[0], LONGEST_PAUSE_S) if last else FIRST_PAUSE_S
            self._failed[state] = (pause_s, now_s + pause_s)

    def left_s(self, state: GangState, now_s: float) -> float:
        """Return how long a gang still has to wait, in seconds."""
        last = self._failed.get(state)
        return max(0.0, last[1] - now_s) if last else 0.0

    def next_s(self, now_s: float) -> float | None:
        """Return when the next pause ends, None if there is none."""
        return min((until_s for _, until_s in self._failed.values() if until_s > now_s), default=None)

    def forget(self, state: GangState) -> None:
        """Record that a gang was bound."""
        self._failed.pop(state, None)


OTHERS_TURN = Refusal(
    Reason.GANG, "another gang, which has found cards and lacked something else, is tried alone for a while"
)
HELD_BACK = Refusal(Reason.GANG, "another gang, which many have overtaken that came after it, goes first for a while")
PAUSE = Refusal(Reason.GANG, "a member of the pod's gang could not be bound a moment ago")
GONE = Refusal(Reason.GANG, "the pod is bound or gone by now")


def too_few(minimum: int) -> Refusal:
    """Return the refusal of a gang of which not all members are there."""
    return Refusal(Reason.GANG, f"fewer than {minimum} members of the pod's gang have been created")


def others_first(minimum: int) -> Refusal:
    """Return the refusal of a member that others of its gang come before."""
    return Refusal(Reason.GANG, f"the {minimum} members that the pod's gang needs go first")


def too_little(minimum: int, limit: QuotaLimit | None, asked: int) -> Refusal:
    """Return the refusal of a gang that finds too few cards, or may not have as much of a limit as it asks for."""
    if limit is not None:
        return over_quota(limit, asked)
    return Refusal(Reason.GANG, f"fewer than {minimum} members of the pod's gang find cards at once")


def asked_in_sum(limit: QuotaLimit, state: GangState) -> int:
    """Return the least that the members that a gang waits for take of a limit, 0 if that depends on their cards."""
    each = sorted(asked_of(limit, member.request.shape) for member in state.pending.values())[: state.missing]
    return sum(each) if all(each) else 0


DISPLACED = "a pod of higher priority has taken over cards that were kept for it"

_Gathered = tuple[SeenPod, EnteredAhead]

GivenUp = Callable[[GangState, BindBarrier, GatherEnd, str], None]


@define(eq=False, slots=False)
class GangBinder(Component):
    """Binds the members of gangs together."""

    _members: Members
    _kept_places: KeptPlaces
    _binder: PodBinder

    def __attrs_post_init__(self) -> None:
        self._gather_s = self._settings.gather_s
        self._gatherings: dict[GangName, BindBarrier] = {}
        self._past_barrier: set[str] = set()  # UIDs of the members whose Bindings are sent now
        self.check_that_others_may_come: Callable[[GangState], None] = lambda state: None
        """Raises GangIncomplete if the others of a gang keep no cards, and are not about to come."""
        self.on_entered = Listeners[[GangState]]()
        """Called when the shares of all that were missing are in the ledger."""
        self.on_failed = Listeners[[GangState, BindBarrier, GatherEnd, str]]()
        """Called once when members that stood in Bind are not bound, with why."""
        self._events.on(PodNotBound, self._is_not_bound)

    def of(self, name: GangName) -> BindBarrier | None:
        """Return where members of a gang stand in Bind, None if none does."""
        return self._gatherings.get(name)

    def standing(self, name: GangName) -> int:
        """Return how many members of a gang stand in Bind."""
        gathering = self._gatherings.get(name)
        return 0 if gathering is None or gathering.is_over else len(gathering)

    async def bind(self, seen: SeenPod, placement: Placement, permission: OpenBindRequest) -> None:
        """Bind a pod; a member of a gang that is not there yet when the others can be bound, too.

        Raises as PodBinder does, and GangIncomplete if they can't.
        """
        state, binder = self._members.of(seen.pod.uid), self._binder
        if seen.gang is None or (state is not None and state.missing <= 0):
            await binder.bind(seen, placement, permission)
            return
        if state is None:
            raise GangIncomplete("no watch has shown the pod yet, so it is not known who else is of its gang")
        seen, entered = await self._gather(seen, state, placement, permission)
        permission.before_sending.append(lambda: self._check_complete(state))
        self._past_barrier.add(seen.pod.uid)
        try:
            await binder.bind(seen, placement, permission, entered)
        finally:
            self._past_barrier.discard(seen.pod.uid)

    def _check_complete(self, state: GangState) -> None:
        """Raise GangIncomplete if no member is bound yet and one has lost its shares since all had entered theirs.

        Entering them once more may fail for one, after an answer that was lost.
        """
        if not state.bound and sum(map(self._is_ready, state.pending.values())) < state.missing:
            raise GangIncomplete("another member of the gang has lost its cards")

    def _is_ready(self, member: Member) -> bool:
        holders = self._ledger.holders.of(member.pod.uid)
        is_entered = bool(holders) and all(holder.state is not HolderState.RELEASING for _, holder in holders)
        return is_entered or not member.request.cards

    def _is_not_bound(self, event: PodNotBound) -> None:
        """Keep the place of a member that is not bound, if others of its gang are.

        An operator has ended between the Bindings then, or this one was refused.
        """
        state = self._members.of(event.uid)
        if state is not None and (state.bound or event.uid in self._past_barrier):
            self._kept_places.member_is_not_bound(event.uid, state)

    async def _gather(
        self, seen: SeenPod, state: GangState, placement: Placement, permission: OpenBindRequest
    ) -> _Gathered:
        """Wait until the shares of all that are missing are entered; return what was of this one, or raise why not."""
        pod, binder = seen.pod, self._binder
        gathering = self._gatherings.get(state.name)
        if gathering is None or gathering.is_over:
            self.check_that_others_may_come(state)
            gathering = self._gatherings[state.name] = self._gathering(state)
        entered = NOTHING
        try:
            missing = partial(_missing, self._members, state.name)
            permission.on_question.append(lambda: gathering.look(missing()))
            await gathering.stand(pod.uid, permission.is_asked, missing, self._gather_s)
            version = self._members.latest_version(pod.uid, seen.request, seen.resource_version)
            entered = await binder.enter(pod, placement)
            await gathering.entered(pod.uid, lambda: binder.check(placement))
            return replace(seen, resource_version=version), entered
        except asyncio.CancelledError:
            gathering.fail("the operator ends", GatherEnd.STOPPED)
            raise
        except Exception as error:
            gathering.fail(f"another member of the gang could not be bound: {error}", GatherEnd.REFUSED)
            await binder.give_back(pod, placement, entered)
            raise
        finally:
            gathering.leave(pod.uid)
            if not len(gathering) and self._gatherings.get(state.name) is gathering:
                del self._gatherings[state.name]

    def _gathering(self, state: GangState) -> BindBarrier:
        gathering = BindBarrier(state.name.name)
        gathering.on_entered.append(lambda: self.on_entered(state))
        gathering.on_failed.append(lambda end, why: self.on_failed(state, gathering, end, why))
        return gathering


def _missing(members: Members, name: GangName) -> int:
    """Return how many more of a gang have to be bound; none of one that has no pods any more."""
    state = members.get(name)
    return state.missing if state else 0


@define(eq=False, slots=False)
class Gangs(Component):
    """Places the members of gangs that are not complete, and has room kept for gangs that wait."""

    _waiting: WaitingPods
    _queue: RoomQueue
    _lives: PodLifecycles
    _pod_binder: PodBinder

    def __attrs_post_init__(self) -> None:
        self.pod_groups = PodGroups(self._counts)
        self.members = self._members = Members(self._context, self.pod_groups)
        self.kept_places = self._kept_places = KeptPlaces(self._context, self._members, self._lives)
        self.plans = self._plans = GangPlans(self._context, self._kept_places, self._pod_binder.failures)
        self.binder = self._binder = GangBinder(self._context, self._members, self._kept_places, self._pod_binder)
        self._turns = ExclusiveTurns(self._members.waits)
        self.precedence = StarvationGuard(self._context, self._members, self._plans, self._kept_places)
        self.pauses = BindBackoff()
        self._early = ArrivalWindow(
            self._clock,
            self._tasks,
            lambda state: self._give_up(state, too_few(state.minimum).text, GatherEnd.INCOMPLETE),
        )
        self._node_sets = NodeSets()
        self._queue.add(self)
        self.on_stage = Listeners[[GangState, GangStage, str]]()
        """Called when cards are kept for a gang, and when those of all are entered, with a sentence."""
        self.on_given_up = Listeners[[GangState, GatherEnd, str]]()
        """Called when members that stood in Bind are not bound, with why."""
        self._members.on_gone.append(self._member_is_gone)
        self._members.on_bound.append(self._member_is_bound)
        self._members.on_newcomer.append(self._member_comes)
        self._members.on_minimum.extend(
            (lambda of: self._plans.forget(of), self._may_be_complete, self._member_is_bound)
        )
        self._binder.check_that_others_may_come = self._check_that_others_may_come
        self._binder.on_entered.append(self._are_entered)
        self._binder.on_failed.append(self._is_given_up)
        self.precedence.on_over.append(self._queue.look_again_in)
        self.precedence.on_given.append(lambda *_: self._look_again_when_due())
        self._ledger.quotas.on_room.append(self._may_have_more)
        self._ledger.seats.on_displaced.append(self._displaced)
        self._context.trail.gang_of = self._members.name_of
        GangTrail(self._context, self)

    # Filter.

    def place(
        self, found: Mapping[str, Any], pod: Pod, gang: Gang, request: PodRequest, node_names: Collection[str]
    ) -> Generator[Step, None, Placement | Refusal | None]:
        """Return where a member goes, or why the gang waits; None if it is complete without it, and keeps no place.

        `found` is the pod as kube-scheduler has it. Others can have their turn between two steps. Raises
        WorkLimitExceeded if it takes more work; asked again, there is less left to do.
        """
        state = self._members.asks(found, pod, gang, request)
        if state is None:
            return GONE
        if state.missing <= 0:
            return self._plans.place_of_one_more(state.name, pod.uid, request, node_names)
        member = state.pending[pod.uid]
        self._is_asked_for(state, member, node_names)
        kept = self._plans.kept_for(member)
        if kept is not None:
            return kept
        self._ledger.seats.give_up(pod.uid)
        why_not = self._why_not(state)
        if why_not is None and not (yield from self._try(state, member)):
            why_not = self._too_little(state)
        if why_not is not None:
            return self._refused(member, why_not)
        self.requeue(state)
        return self._plans.kept_for(member) or self._refused(member, self._too_little(state))  # given up meanwhile

    def _is_asked_for(self, state: GangState, member: Member, node_names: Collection[str]) -> None:
        names = self._node_sets.of(node_names)
        is_new = names != member.node_names
        if member.node_names is None:  # it was planned as one that can go where any other one can
            is_new = all(names is not other.node_names for other in state.pending.values())
        state.asked += is_new
        member.node_names, member.refused, member.ruled_out = names, False, False
        member.tried_s = self._clock.wall().timestamp()

    def _why_not(self, state: GangState) -> Refusal | None:
        """Return why a gang is not to be planned now."""
        now_s, minimum = self._clock.now_s(), state.minimum
        if state.problem:
            return Refusal(Reason.GANG, state.problem)
        if len(state.pending) < state.missing and not self._early.may_go_ahead(state):
            return too_few(minimum)
        if self._turns.holding_back(state.name, now_s) is not None:
            return OTHERS_TURN
        if self.precedence.holding_back(state) is not None:
            return HELD_BACK
        if self.pauses.left_s(state, now_s):
            return PAUSE
        if self._plans.has_to_pause(state):
            self._queue.look_again_in(TRY_PAUSE_S)
            return self._too_little(state)
        if self._plans.has_found_none(state):
            return self._too_little(state)
        return others_first(minimum) if self._plans.have_room(state) >= state.missing else None

    def _too_little(self, state: GangState) -> Refusal:
        """Return why a gang does not find cards."""
        limit = self._plans.exceeded(state)
        return too_little(state.minimum, limit, asked_in_sum(limit, state) if limit else 0)

    def _may_have_more(self, namespace: str) -> None:
        """Try the gangs of a namespace again for which its quota had too little."""
        waiting = (state for state in self._members.waiting() if state.name.namespace == namespace)
        if any(map(self._plans.exceeded, waiting)):
            self._queue.look_again_in(0.0)

    def _refused(self, member: Member, refusal: Refusal) -> Refusal:
        member.refused, member.refusal = True, refusal
        self._events.tell(MemberRefused(member.pod.uid))
        return refusal

    def _try(self, state: GangState, first: Member) -> Generator[Step, None, bool]:
        """Hold room for all missing members, this one among them, or for none; return whether it was for all."""
        gathering = self._binder.of(state.name)
        if (yield from self._plans.keep(state, first, lambda uid: gathering is not None and gathering.stands(uid))):
            if len(state.pending) >= state.missing:  # else for those that are there, for a moment
                text = f"cards for {state.missing} of {state.minimum} members are kept"
                self.on_stage(state, GangStage.ROOM_FOUND, text)
                self.precedence.needs_none(state.name)
            return True
        self._early.ends(state)
        self._give_up(state, self._too_little(state).text, GatherEnd.NO_CARDS)
        self._turns.needs_none(state.name, self._clock.now_s())
        self._look_again_when_due()
        return False

    def _displaced(self, seats: Sequence[Seat]) -> None:
        """Record that pods of higher priority have taken over places of gangs: those are tried again."""
        for name in {seat.group for seat in seats if isinstance(seat.group, GangName)}:
            state = self._members.get(name)
            if state is not None:
                self.on_given_up(state, GatherEnd.DISPLACED, DISPLACED)
        self._queue.look_again_in(0.0)

    def _give_up(self, state: GangState, why: str, end: GatherEnd) -> None:
        """Fail the gang's pending Binds and release its reservations."""
        gathering = self._binder.of(state.name)
        if gathering is not None and not gathering.is_over:
            gathering.fail(why, end)  # see _is_given_up
        else:
            self._let_go(state, gathering)

    def _let_go(self, state: GangState, gathering: BindBarrier | None) -> None:
        for uid in state.pending:
            if gathering is None or not gathering.stands(uid):  # what stands in Bind lets go by itself
                self._ledger.seats.give_up(uid)

    def lacks_only_cards(self, state: GangState) -> bool:
        """Return whether all its missing members are there, were looked for cards, found too few, and keep none."""
        now_s = self._clock.now_s()
        if state.problem or not len(state.pending) >= state.missing > 0 or self._plans.have_room(state):
            return False
        if self._turns.holding_back(state.name, now_s) is not None or self.pauses.left_s(state, now_s):
            return False
        if self.precedence.holding_back(state) is not None or self._plans.exceeded(state):
            return False
        return self._plans.fitted(state) is not None

    def turn_of(self, name: GangName) -> Turn | None:
        """Return the turn in which a gang is tried alone, or another's in which it is not tried; None if neither."""
        now_s = self._clock.now_s()
        turn = self._turns.current(now_s)
        return turn if turn is not None and turn.name == name else self._turns.holding_back(name, now_s)

    def _check_that_others_may_come(self, state: GangState) -> None:
        """Raise GangIncomplete if the gang was given up since kube-scheduler has asked for the pod that is bound now.

        Its Bind was in flight then. Waiting for other members, which have no holds, would only keep its cards from
        other pods.
        """
        ledger, needed = self._ledger, min(state.missing, len(state.pending))
        there = sum(bool(ledger.seats.of(uid) or ledger.holders.of(uid)) for uid in state.pending)
        if there < needed and not self._early.is_open(state):
            raise GangIncomplete(self._too_little(state).text)

    def _are_entered(self, state: GangState) -> None:
        self.precedence.starts(state)
        text = "all members that were missing stand in Bind, and their cards are in the ledger"
        self.on_stage(state, GangStage.GATHERING, text)

    def _is_given_up(self, state: GangState, gathering: BindBarrier, end: GatherEnd, why: str) -> None:
        """Record that a gathering has failed: once for all that stand in it."""
        self._let_go(state, gathering)
        now_s = self._clock.now_s()
        if end is GatherEnd.LATE and (self._turns.holder(now_s) == state.name or not state.has_too_few_nodes):
            self._turns.lacks(state.name, state.rank, now_s)
        elif end in (GatherEnd.LATE, GatherEnd.REFUSED):  # to be tried alone would not help
            self.pauses.failed(state, now_s)
        self._look_again_when_due()
        self.on_given_up(state, end, why)

    def _look_again_when_due(self) -> None:
        now_s = self._clock.now_s()
        self._turns.holder(now_s)
        due_s = (self._turns.next_s(), self.precedence.next_s(), self.pauses.next_s(now_s))
        next_s = min((each for each in due_s if each is not None), default=None)
        if next_s is not None:
            self._queue.look_again_in(max(0.0, next_s - now_s))

    # What the watches show.

    def _member_comes(self, state: GangState) -> None:
        self._early.comes(state)
        self._may_be_complete(state)

    def _may_be_complete(self, state: GangState) -> None:
        """Requeue a gang whose last missing member was created: the other members were refused before."""
        gathering = self._binder.of(state.name)
        if gathering is not None:
            gathering.look(state.missing)
        if len(state.pending) >= state.missing > 0 and any(member.refused for member in state.pending.values()):
            self._queue.look_again_in(0.0)

    def _member_is_gone(self, pod_uid: str, state: GangState) -> None:
        """Record that a member waits no more. One that is bound has left its gathering before."""
        if not self._members.waits(state.name):
            self.precedence.needs_none(state.name)
        if not state.pending:
            self.precedence.is_gone(state)
        gathering = self._binder.of(state.name)
        if gathering is not None and gathering.stands(pod_uid):
            gathering.fail("another member of the gang is gone", GatherEnd.GONE)

    def _member_is_bound(self, state: GangState) -> None:
        gathering = self._binder.of(state.name)
        if gathering is not None:
            gathering.look(state.missing)
        if state.missing <= 0:  # the others are pods like any others from here on
            self.pauses.forget(state)
            if self._turns.is_bound(state.name, self._clock.now_s()):
                self._look_again_when_due()
            for member in [each for each in state.pending.values() if each.refused]:
                member.refused = False
                self._waiting.refused(member.pod, member.request, member.since, member.node_names)

    # The queue of all who wait.

    def waiting(self) -> Iterator[GangState]:
        """See Groups."""
        self.precedence.look()
        self._look_again_when_due()
        return self._members.all()

    def may_be_tried(self, group: GangState) -> bool:
        """Return whether all missing members are there, wait, and have nothing kept for them."""
        if group.missing <= 0 or self._plans.have_room(group):
            return False
        if not any(member.refused for member in group.pending.values()):
            return False
        return self._why_not(group) is None

    async def try_now(self, group: GangState) -> None:
        """See Groups."""
        with suppress(WorkLimitExceeded):
            if await run_cooperatively(self._try(group, _first_refused(group))):
                self.requeue(group)

    def requeue(self, state: GangState) -> None:
        """Have kube-scheduler ask again for the refused members that have room now."""
        for member in state.pending.values():
            if member.refused and self._ledger.seats.of(member.pod.uid) is not None:
                member.refused = False
                # Where that fails, its gang's room is given up in time, and the gang tried again.
                waking = self._waiting.requeuer.keep_waking(member.pod, self._is_active)
                self._tasks.start(waking, f"wake pod {member.pod}")


def _first_refused(state: GangState) -> Member:
    return min((member for member in state.pending.values() if member.refused), key=_age)


def _age(member: Member) -> tuple[str, str]:
    return member.since, member.pod.uid


KINDS = {GangStage.ROOM_FOUND: RecordKind.GANG_PLANNED, GangStage.GATHERING: RecordKind.GANG_GATHERED}


@define(eq=False, slots=False)
class GangTrail(Component):
    """A gang that can't start is planned and given up again and again: of that, each thing is said once."""

    _gangs: Gangs

    def __attrs_post_init__(self) -> None:
        self._gangs.on_stage.append(self.stage)
        self._gangs.on_given_up.append(self.given_up)
        self._gangs.precedence.on_given.append(self.goes_first)
        self._gangs.members.on_newcomer.append(self.member_comes)
        self._gangs.members.on_bound.append(self.member_is_bound)
        # When its last missing member was seen.
        self._ready_s: WeakKeyDictionary[GangState, float] = WeakKeyDictionary()
        self._said: WeakKeyDictionary[GangState, set[str]] = WeakKeyDictionary()  # what was said of it since it came

    def member_comes(self, state: GangState) -> None:
        """Note a new member."""
        if len(state.pending) == state.missing > 0:
            self._ready_s[state] = self._clock.now_s()
            self._said.pop(state, None)

    def stage(self, state: GangState, stage: GangStage, text: str) -> None:
        """Record that cards are kept, or entered, for all that are missing."""
        kind = KINDS[stage]
        if self._is_news(state, kind.value):
            self._trail.gang(kind, state.name, text)

    def given_up(self, state: GangState, end: GatherEnd, why: str) -> None:
        """Record that members that stood in Bind are not bound."""
        self._counts.gathers_given_up.labels(end).inc()
        if self._is_news(state, end.value):
            self._trail.gang(RecordKind.GANG_GIVEN_UP, state.name, why)

    def goes_first(self, state: GangState, text: str) -> None:
        """Record that gangs that come after it wait for it."""
        self._counts.gangs_first.inc()
        self._trail.gang(RecordKind.GANG_FIRST, state.name, text)

    def member_is_bound(self, state: GangState) -> None:
        """Note a bound member: with the last one that is needed, the gang runs. Replicas on standby see it, too."""
        ready_s = self._ready_s.get(state)
        if state.missing > 0 or ready_s is None:
            return
        self._ready_s.pop(state, None)
        self._said.pop(state, None)
        if not self._is_active():
            return
        took_s = self._clock.now_s() - ready_s
        self._counts.gang_place_seconds.observe(took_s)
        text = f"{len(state.bound)} members are bound, {took_s:.1f} s after the last that it needs was seen"
        self._trail.gang(RecordKind.GANG_BOUND, state.name, text)

    def _is_news(self, state: GangState, what: str) -> bool:
        said = self._said.setdefault(state, set())
        if what in said:
            return False
        said.add(what)
        return True
