"""One queue of all who wait for room: single pods, gangs, and workloads whose pods do not exist yet.

Their order: those for which others were evicted, then by priority, then by age. A single pod goes before a group if it
has a higher priority, or the same and is older. Of more groups than there is time for, those that were not tried are
next, and namespaces take turns (`Round`). A group is tried again when something has changed that its last try has
depended on, and the pause after it is over: `Attempts` keeps both, for all parts that try something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.model.clock import Clock
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.share import Pod
from gpuledger.workflows.context import Component
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind, Name
from gpuledger.workflows.tasks import Round, in_slices

logger = logging.getLogger(__name__)

Tried = TypeVar("Tried", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Attempt:
    seen: object
    again_s: float


NO_ATTEMPT = _Attempt(None, float("-inf"))


class Attempts(Generic[Tried]):
    """What was known when each was tried in vain, and when it may be tried again. Of what is gone, nothing is kept."""

    def __init__(self, clock: Clock, kept: MutableMapping[Tried, _Attempt] | None = None) -> None:
        """`kept` has the attempts; a mapping that forgets what is gone, if it is not given."""
        self._clock = clock
        self._of = WeakKeyDictionary[Tried, _Attempt]() if kept is None else kept

    def may_be_tried(self, one: Tried, seen: object) -> bool:
        """Return whether a pause is over, and something is another than at the last try in vain."""
        return not self.pauses(one) and not self.is_as_before(one, seen)

    def is_as_before(self, one: Tried, seen: object) -> bool:
        """Return whether all is as at the last try in vain."""
        attempt = self._of.get(one)
        return attempt is not None and attempt.seen == seen

    def pauses(self, one: Tried) -> bool:
        """Return whether it is not to be tried for a while, whatever changes."""
        return self._of.get(one, NO_ATTEMPT).again_s > self._clock.now_s()

    def failed(self, one: Tried, seen: object, pause_s: float = 0.0) -> None:
        """Record a try in vain, what it has depended on, and for how long there is no other one."""
        self._of[one] = _Attempt(seen, self._clock.now_s() + pause_s)

    def pause(self, one: Tried, pause_s: float) -> None:
        """Have something not tried for a while, and then in any case."""
        self._of[one] = _Attempt(None, self._clock.now_s() + pause_s)

    def renew(self, one: Tried) -> None:
        """Have something tried in any case, once it does not pause."""
        attempt = self._of.get(one)
        if attempt is not None:
            self._of[one] = _Attempt(None, attempt.again_s)

    def forget(self, one: Tried) -> None:
        """Have something tried in any case, now."""
        self._of.pop(one, None)


Order = tuple[bool, int, str, str]
"""Sort key, lower goes first: whether no pod was evicted for it, minus the priority, time since when it waits, UID."""


class Group(Protocol):
    """Pods that get room together."""

    @property
    def order(self) -> Order:
        """Return its place in the queue."""

    @property
    def namespace(self) -> str:
        """Return its namespace."""


G = TypeVar("G", bound=Group)


class Groups(Protocol[G]):
    """Gangs, or workloads."""

    def waiting(self) -> Iterable[G]:
        """Return those that may be waiting, in any order."""

    def may_be_tried(self, group: G) -> bool:
        """Return whether one waits, and could find room now."""

    async def try_now(self, group: G) -> None:
        """Look for room for all of one, and keep it."""


PASS_S = 0.1
"""How long groups are tried before others go on; those that have not had their turn are tried next time."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    groups: Groups[Any]
    group: Group

    @property
    def order(self) -> Order:
        return self.group.order


@define(eq=False, slots=False)
class RoomQueue(Component):
    """Gives room to all who wait, as soon as there is some."""

    _waiting: WaitingPods

    def __attrs_post_init__(self) -> None:
        self._kinds: list[Groups[Any]] = []
        self._round = Round[_Waiting](lambda each: id(each.group), lambda each: each.group.namespace)
        self._gave_way = False
        """Whether the last pass ended before a try, for single pods that go before it."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def add(self, groups: Groups[Any]) -> None:
        """Have groups of one kind wait here."""
        self._kinds.append(groups)

    def look_again_in(self, wait_s: float = 0.0) -> None:
        """Have all looked at after a while, though nothing may change in the ledger."""
        due_s = self._clock.now_s() + wait_s
        if self._timer is None or due_s < self._due_s:
            if self._timer:
                self._timer.cancel()
            self._due_s = due_s  # uvloop's handles do not say theirs
            self._timer = self._tasks.after(wait_s, self._is_due)

    def _is_due(self) -> None:
        self._timer = None
        self._context.room_has_changed.set()

    async def give_room(self) -> bool:
        """Give room to all who wait, in their order; return whether some have to be looked at in the next turn.

        Others have their turn between two groups, and while room is looked for.
        """
        waiting: list[_Waiting] = []
        await in_slices(self._find(waiting), self._clock)
        is_more = await self._try_each(sorted(waiting, key=lambda each: each.order))
        if is_more and self._gave_way:
            return True
        return self._waiting.give_room() or is_more

    def _find(self, waiting: list[_Waiting]) -> Iterator[None]:
        for groups in self._kinds:
            for group in list(groups.waiting()):
                if groups.may_be_tried(group):
                    waiting.append(_Waiting(groups, group))
                yield None

    async def _try_each(self, waiting: Iterable[_Waiting]) -> bool:
        since_s = self._clock.work_s()
        for each in self._round.next_pass(waiting):
            begin_s = self._clock.work_s()
            if begin_s > since_s + PASS_S:
                return True
            if not each.groups.may_be_tried(each.group):  # any more, after the others
                continue
            if self._waiting.give_room(each.order[1:3]) and not self._gave_way:  # to single pods that go before it
                self._gave_way = True
                return True
            self._gave_way = False
            await each.groups.try_now(each.group)
            await asyncio.sleep(0)
            self._round.spent(each, self._clock.work_s() - begin_s)
        return False


@define(eq=False, slots=False)
class ClaimRequeuer(Component):
    """Remembers pods that were refused for their claims, until something of these has changed.

    kube-scheduler looks at no claims of our profiles, so nothing else would have it try these pods.
    """

    _book: ClaimBook
    _waiting: WaitingPods

    def __attrs_post_init__(self) -> None:
        self._refused: dict[str, Pod] = {}  # UID of a pod that waits
        self._book.on_claim.append(self._claim_has_changed)
        self._book.on_appeared.append(self._object_is_there)
        self._book.on_waits_no_more.append(self._forget)

    def refused(self, pod: Pod) -> None:
        """Record a pod that was refused because of the state of its claims."""
        if self._book.waiting(pod.uid) is not None:
            self._refused[pod.uid] = pod

    def _forget(self, pod_uid: str) -> None:
        self._refused.pop(pod_uid, None)

    def _claim_has_changed(self, name: Name) -> None:
        self._wake_all(self._book.naming(Kind.CLAIMS, name))

    def _object_is_there(self, kind: Kind, name: Name) -> None:
        if kind is not Kind.CLAIMS:
            self._wake_all(self._refused if kind is Kind.CLASSES else self._book.naming(kind, name))

    def _wake_all(self, pod_uids: Iterable[str]) -> None:
        for pod in list(filter(None, map(self._refused.get, pod_uids))):
            self._wake(pod)

    def _wake(self, pod: Pod) -> None:
        del self._refused[pod.uid]
        if self._is_active():
            self._tasks.start(self._wake_up(pod), f"wake {pod}")

    async def _wake_up(self, pod: Pod) -> None:
        try:
            await self._waiting.requeuer.wake_up(pod)
        except GpuledgerError as error:
            logger.info("pod %s can't be woken: %s", pod, error)
            self.refused(pod)
