"""Gangs: pods that get their cards together, or keep none while they wait.

Once as many pods are there as the gang needs, the first question for one of them has room looked up for all; if there
is room, it is kept for a while, and the others follow. (Room for members that do not exist yet would let one pod keep
hundreds of cards from others.) kube-scheduler then finds CPU, memory and volumes for one member after the other;
`Gathering` has the rest. Where that does not come together, as something else than cards is short, two gangs could take
it from each other for ever: so the first gang to fail there is tried alone, for a while.

A gang that was refused is tried again when something in the ledger has changed, and its members are woken together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from gpuledger.formats.scheduler.scheduler_config import LONGEST_BACK_OFF_S
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, ShareRefused, WorkLimitExceeded
from gpuledger.model.gang import Gang, GangName
from gpuledger.model.latest import Latest
from gpuledger.model.listeners import Listeners
from gpuledger.model.refusal import Reason, Refusal
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.binding.bind_permission import BindPermission
from gpuledger.workflows.binding.bind_pod import PodBinder, SeenPod
from gpuledger.workflows.gangs.gathering import Gathering
from gpuledger.workflows.gangs.members import GangState, Member, Members
from gpuledger.workflows.journal.journal import Entered
from gpuledger.workflows.tasks.stepwise import Step, giving_way

logger = logging.getLogger(__name__)
COME_S = LONGEST_BACK_OFF_S + 2.0
"""How long room is kept for members that were woken, until they stand in Bind; they may have to sit out a back-off."""

TURN_S = 30.0
"""How long a gang is tried alone."""

MEMBERS_AT_ONCE = 8
"""For which room is looked for before others have their turn."""

TRIED_KEPT = 1_024
"""Gangs of which is remembered when they found no room."""

TRY_PAUSE_S = 0.5
"""Between two tries of a gang that finds no room: in a busy cluster something changes all the time."""


class _Try(NamedTuple):
    """A try of a gang that has found no room: at which change of the ledger, when, and on which nodes."""

    change: int
    at_s: float
    node_names: Collection[str] | None


_Gathered = tuple[SeenPod, list[Entered]]


class Gangs:
    """Places and binds the members of gangs that are not complete."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        members: Members,
        wake_up: Callable[[Pod], Awaitable[None]],
        wait_alone: Callable[[Pod, PodRequest, str, Collection[str] | None], None],
        gather_s: float,
        clock: Clock,
        is_active: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._members = members
        self._wake_up = wake_up
        self._wait_alone = wait_alone
        self._gather_s = gather_s
        self._clock = clock
        self._is_active = is_active
        self._gatherings: dict[GangName, Gathering] = {}
        self._turn: tuple[GangName, float] | None = None  # the gang that was tried alone last, and until when
        self._planning: set[GangName] = set()
        self._tried: Latest[GangName, _Try] = Latest(TRIED_KEPT)  # the last tries that found no room
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.on_due = Listeners[[]]()
        """Called when gangs can be tried that could not before, though nothing has changed."""
        members.on_gone.append(self._member_is_gone)
        members.on_bound.append(self._member_is_bound)
        members.on_newcomer.append(self._member_comes)
        members.on_minimum.extend((lambda of: self._tried.drop(of.name), self._member_comes, self._member_is_bound))

    # Filter.

    def place(
        self, found: Mapping[str, Any], pod: Pod, gang: Gang, request: PodRequest, node_names: Collection[str]
    ) -> Generator[Step, None, Placement | Refusal | None]:
        """Return where a member goes, or why the gang waits; None if the gang is complete without it.

        `found` is the pod as kube-scheduler has it. Others can have their turn between two steps. Raises
        WorkLimitExceeded if it takes more work; asked again, there is less left to do.
        """
        state = self._members.asks(found, pod, gang, request)
        if state.missing <= 0:
            return None
        member = state.pending[pod.uid]
        member.node_names, member.refused = node_names, False
        if state.problem:
            return self._refuse(member, Refusal(Reason.GANG, state.problem))
        hold = self._ledger.hold_of(member.pod.uid)
        if hold is not None and hold.placement.node_name in node_names:
            return hold.placement
        if len(state.pending) < state.missing:
            return self._refuse(member, _too_few(state.minimum))
        if self._is_others_turn(state.name):
            return self._refuse(member, _others_turn())
        if self._has_found_no_room(state.name, node_names) or self._was_tried_just_now(state.name):
            return self._refuse(member, _too_little(state.minimum))
        if self._have_room(state) >= state.missing:
            return self._refuse(member, _others_first(state.minimum))
        if not (yield from self._plan(state, member, node_names)):
            return self._refuse(member, _too_little(state.minimum))
        self._wake_others(state)
        placed = self._ledger.hold_of(member.pod.uid)
        return placed.placement if placed else self._refuse(member, _too_little(state.minimum))  # given up meanwhile

    def why_waiting(self, pod_uid: str) -> str:
        """Return why a member waits, an empty string for a pod that does not wait for its gang."""
        state = self._members.of(pod_uid)
        if state is None or pod_uid not in state.pending or state.missing <= 0:
            return ""
        if state.problem:
            return f"gang {state.name.name}: {state.problem}"
        if self._is_others_turn(state.name):
            return _others_turn().text
        why = _too_few(state.minimum) if len(state.pending) < state.missing else _too_little(state.minimum)
        there = len(state.pending)
        here = f"{len(state.bound)} of {state.minimum} members run, {there} {'waits' if there == 1 else 'wait'}"
        return f"gang {state.name.name}: {here}; {why.text}"

    def _refuse(self, member: Member, refusal: Refusal) -> Refusal:
        member.refused = True
        return refusal

    def _plan(self, state: GangState, first: Member, node_names: Collection[str] | None) -> Generator[Step, None, bool]:
        """Keep room for all missing members on these nodes, one of them included; or nothing for any of them."""
        if state.name in self._planning:
            raise WorkLimitExceeded(f"room for gang {state.name.name} is being looked for")
        self._planning.add(state.name)
        try:
            return (yield from self._planned(state, first, node_names))
        finally:
            self._planning.discard(state.name)

    def _planned(
        self, state: GangState, first: Member, node_names: Collection[str] | None
    ) -> Generator[Step, None, bool]:
        self._ledger.drop_hold(first.pod.uid)
        self._ledger.take_back_spares()
        gathering = self._gatherings.get(state.name)
        others = [m for m in state.pending.values() if m is not first]
        without = [m for m in others if self._ledger.hold_of(m.pod.uid) is None]
        need = state.missing - (len(others) - len(without))
        asking = [first, *sorted(without, key=_asked_first)][:need]
        deadline_s = self._clock.now_s() + self._gather_s + COME_S
        for number, member in enumerate(sorted(asking, key=_size, reverse=True), 1):
            if number % MEMBERS_AT_ONCE == 0:
                yield None
            if not self._keep(member, node_names, deadline_s):
                self._give_up(state, gathering)
                self._tried.note(state.name, _Try(self._ledger.changes, self._clock.now_s(), node_names))
                return False
        self._tried.drop(state.name)
        return True

    def _have_room(self, state: GangState) -> int:
        """Return for how many members room is kept."""
        return sum(self._ledger.hold_of(uid) is not None for uid in state.pending)

    def _keep(self, member: Member, node_names: Collection[str] | None, deadline_s: float) -> bool:
        placement = self._chooser.best(member.request, node_names)
        if placement is None and self._chooser.is_unfinished(member.request):
            raise WorkLimitExceeded("the search for the gang takes long; it continues at the next request")
        if placement is None:
            return False
        try:
            self._ledger.hold(member.pod.uid, placement, deadline_s)
        except ShareRefused:
            return False
        return True

    def _give_up(self, state: GangState, gathering: Gathering | None) -> None:
        """Let go of all that is kept for a gang, and fail the binds that wait for it."""
        if gathering is not None:
            gathering.fail(_too_little(state.minimum).text)
        self._let_go(state, gathering)

    def _let_go(self, state: GangState, gathering: Gathering | None) -> None:
        for uid in state.pending:
            if gathering is None or not gathering.stands(uid):  # what stands in Bind lets go by itself
                self._ledger.drop_hold(uid)

    # Bind.

    async def bind(self, seen: SeenPod, placement: Placement, permission: BindPermission, binder: PodBinder) -> None:
        """Bind a pod; a member of a gang that is not there yet when the others can be bound, too.

        Raises as PodBinder does, and BindFailed if they can't.
        """
        state = self._members.of(seen.pod.uid) if seen.gang else None
        if state is None or state.missing <= 0:
            await binder.bind(seen, placement, permission)
            return
        seen, entered = await self._gather(seen, state, placement, binder)
        if self._turn and self._turn[0] == state.name:
            self._turn = None
        await binder.bind(seen, placement, permission, entered)

    async def _gather(self, seen: SeenPod, state: GangState, placement: Placement, binder: PodBinder) -> _Gathered:
        """Wait until the shares of all that are missing are entered; return what was of this one, or raise why not."""
        pod = seen.pod
        gathering = self._gatherings.get(state.name)
        if gathering is None or gathering.is_over:
            gathering = self._gatherings[state.name] = Gathering(state.name.name)
        entered: list[Entered] = []
        try:
            await gathering.stand(pod.uid, lambda: self._members.missing(state.name), self._gather_s)
            version = self._members.latest_version(pod.uid, seen.request, seen.resource_version)
            entered = await binder.enter(pod, placement)
            await gathering.entered(pod.uid)
            return replace(seen, resource_version=version), entered
        except asyncio.CancelledError:
            gathering.fail("the operator ends")
            raise
        except Exception as error:
            self._has_failed(state.name)
            gathering.fail(f"another member of the gang could not be bound: {error}")
            self._let_go(state, gathering)
            await binder.give_back(pod, placement, entered)
            raise
        finally:
            gathering.leave(pod.uid)
            if not len(gathering) and self._gatherings.get(state.name) is gathering:
                del self._gatherings[state.name]

    def _has_failed(self, name: GangName) -> None:
        """Let a gang be tried alone: what it lacks may be what another one has taken."""
        now_s = self._clock.now_s()
        if self._turn is not None:
            last, until_s = self._turn
            is_on = until_s > now_s and self._members.waits(last)
            if is_on or (last == name and until_s + TURN_S > now_s):  # no gang has two turns in a row
                return
        self._turn = name, now_s + TURN_S
        self._try_again_in(TURN_S)

    def _is_others_turn(self, name: GangName) -> bool:
        if self._turn is None or self._turn[0] == name or self._turn[1] <= self._clock.now_s():
            return False
        return self._members.waits(self._turn[0])

    def _has_found_no_room(self, name: GangName, node_names: Collection[str] | None) -> bool:
        """Tell whether a gang has found no room on these nodes, and nothing has changed since."""
        tried = self._tried.get(name)
        return tried is not None and tried.change == self._ledger.changes and tried.node_names == node_names

    def _was_tried_just_now(self, name: GangName) -> bool:
        """Tell whether a gang found no room a moment ago, and has to wait for its next try."""
        tried = self._tried.get(name)
        return tried is not None and self._clock.now_s() < tried.at_s + TRY_PAUSE_S

    def _member_comes(self, state: GangState) -> None:
        """Try a gang whose last missing member was created: the others were refused before."""
        if len(state.pending) >= state.missing > 0 and any(member.refused for member in state.pending.values()):
            self._try_again_in(0.0)

    def _member_is_gone(self, pod_uid: str, state: GangState) -> None:
        """Note that a member waits no more. One that is bound has left its gathering before."""
        gathering = self._gatherings.get(state.name)
        if gathering is not None and gathering.stands(pod_uid):
            gathering.fail("another member of the gang is gone")

    def _member_is_bound(self, state: GangState) -> None:
        gathering = self._gatherings.get(state.name)
        if gathering is not None:
            gathering.look(state.missing)
        if state.missing <= 0:  # the others are pods like any others from here on
            for member in [each for each in state.pending.values() if each.refused]:
                member.refused = False
                self._wait_alone(member.pod, member.request, member.since, member.node_names)

    # Waking.

    async def give_room(self) -> None:
        """Try gangs that were refused; keep room for those that fit, and wake them. Others have turns meanwhile."""
        refused = [state for state in self._members.all() if self._is_refused(state)]
        waiting = [state for state in refused if not self._was_tried_just_now(state.name)]
        if len(waiting) < len(refused):
            self._try_again_in(TRY_PAUSE_S)
        waiting.sort(key=lambda state: state.rank)
        for state in waiting:
            if self._is_refused(state) and not self._was_tried_just_now(state.name):  # still, after the others
                first = _first_refused(state)
                with suppress(WorkLimitExceeded):
                    if await giving_way(self._plan(state, first, first.node_names)):
                        self._wake_others(state)
            await asyncio.sleep(0)

    def _try_again_in(self, wait_s: float) -> None:
        if self._timer is None or self._timer.when() > self._clock.now_s() + wait_s:
            if self._timer:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._is_due)

    def _is_due(self) -> None:
        self._timer = None
        self.on_due()

    def _is_refused(self, state: GangState) -> bool:
        """Tell whether all missing members are there, wait, and have nothing kept for them."""
        if state.missing <= 0 or len(state.pending) < state.missing or self._is_others_turn(state.name):
            return False
        if self._have_room(state) or not any(member.refused for member in state.pending.values()):
            return False
        return not self._has_found_no_room(state.name, _first_refused(state).node_names)

    def _wake_others(self, state: GangState) -> None:
        """Have kube-scheduler ask again for the members that have room, and that it was told no for."""
        for member in state.pending.values():
            if member.refused and self._ledger.hold_of(member.pod.uid) is not None:
                member.refused = False
                self._start(self._wake(member.pod), f"wake pod {member.pod}")

    def _start(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(call, name=name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _wake(self, pod: Pod) -> None:
        if not self._is_active():
            return
        try:
            await self._wake_up(pod)
        except ApiError as error:  # its gang's room is given up in time, and the gang tried again
            logger.info("pod %s can't be woken: %s", pod, error)

    async def stop(self) -> None:
        """Wake no more pods."""
        if self._timer:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


def _first_refused(state: GangState) -> Member:
    return min((member for member in state.pending.values() if member.refused), key=_age)


def _age(member: Member) -> tuple[str, str]:
    return member.since, member.pod.uid


def _asked_first(member: Member) -> tuple[bool, str, str]:
    """Return who is planned first: kube-scheduler asks for no pod that it would find no CPU for anywhere."""
    return member.node_names is None, *_age(member)


def _size(member: Member) -> tuple[int, int]:
    """Return how demanding a pod is: the most demanding is placed first."""
    request = member.request
    memory_mib = max((demand.memory_mib or 0 for demand in request.shape), default=0)
    whole = any(demand.exclusive for demand in request.shape)
    return request.cards, 2**31 if whole else memory_mib


def _too_few(minimum: int) -> Refusal:
    return Refusal(Reason.GANG, f"fewer than {minimum} members of the pod's gang have been created")


def _others_first(minimum: int) -> Refusal:
    return Refusal(Reason.GANG, f"the {minimum} members that the pod's gang needs go first")


def _too_little(minimum: int) -> Refusal:
    return Refusal(Reason.GANG, f"fewer than {minimum} members of the pod's gang find cards at once")


def _others_turn() -> Refusal:
    text = "another gang, which has found cards and lacked something else, is tried alone for a while"
    return Refusal(Reason.GANG, text)
