"""Pods that no node could take, and the room that becomes free for them.

kube-scheduler tries a refused pod again when something in the cluster changes, but it can ask before we have seen that
change, and then sleeps for minutes. So each refused pod is remembered with its request. When room that fits it appears,
it gets that room on hold at once, an *earmark*: the highest priority first, then the oldest, not the first to ask. If
kube-scheduler does not come for it by itself, one annotation on the pod makes it do so. A pod that then does not come
either loses the earmark, and is not called again until it was refused again.

Pods whose namespace has reached its quota wait apart: no room is of use to them before that changes.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from operator import itemgetter
from uuid import uuid4

from attrs import define

from gpuledger.formats.annotations import WOKEN_ANNOTATION
from gpuledger.formats.scheduler import LONGEST_BACK_OFF_S
from gpuledger.ledger.book import Ledger, NodeChange
from gpuledger.ledger.quotas import Left, Quotas, is_certain
from gpuledger.ledger.seats import FOREVER, Seat, Strength
from gpuledger.model.clock import BoundedMap
from gpuledger.model.errors import ApiError, Conflict, QuotaExceeded, Unreachable
from gpuledger.model.gang import QuotaLimit, SeatKey
from gpuledger.model.node import NodeSet, NodeSets
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Placement, Pod, Share
from gpuledger.placement.choose import Chooser
from gpuledger.placement.fit import payers_of
from gpuledger.placement.policy import StepBudget
from gpuledger.placement.sketch import Sketch
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import SchedulerRefused, SelectorsAllowed
from gpuledger.workflows.tasks import sleep_backoff

Rank = tuple[int, str, int]
"""Sort key, lower goes first: minus the priority, time of creation, number of the pod in order of arrival."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A refused pod. `node_names` are those that kube-scheduler would take; None if that is not known."""

    pod: Pod
    request: PodRequest
    rank: Rank
    node_names: NodeSet | None
    tried_s: float | None = None
    """When kube-scheduler asked for it last, in Unix seconds; None if it has not, since this operator has started."""
    evicts: bool = False
    """That room was made by evictions: their pods may be at their nodes for longer, as kube-scheduler sees it."""

    @property
    def created(self) -> str:
        """Return when the pod was created, RFC 3339."""
        return self.rank[1]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may fit: on these nodes, or anywhere if it is not known."""

    waiting: WaitingPod
    fitting: set[str] | None
    since: int | None
    """Number of the last change that had been looked at before; None if no node was looked at."""

    def still_fits(self, chooser: Chooser, work: StepBudget) -> bool:
        """Return whether others have left room on one of the nodes."""
        shape = self.waiting.request.shape
        return self.fitting is None or any(chooser.fits(shape, name, work) for name in self.fitting)


def rank_of(waiting: WaitingPod) -> Rank:
    """Sort key: scheduling order."""
    return waiting.rank


def in_turns(waiting: Iterable[WaitingPod], shapes_at_once: int) -> list[WaitingPod]:
    """Return pods in their order, except that a namespace with many shapes of pods does not keep the others waiting.

    Its first shapes, as many as `shapes_at_once`, are in the first turn with those of all others, as many again in the
    second, and so on. Pods of the same shape take no longer than one.
    """
    turns: list[list[WaitingPod]] = []
    turn_of: dict[str, dict[Shape, int]] = {}  # namespace -> shape -> its turn
    for one in waiting:
        known = turn_of.setdefault(one.pod.namespace, {})
        turn = known.setdefault(one.request.shape, len(known) // shapes_at_once)
        while len(turns) <= turn:
            turns.append([])
        turns[turn].append(one)
    return [one for turn in turns for one in turn]


def who_may_go(waiting: Sequence[WaitingPod], node_names: set[str]) -> list[WaitingPod]:
    """Return the pods that kube-scheduler would let go to one of these nodes."""
    if not node_names:
        return []
    answers: dict[int, bool] = {}  # identity of a set of names -> whether one of these nodes is in it
    for names in {id(one.node_names): one.node_names for one in waiting}.values():
        answers[id(names)] = names is None or not names.isdisjoint(node_names)
    return [one for one in waiting if answers[id(one.node_names)]]


UNCERTAIN_AT_ONCE = 16
"""Pods of a namespace, whose memory depends on their cards, that are tried at once; when these are, others may be."""

GROUPS_AT_ONCE = 16
"""How many groups of a namespace's pods, of one shape and for the same nodes, are tried at once; then others may be.
Each may have all that the quota leaves: it is not known yet which of them finds it on cards."""


class BlockedPods:
    """Remembers them by namespace, and which namespaces may have more than when it was looked at last."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._pods: dict[str, dict[str, WaitingPod]] = {}  # namespace -> pod UID -> pod
        self._namespaces: dict[str, str] = {}  # pod UID -> its namespace
        self._limits: dict[str, QuotaLimit] = {}  # pod UID -> what its namespace may not exceed
        self._changed: set[str] = set()
        self._on_trial: list[WaitingPod] = []  # what was released since others were let try last

    def __len__(self) -> int:
        return len(self._namespaces)

    def __iter__(self) -> Iterator[WaitingPod]:
        return (waiting for pods in self._pods.values() for waiting in pods.values())

    def uids(self) -> set[str]:
        """Return their UIDs."""
        return set(self._namespaces)

    def add(self, waiting: WaitingPod, limit: QuotaLimit) -> None:
        """Remember a pod, and which limit its namespace would exceed."""
        uid, namespace = waiting.pod.uid, waiting.pod.namespace
        self._pods.setdefault(namespace, {})[uid] = waiting
        self._namespaces[uid] = namespace
        self._limits[uid] = limit

    def remove(self, pod_uid: str) -> bool:
        """Forget a pod; return whether it was one."""
        namespace = self._namespaces.pop(pod_uid, None)
        if namespace is None:
            return False
        del self._pods[namespace][pod_uid], self._limits[pod_uid]
        if not self._pods[namespace]:
            del self._pods[namespace]
            self._changed.discard(namespace)
        return True

    def find(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod, None if it is not one of them."""
        namespace = self._namespaces.get(pod_uid)
        return self._pods[namespace][pod_uid] if namespace is not None else None

    def limit_of(self, pod_uid: str) -> QuotaLimit | None:
        """Return which limit was in the way of a pod, None if it is not one of them."""
        return self._limits.get(pod_uid)

    def may_have_more(self, namespace: str) -> bool:
        """Record that a namespace may have more than before; return whether a pod of it waits for that."""
        if namespace not in self._pods:
            return False
        self._changed.add(namespace)
        return True

    def released(self) -> list[WaitingPod]:
        """Return those that may get room now, and remember them no more: in their order, as many as a quota allows."""
        found = [each for namespace in self._changed for each in self._released_of(namespace)]
        self._changed.clear()
        for each in found:
            self.remove(each.pod.uid)
        self._on_trial += found
        return found

    def others_may_try(self, waits: Callable[[WaitingPod], bool]) -> bool:
        """Have others try next where those that were released have found no cards and wait; return whether any may.

        Else the first would keep what the quota leaves from those behind them.
        """
        tried, self._on_trial = self._on_trial, []
        self._changed |= {each.pod.namespace for each in tried if each.pod.namespace in self._pods and waits(each)}
        return bool(self._changed)

    def _released_of(self, namespace: str) -> Iterator[WaitingPod]:
        """Yield the first of each of the first groups, as many as the quota allows if no other one gets any.

        What a pod takes is known when it has its cards; until then, it is the least that it may be.
        """
        all_left, uncertain = self._quotas.left(namespace), 0
        of_groups: dict[tuple[Shape, int], Left] = {}
        for waiting in sorted(self._pods[namespace].values(), key=rank_of):
            if uncertain == UNCERTAIN_AT_ONCE:
                return
            group = waiting.request.shape, id(waiting.node_names)
            if group not in of_groups and len(of_groups) == GROUPS_AT_ONCE:
                continue
            left = of_groups.get(group) or all_left.copy()
            if left.takes(waiting.request.shape):
                of_groups[group] = left
                uncertain += not is_certain(waiting.request.shape)
                yield waiting


logger = logging.getLogger(__name__)

GRACE_S = 0.25
"""How long kube-scheduler has to come for a pod by itself before the pod is woken."""

TURN_STEPS = 1_024
"""Steps of one turn to look who fits, of some 10 microseconds each, and as many to give; the last search may go beyond
them."""

SHAPES_AT_ONCE = 64
"""Different shapes of one namespace's pods that are looked at before those of others have their turn."""

EARMARK_S = LONGEST_BACK_OFF_S + 2.0
"""How long room is kept for a pod that was woken and does not come. It may have to wait for the end of its back-off."""

REFUSED_S = 1.0
"""How long room is kept for one that was woken, and that kube-scheduler itself has refused since."""

GONE_KEPT = 4096
"""Pods of which is remembered that they wait no more: kube-scheduler's view is behind by less."""


class PodsByShape:
    """Pods without room, in their order, and for each shape up to which change of the ledger it was looked for room."""

    def __init__(self, ledger: Ledger, chooser: Chooser) -> None:
        self._ledger, self._chooser = ledger, chooser
        self._pods: dict[str, WaitingPod] = {}  # by UID
        self._by_shape: dict[Shape, list[WaitingPod]] = {}  # the same, in their order
        self._unchecked: set[Shape] = set()  # shapes that may fit where nothing has changed
        self._behind: dict[Shape, int] = {}  # shape -> number of the last change that was looked at, if not _seen
        self._seen = -1  # number of the ledger's last change that was looked at

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(self._pods.values())

    def uids(self) -> AbstractSet[str]:
        """Return their UIDs."""
        return self._pods.keys()

    def find(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod, None if it is not one of them."""
        return self._pods.get(pod_uid)

    def shapes(self) -> Iterable[Shape]:
        """Return the shapes of all."""
        return self._by_shape.keys()

    def add(self, waiting: WaitingPod, is_unchecked: bool = False) -> None:
        """Remember a pod; `is_unchecked`: no node was looked at for it."""
        self._pods[waiting.pod.uid] = waiting
        insort(self._by_shape.setdefault(waiting.request.shape, []), waiting, key=rank_of)
        if is_unchecked:
            self._unchecked.add(waiting.request.shape)

    def remove(self, pod_uid: str) -> bool:
        """Forget a pod; return whether it was one of them."""
        waiting = self._pods.pop(pod_uid, None)
        if waiting is None:
            return False
        same = self._by_shape[waiting.request.shape]
        del same[bisect_left(same, waiting.rank, key=rank_of)]
        if not same:
            del self._by_shape[waiting.request.shape]
            self._behind.pop(waiting.request.shape, None)
            self._unchecked.discard(waiting.request.shape)
        return True

    def look_everywhere(self, shapes: Collection[Shape]) -> None:
        """Have shapes looked at on all nodes: they may fit where nothing has changed."""
        self._unchecked |= set(shapes)

    @property
    def may_fit(self) -> bool:
        """Return whether something has changed since all were looked at."""
        return bool(self._pods) and bool(self._unchecked or self._behind or self._seen != self._ledger.changes)

    def candidates(self, work: StepBudget, before: tuple[int, str] | None) -> list[Candidate]:
        """Return the pending pods that may fit on changed nodes, in order. Defers those after `before`."""
        seen, self._seen = self._seen, self._ledger.changes
        unchecked, self._unchecked = self._unchecked, set()
        behind, self._behind = self._behind, {}
        touches = [*self._ledger.touches.since(min(behind.values(), default=seen))][::-1]  # oldest first
        found: list[Candidate] = []
        for shape in self._shapes_in_turns(behind):
            same, since = self._by_shape[shape], behind.get(shape, seen)
            if before is not None and same[-1].rank > before:
                self.put_off(shape, None if shape in unchecked else since)
                same = same[: bisect_left(same, (*before, -1), key=rank_of)]
            if same and shape in unchecked:
                found += [Candidate(waiting, None, None) for waiting in same]
            elif same:
                fitting = self._where_it_fits(shape, touches, since, work)
                found += [Candidate(waiting, fitting, since) for waiting in who_may_go(same, fitting)]
        found.sort(key=lambda candidate: candidate.waiting.rank)
        return found

    def _shapes_in_turns(self, behind: Collection[Shape]) -> list[Shape]:
        """Return the shapes in the order in which they are looked at: it counts when there is no time for all.

        Pods of several containers come after the others: only for them it can take long to know.
        """

        def key(waiting: WaitingPod) -> tuple[bool, bool, Rank]:
            shape = waiting.request.shape
            return len(shape) > 1, shape not in behind, waiting.rank

        first = sorted((same[0] for same in self._by_shape.values()), key=key)
        return [waiting.request.shape for waiting in in_turns(first, SHAPES_AT_ONCE)]

    def _where_it_fits(self, shape: Shape, touches: Sequence[NodeChange], since: int, work: StepBudget) -> set[str]:
        """Return on which of the nodes that have changed since then such pods fit, as far as there is time to look."""
        fitting: set[str] = set()
        for number, name in touches[bisect_right(touches, since, key=itemgetter(0)) :]:
            if work.is_spent:
                self.put_off(shape, since)
                break
            if self._chooser.fits(shape, name, work):
                fitting.add(name)
            since = number
        return fitting

    def put_off(self, shape: Shape, since: int | None) -> None:
        """Have a shape looked at in the next turn: where something has changed since then, or everywhere."""
        if since is None:
            self._unchecked.add(shape)
        else:
            self._behind[shape] = min(since, self._behind.get(shape, since))


@define(eq=False, slots=False)
class PodRequeuer(Component):
    """Has kube-scheduler try pods."""

    async def wake_up(self, pod: Pod) -> None:
        """Have kube-scheduler try a pod. Raises ApiError."""
        self._counts.wake_ups.inc()
        await self._store.annotate_pod(pod, WOKEN_ANNOTATION, uuid4().hex)

    async def keep_waking(self, pod: Pod, as_long_as: Callable[[], bool]) -> bool:
        """Have kube-scheduler try a pod, again where the API server does not answer; return whether that was said."""
        attempt = 0
        while as_long_as():
            try:
                await self.wake_up(pod)
                return True
            except (Conflict, Unreachable) as error:
                await sleep_backoff(attempt, error)
                attempt += 1
            except ApiError as error:
                logger.info("pod %s can't be woken: %s", pod, error)
                return False
        return False


@define(eq=False, slots=False)
class WaitingPods(Component):
    """Remembers who waits, and gives room to them in their order."""

    def __attrs_post_init__(self) -> None:
        self.requeuer = PodRequeuer(self._context)
        self._waiting = PodsByShape(self._ledger, self._chooser)  # those without an earmark
        self._blocked = BlockedPods(self._ledger.quotas)
        self._earmarks: dict[str, WaitingPod] = {}  # UID of a pod for which room is kept until it asks -> the pod
        self._numbers: dict[str, int] = {}  # pod UID -> its number in the order of coming
        self._next_number = 0
        self._gone: BoundedMap[str, None] = BoundedMap(GONE_KEPT)
        self.changes = 0
        """How often a pod has come or gone so far."""
        self._node_sets = NodeSets()
        self._look_further = self._context.room_has_changed.set
        self._ledger.quotas.on_room.append(self._may_have_more)
        self._ledger.seats.on_displaced.append(lambda seats: self.have_lost_room(seat.key for seat in seats))
        self._events.on(SelectorsAllowed, self._more_evaluated)
        self._events.on(SchedulerRefused, self._may_not_come)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._blocked) + len(self._earmarks)

    def refused(
        self, pod: Pod, request: PodRequest, created: str, names: Iterable[str] | None, over: QuotaLimit | None = None
    ) -> None:
        """Remember a pod that none of these nodes could take; None if none was looked at.

        `over`: no room is of use to it before its namespace may have more of that. kube-scheduler can ask for a pod of
        which the operator has seen already that it waits no more.
        """
        if pod.uid in self._gone:
            return
        self._remove(pod.uid)
        number = self._numbers.setdefault(pod.uid, self._next_number)
        self._next_number += 1
        node_names = None if names is None else self._node_sets.of(names)
        tried_s = None if names is None else self._clock.wall().timestamp()
        waiting = WaitingPod(pod, request, (-pod.priority, created, number), node_names, tried_s)
        if over is not None:
            self._block(waiting, over)
            return
        self._add(waiting, is_unchecked=names is None)
        if names is None:
            self._look_further()

    def forget(self, pod_uid: str) -> None:
        """Record that a pod waits no more. Its hold is the caller's business."""
        self._remove(pod_uid)
        self._numbers.pop(pod_uid, None)

    def all(self, *, without_room: bool = False) -> list[WaitingPod]:
        """Return all pending pods in scheduling order; or those alone that have neither room nor a quota in the way."""
        others = () if without_room else (*self._blocked, *self._earmarks.values())
        return sorted([*self._waiting, *others], key=rank_of)

    def find(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod that waits; None if it does not, or if nothing is known of it."""
        return self._earmarks.get(pod_uid) or self._waiting.find(pod_uid) or self._blocked.find(pod_uid)

    def limit_of(self, pod_uid: str) -> QuotaLimit | None:
        """Return the limit of a pod's namespace that keeps it waiting, if one does."""
        return self._blocked.limit_of(pod_uid)

    def lookup(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod for which there is no room; None if it has some, or is not known to wait."""
        return self._waiting.find(pod_uid)

    def keep_room(self, pod_uid: str, node_name: str, shares: Iterable[Share]) -> None:
        """Give a pod that waits room that was made for it. Nothing happens if it does not wait."""
        if (waiting := self._waiting.find(pod_uid)) is not None:
            placement = Placement(node_name, tuple(shares), waiting.request.host)
            self._ledger.seats.take(_seat(waiting, placement))
            self._earmark(waiting, evicts=True)

    def there(self, pod_uid: str) -> bool:
        """Record that a pod is there and has no node; return whether it was gone: etcd was put back to before that."""
        was_gone = pod_uid in self._gone
        self._gone.drop(pod_uid)
        return was_gone

    def gone(self, pod_uid: str) -> None:
        """Record that a pod is bound or gone, for good."""
        self.forget(pod_uid)
        self._gone.note(pod_uid, None)

    def waiting(self) -> set[str]:
        """Return the UIDs of the pods that wait."""
        return {*self._waiting.uids(), *self._earmarks, *self._blocked.uids()}

    def give_room(self, before: tuple[int, str] | None = None) -> bool:
        """Hold free room for pending pods, in scheduling order. Cheap if nothing has changed.

        With `before`, minus a priority and a time of creation, only for pods that come before it in order. Returns
        whether pods are left for the next turn: the budget of this one is spent, or pods were deferred.
        """
        for waiting in self._blocked.released():
            self._add(waiting, is_unchecked=True)
        looking, giving = StepBudget(TURN_STEPS), StepBudget(TURN_STEPS)  # so that looks for many leave some to give
        while self._waiting.may_fit:
            self._give(self._waiting.candidates(looking, before), giving)
            if looking.is_spent or giving.is_spent:
                self._look_further()
                return True
            if before is not None:  # the others are still to be looked at
                return False
        if self._blocked.others_may_try(lambda tried: self._waiting.find(tried.pod.uid) is tried):
            self._look_further()
            return True
        return False

    def _more_evaluated(self, event: SelectorsAllowed) -> None:
        """Record that more selectors that a namespace pays for may be evaluated: cards may turn out to fit."""
        shapes = [shape for shape in self._waiting.shapes() if event.payer in payers_of(shape)]
        self._waiting.look_everywhere(shapes)
        if shapes:
            self._look_further()

    def have_lost_room(self, keys: Iterable[SeatKey]) -> None:
        """Record that seats were given up, or taken over: of these the pods that wait have lost no turn."""
        for earmark in [self._earmarks[key] for key in keys if isinstance(key, str) and key in self._earmarks]:
            self._remove(earmark.pod.uid)
            self._add(earmark)  # a woken one too: it may not be on its way yet

    # Inside.

    def _best(self, waiting: WaitingPod, work: StepBudget) -> Placement | None:
        """Return a placement for the pod, in place of offers to others if necessary."""
        request, names = waiting.request, waiting.node_names
        placement = self._chooser.best(request, names, work)
        if placement is None and self._ledger.seats.are_offered and not self._chooser.is_unfinished(request):
            placement = Sketch(self._ledger).best(self._chooser, request, names, work)
        return placement

    def _give(self, candidates: Iterable[Candidate], work: StepBudget) -> None:
        """Hold room for these, in their order; those for which no budget is left wait for the next turn."""
        exhausted: set[tuple[Shape, int]] = set()
        for candidate in candidates:
            waiting, shape = candidate.waiting, candidate.waiting.request.shape
            same = (shape, id(waiting.node_names))
            if same in exhausted:
                continue
            if work.is_spent:
                self._waiting.put_off(shape, candidate.since)
            elif candidate.still_fits(self._chooser, work) and (placement := self._best(waiting, work)):
                try:
                    self._ledger.seats.take(_seat(waiting, placement))
                except QuotaExceeded as error:
                    self._block(waiting, error.limit)
                else:
                    self._earmark(waiting)
                    self._may_have_more(waiting.pod.namespace)  # others may follow
            elif self._chooser.is_unfinished(waiting.request):
                self._waiting.put_off(shape, candidate.since)
            else:
                exhausted.add(same)

    def _block(self, waiting: WaitingPod, limit: QuotaLimit) -> None:
        self._remove(waiting.pod.uid)
        self.changes += 1
        self._blocked.add(waiting, limit)

    def _may_have_more(self, namespace: str) -> None:
        if self._blocked.may_have_more(namespace):
            self._look_further()

    def _add(self, waiting: WaitingPod, is_unchecked: bool = False) -> None:
        self.changes += 1
        self._waiting.add(waiting, is_unchecked)

    def _remove(self, pod_uid: str) -> None:
        has_room, was_blocked = self._earmarks.pop(pod_uid, None) is not None, self._blocked.remove(pod_uid)
        self.changes += self._waiting.remove(pod_uid) or has_room or was_blocked

    def _may_not_come(self, event: SchedulerRefused) -> None:
        """Give room to others where kube-scheduler itself has refused a pod for which some is kept.

        Where a rule keeps the pod from all nodes, at once: nothing that room ends is in its way, and kube-scheduler
        asks by itself when that has changed. Where it lacks CPU, kube-scheduler may still have to see who has ended; if
        pods were evicted for it, they may take long.
        """
        earmark, seat = self._earmarks.get(event.uid), self._ledger.seats.of(event.uid)
        if earmark is None or seat is None or seat.strength is not Strength.WAITING:
            return
        until_s = self._clock.now_s() + REFUSED_S
        if event.rules_out:
            logger.info("pod %s may go to no node: others get the room that was kept for it", earmark.pod)
            self.forget(event.uid)
            self._ledger.seats.give_up(event.uid)
        elif until_s < seat.until_s < FOREVER and not earmark.evicts:
            self._ledger.seats.strengthen(event.uid, Strength.WAITING, until_s)
        else:
            return
        self._look_further()  # also when the next seat expires

    def _earmark(self, waiting: WaitingPod, *, evicts: bool = False) -> None:
        self._remove(waiting.pod.uid)
        self.changes += 1
        # It may lose this room, and get some once more.
        earmark = self._earmarks[waiting.pod.uid] = replace(waiting, evicts=evicts)
        self._tasks.after(GRACE_S, self._call, earmark)

    def _call(self, waiting: WaitingPod) -> None:
        if self._earmarks.get(waiting.pod.uid) is waiting:
            self._tasks.start(self._wake(waiting), f"wake pod {waiting.pod}")

    async def _wake(self, waiting: WaitingPod) -> None:
        """Have kube-scheduler try the pod, as soon as the API server answers; then it has a while to come.

        One that can't be woken is gone, or another one by now; or another replica is active, which has found it.
        """
        uid, seats = waiting.pod.uid, self._ledger.seats

        def waits() -> bool:
            return self._earmarks.get(uid) is waiting

        is_woken = await self.requeuer.keep_waking(waiting.pod, lambda: waits() and self._is_active())
        if waits() and is_woken:
            seats.strengthen(uid, Strength.WAITING, self._clock.now_s() + EARMARK_S)
            self._look_further()  # when the next seat expires
        elif waits():
            self.forget(uid)
            seats.give_up(uid)


def _seat(waiting: WaitingPod, placement: Placement) -> Seat:
    return Seat(waiting.pod.uid, placement, FOREVER, Strength.WAITING, priority=waiting.pod.priority)
