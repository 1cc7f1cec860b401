"""Pods that no node could take, and the room that becomes free for them.

kube-scheduler tries a refused pod again when something in the cluster changes, but it can ask before we have seen that
change, and then sleeps for minutes. So each refused pod is remembered with its request. When room that fits it appears,
it gets that room on hold at once, an *earmark*: the highest priority first, then the oldest, whoever asks first. If
kube-scheduler does not come for it by itself, one annotation on the pod makes it do so. Whoever then does not come
either loses the earmark, and is not called again until it was refused again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import ApiError, Conflict, Invalid, NotFound, Unreachable
from gpuledger.model.node_set import NodeSet, NodeSets
from gpuledger.model.request import PodRequest, Shape
from gpuledger.model.share import Placement, Pod, Share
from gpuledger.placement.choose import Chooser
from gpuledger.placement.work import Work
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.pauses import pause

logger = logging.getLogger(__name__)

Json = dict[str, Any]

WOKEN_ANNOTATION = "gpuledger.dev/woken"
"""On a pod for which room was found while it slept. Its value says nothing: that it changes is the point."""

GRACE_S = 0.25
"""How long kube-scheduler has to come for a pod by itself before the pod is woken."""

TURN_STEPS = 8_192
"""Steps of the searches of one turn, beyond what plain pods take: some 50 ms."""

EARMARK_S = 5.0
"""How long room is kept for a pod that was woken and does not come."""

GONE_KEPT = 4096
"""Pods of which is remembered that they wait no more: kube-scheduler's view is behind by less."""

NO_DEADLINE = float("inf")
"""Of the holds below: each ends with its earmark."""

Rank = tuple[int, str, int]
"""What goes first is less: minus the priority, time of creation, number of the pod in the order of its coming."""


class PodWriter(Protocol):
    """The pods at the API server."""

    async def annotate_pod(self, pod: Pod, name: str, value: str) -> Json:
        """Set one annotation of a pod; return the pod as it is then."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A refused pod. `node_names` are those that kube-scheduler would take; None if that is not known."""

    pod: Pod
    request: PodRequest
    rank: Rank
    node_names: NodeSet | None
    tried_s: float | None = None
    """When kube-scheduler asked for it last, in Unix seconds; None if it has not, since this operator has started."""

    @property
    def created(self) -> str:
        """Return when the pod was created, RFC 3339."""
        return self.rank[1]


@dataclass(slots=True)
class _Earmark:
    """Room on hold for a waiting pod."""

    waiting: WaitingPod
    timer: asyncio.TimerHandle | None
    woken: bool = False


class _Latest:
    """The UIDs that were added last, so many at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._uids: dict[str, None] = {}  # oldest first

    def add(self, uid: str) -> None:
        self._uids[uid] = None
        if len(self._uids) > self._limit:
            del self._uids[next(iter(self._uids))]

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids


class WaitingPods:
    """Remembers who waits, and gives room to them in their order."""

    def __init__(
        self,
        ledger: Ledger,
        chooser: Chooser,
        store: PodWriter,
        counts: Counts,
        is_active: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ledger = ledger
        self._chooser = chooser
        self._store = store
        self._counts = counts
        self._is_active = is_active
        self._waiting: dict[str, WaitingPod] = {}  # pod UID -> who waits without an earmark
        self._by_shape: dict[Shape, list[WaitingPod]] = {}  # the same, in their order
        self._unchecked: set[Shape] = set()  # shapes that may fit where nothing has changed
        self._left: dict[Shape, set[str]] = {}  # shape -> nodes that have changed and are still to be looked at
        self._earmarks: dict[str, _Earmark] = {}  # pod UID -> room kept for it until it asks
        self._numbers: dict[str, int] = {}  # pod UID -> its number in the order of coming
        self._next_number = 0
        self._gone = _Latest(GONE_KEPT)
        self.changes = 0
        """How often somebody has come or gone so far."""
        self._seen = -1  # number of the ledger's last change that was looked at
        self._node_sets = NodeSets()
        self._calls: set[asyncio.Task[None]] = set()
        self.on_newcomer: Callable[[], None] = lambda: None
        """Called when there is more to be looked at: a pod has come for which nobody has looked at any node, or a turn
        has ended before all was looked at."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._earmarks)

    def refused(self, pod: Pod, request: PodRequest, created: str, node_names: Iterable[str] | None) -> None:
        """Remember a pod that none of these nodes could take; None if nobody has looked at any.

        kube-scheduler can ask for a pod of which the operator has seen already that it waits no more.
        """
        if pod.uid in self._gone:
            return
        self._remove(pod.uid)
        number = self._numbers.setdefault(pod.uid, self._next_number)
        self._next_number += 1
        names = None if node_names is None else self._node_sets.of(node_names)
        tried_s = None if names is None else time.time()
        self._add(WaitingPod(pod, request, (-pod.priority, created, number), names, tried_s))
        if names is None:
            self._unchecked.add(request.shape)
            self.on_newcomer()

    def forget(self, pod_uid: str) -> None:
        """Take in that a pod waits no more. Its hold is the caller's business."""
        self._remove(pod_uid)
        self._numbers.pop(pod_uid, None)

    def all(self) -> list[WaitingPod]:
        """Return everybody who waits, those too for whom there is room; first who goes first."""
        earmarked = [earmark.waiting for earmark in self._earmarks.values()]
        return sorted([*self._waiting.values(), *earmarked], key=_rank)

    def find(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod that waits; None if it does not, or if nothing is known of it."""
        earmark = self._earmarks.get(pod_uid)
        return earmark.waiting if earmark else self._waiting.get(pod_uid)

    def in_order(self) -> list[WaitingPod]:
        """Return those for whom there is no room, first who goes first."""
        return sorted(self._waiting.values(), key=_rank)

    def lookup(self, pod_uid: str) -> WaitingPod | None:
        """Return a pod for which there is no room; None if it has some, or is not known to wait."""
        return self._waiting.get(pod_uid)

    def call(self, pod_uid: str) -> None:
        """Have kube-scheduler try a pod that waits: then it says which nodes it would take for it."""
        waiting = self._waiting.get(pod_uid)
        if waiting is not None:
            self._start(self._ask_for(waiting), f"ask for nodes of pod {waiting.pod}")

    async def _ask_for(self, waiting: WaitingPod) -> None:
        attempt = 0
        while self._waiting.get(waiting.pod.uid) is waiting:
            try:
                await self._wake_up(waiting.pod)
                return
            except (Conflict, Unreachable) as error:
                await pause(attempt, error)
                attempt += 1
            except ApiError as error:
                logger.info("pod %s can't be called: %s", waiting.pod, error)
                return

    async def _wake_up(self, pod: Pod) -> None:
        self._counts.wake_ups += 1
        await self._store.annotate_pod(pod, WOKEN_ANNOTATION, uuid4().hex)

    def keep_room(self, pod_uid: str, node_name: str, shares: Iterable[Share]) -> None:
        """Give a pod that waits room that was made for it. Nothing happens if it does not wait."""
        waiting = self._waiting.get(pod_uid)
        if waiting is not None:
            placement = Placement(node_name, tuple(shares), waiting.request.host)
            self._ledger.hold(pod_uid, placement, NO_DEADLINE)
            self._earmark(waiting)

    def gone(self, pod_uid: str) -> None:
        """Take in that a pod is bound or gone, for good."""
        self.forget(pod_uid)
        self._gone.add(pod_uid)

    def waiting(self) -> set[str]:
        """Return the UIDs of the pods that wait."""
        return self._waiting.keys() | self._earmarks.keys()

    def give_room(self) -> bool:
        """Put room that has become free on hold for those who wait, in their order. Cheap if nothing has changed.

        Returns whether pods are left whose places take long to look for: then this was as much as one turn may cost.
        """
        hard = Work(TURN_STEPS)
        while self._waiting and (self._unchecked or self._left or self._seen != self._ledger.changes):
            exhausted: set[tuple[Shape, int]] = set()
            for waiting in self._candidates(hard):
                if hard.is_spent and len(waiting.request.shape) > 1:
                    self._unchecked.add(waiting.request.shape)
                    continue
                same = (waiting.request.shape, id(waiting.node_names))
                placement = None if same in exhausted else self._best(waiting, hard)
                if placement is None:
                    exhausted.add(same)
                else:
                    self._ledger.hold(waiting.pod.uid, placement, NO_DEADLINE)
                    self._earmark(waiting)
            if hard.is_spent:
                self.on_newcomer()
                return True
        return False

    def yield_to(self, pod: Pod) -> bool:
        """Take back room that is kept for pods of lower priority than this one; tell whether there was any."""
        lower = [earmark for earmark in self._earmarks.values() if earmark.waiting.pod.priority < pod.priority]
        for earmark in lower:
            waiting = earmark.waiting
            self._remove(waiting.pod.uid)
            self._ledger.drop_hold(waiting.pod.uid)
            self._add(waiting)  # a woken one too: it may not be on its way yet, and must not lose its turn
        return bool(lower)

    async def stop(self) -> None:
        """Call nobody any more."""
        for earmark in self._earmarks.values():
            if earmark.timer:
                earmark.timer.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    # Inside.

    def _best(self, waiting: WaitingPod, hard: Work) -> Placement | None:
        """Return where a pod fits; so that it does, others lose what is only kept for them to choose from."""
        placement = self._chooser.best(waiting.request, waiting.node_names, hard)
        if placement is None and self._ledger.take_back_spares():
            placement = self._chooser.best(waiting.request, waiting.node_names, hard)
        return placement

    def _candidates(self, hard: Work) -> list[WaitingPod]:
        """Return those who fit where something has changed, first who goes first.

        Pods of several containers come after the others: only for them it can take long to know. Those for which there
        was no time are the first to be looked at in the next turn.
        """
        touched = set(self._ledger.touched_since(self._seen))
        unchecked, self._unchecked, self._seen = self._unchecked, set(), self._ledger.changes
        left, self._left = self._left, {}
        found: list[WaitingPod] = []
        several = [shape for shape in self._by_shape if len(shape) > 1]
        several.sort(key=lambda shape: (shape not in left, self._by_shape[shape][0].rank))
        for shape in (*(shape for shape in self._by_shape if len(shape) == 1), *several):
            same = self._by_shape[shape]
            if shape in unchecked:
                found += same
            else:
                names = touched | left[shape] if shape in left else touched
                found += _who_may_go(same, self._where_it_fits(shape, names, hard))
        return sorted(found, key=_rank)

    def _where_it_fits(self, shape: Shape, names: set[str], hard: Work) -> set[str]:
        """Return on which of these nodes such pods fit; those for which there is no time are left for later."""
        fitting: set[str] = set()
        looked_at: set[str] = set()
        for name in names:
            if hard.is_spent and len(shape) > 1:
                self._left[shape] = names - looked_at
                break
            looked_at.add(name)
            if self._chooser.fits(shape, name, hard):
                fitting.add(name)
        return fitting

    def _add(self, waiting: WaitingPod) -> None:
        self.changes += 1
        self._waiting[waiting.pod.uid] = waiting
        insort(self._by_shape.setdefault(waiting.request.shape, []), waiting, key=_rank)

    def _remove(self, pod_uid: str) -> None:
        earmark = self._earmarks.pop(pod_uid, None)
        if earmark and earmark.timer:
            earmark.timer.cancel()
        waiting = self._waiting.pop(pod_uid, None)
        self.changes += bool(earmark or waiting)
        if waiting:
            same = self._by_shape[waiting.request.shape]
            del same[bisect_left(same, waiting.rank, key=_rank)]
            if not same:
                del self._by_shape[waiting.request.shape]

    def _earmark(self, waiting: WaitingPod) -> None:
        self._remove(waiting.pod.uid)
        timer = asyncio.get_running_loop().call_later(GRACE_S, self._call, waiting.pod.uid)
        self._earmarks[waiting.pod.uid] = _Earmark(waiting, timer)

    def _call(self, pod_uid: str) -> None:
        earmark = self._earmarks[pod_uid]
        earmark.timer = None
        self._start(self._wake(earmark), f"wake pod {earmark.waiting.pod}")

    def _start(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(call, name=name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _wake(self, earmark: _Earmark) -> None:
        """Change the pod, so that kube-scheduler tries it; if the API server is away, as soon as it is back."""
        pod, attempt = earmark.waiting.pod, 0
        while self._earmarks.get(pod.uid) is earmark:
            if not self._is_active():  # whoever is active now has found the pod among those that wait
                self._does_not_come(earmark)
                return
            earmark.woken = True
            try:
                await self._wake_up(pod)
            except (Conflict, Unreachable) as error:
                await pause(attempt, error)
                attempt += 1
                continue
            except (NotFound, Invalid):  # it is gone, or another one by now
                self._does_not_come(earmark)
            except ApiError as error:
                logger.error("pod %s can't be woken, though there is room for it: %s", pod, error)
                self._does_not_come(earmark)
            else:
                if self._earmarks.get(pod.uid) is earmark:
                    loop = asyncio.get_running_loop()
                    earmark.timer = loop.call_later(EARMARK_S, self._does_not_come, earmark)
            return

    def _does_not_come(self, earmark: _Earmark) -> None:
        uid = earmark.waiting.pod.uid
        if self._earmarks.get(uid) is earmark:
            self.forget(uid)
            self._ledger.drop_hold(uid)


def _rank(waiting: WaitingPod) -> Rank:
    return waiting.rank


def _who_may_go(waiting: Sequence[WaitingPod], node_names: set[str]) -> list[WaitingPod]:
    """Return those whom kube-scheduler would let go to one of these nodes."""
    if not node_names:
        return []
    answers: dict[int, bool] = {}  # identity of a set of names -> whether one of these nodes is in it
    for names in {id(one.node_names): one.node_names for one in waiting}.values():
        answers[id(names)] = names is None or not names.isdisjoint(node_names)
    return [one for one in waiting if answers[id(one.node_names)]]
