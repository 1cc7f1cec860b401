"""Preemption: pods of lower priority leave their cards for a pod that waits.

Three things, each in its own time:

1. *Decide*: for a pod that kube-scheduler could place nowhere, find the cheapest victims on one of the nodes that it
   would take. The pod's cards there count as taken from that moment on.
2. *Claim*: the claims are listed on the cards, at the API server. Any operator can go on from there.
3. *Carry out*, again and again, from what the ledger shows (`execute.py`): evict, reserve what becomes free, and call
   the pod when all is there; or give up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from attrs import define

from gpuledger.formats.kubernetes.pod import is_unschedulable, may_preempt
from gpuledger.formats.scheduler import PreemptArguments
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.clock import Clock
from gpuledger.model.errors import EventReason, GpuledgerError
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeSet
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.workflows.pending.waiting_pods import WaitingPod, WaitingPods, in_turns
from gpuledger.workflows.preemption.execute import PreemptionExecutor
from gpuledger.workflows.preemption.find_victims import EvictedTogether, VictimFinder, Victims
from gpuledger.workflows.preemption.for_scheduler import Beginnings, PreemptionSettings, SchedulersPreemption
from gpuledger.workflows.reporting import Counts, EventRecorder, PreemptionOutcome

logger = logging.getLogger(__name__)


SETTLE_S = 0.1
"""Between a refusal and the decision: kube-scheduler sometimes asks for one node first, and then for all of them."""

FRESH_S = 5.0
"""How long the nodes that kube-scheduler offered count. After that it is asked again, before any pod is evicted: a node
can have got a taint meanwhile, or run short of CPU."""

RESTING_S = 10.0
"""After this time a pod is looked at again for which only budgets stand in the way, of which no watch tells, or for
which claiming has failed by a defect."""

SHAPES_AT_ONCE = 8
"""Different shapes of one namespace's pods for which victims are looked for before others have their turn."""

CLAIM_PAUSE_S = 1.0
"""Before a pod is looked at again whose claims could not be written."""

_Look = tuple[int, NodeSet | None]
"""How much had happened, and which nodes kube-scheduler would take."""


@define(eq=False, slots=False)
class Preemption:
    """Decides which pending pods preempt others."""

    _ledger: Ledger
    _waiting: WaitingPods
    _finder: VictimFinder
    _carrier: PreemptionExecutor
    _beginnings: Beginnings
    _mates: EvictedTogether
    _event_recorder: EventRecorder
    _counts: Counts
    _settings: PreemptionSettings
    _read_request: Callable[[Json], PodRequest | None]
    _clock: Clock
    _is_active: Callable[[], bool] = lambda: True

    def __attrs_post_init__(self) -> None:
        self._for_scheduler = SchedulersPreemption(
            self._ledger,
            self._waiting,
            self._finder,
            self._carrier,
            self._beginnings,
            self._mates,
            self._counts,
            self._settings,
            self._read_request,
            self._is_fresh,
        )
        self._may: set[str] = set()  # UIDs of pending pods that kube-scheduler could not place, and that may preempt
        self._looked_at: dict[str, _Look] = {}  # pod UID -> what was known when nothing could be done for it
        self._newcomers = 0  # bound pods that were seen so far
        self._forbidden: dict[str, tuple[str, ...]] = {}  # pod UID -> the budgets that were reported to it
        self._asked_s: dict[str, float] = {}  # pod UID -> when kube-scheduler asked for it last, by the loop's clock
        self._called: set[str] = set()  # UIDs of pods for which kube-scheduler was called, and has not asked since
        self._resting: set[str] = set()  # UIDs of pods that are looked at again after a pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._deciding_hard: asyncio.Task[None] | None = None  # looks for victims for pods of several containers
        self._hard_wanted = False  # it is to begin again when it comes to its end
        self.wanted = asyncio.Event()
        """Set when a pod may need others to leave."""

    # Called with what the watches and kube-scheduler show.

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        uid = pod["metadata"]["uid"]
        self._carrier.waits(uid)
        self._carrier.nominator.shows(pod)
        if uid not in self._may and is_unschedulable(pod) and may_preempt(pod):
            self._may.add(uid)
            self._want(uid)

    def newcomer(self) -> None:
        """Record that a pod was seen bound for the first time: now it could be asked to leave."""
        self._newcomers += 1
        self._want_if_anybody_may()

    @property
    def happened(self) -> int:
        """Return how much has happened that could change who has to leave."""
        return self._ledger.changes + self._newcomers

    def may_preempt(self, pod_uid: str) -> bool:
        """Return whether kube-scheduler could not place a pending pod, and it may have others leave."""
        return pod_uid in self._may

    def _look_of(self, waiting: WaitingPod) -> _Look:
        return self.happened, waiting.node_names

    def refused(self, pod_uid: str) -> None:
        """Record a refused Filter and the nodes that it offered.

        It can ask for one of which was seen already that it waits no more: of that nothing is kept.
        """
        waiting = self._waiting.find(pod_uid)
        if waiting is None:
            return
        if waiting.node_names is not None:
            self._carrier.asked(pod_uid, waiting.node_names)
        self._asked_s[pod_uid] = self._clock.now_s()
        if pod_uid in self._called:
            self._called.discard(pod_uid)
            self._looked_at.pop(pod_uid, None)
        self._want(pod_uid)

    def _want(self, pod_uid: str) -> None:
        if self._settings.who.operator and pod_uid in self._may:
            self.wanted.set()

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod waits no more: it is bound or gone."""
        for known in (self._asked_s, self._looked_at, self._forbidden):
            known.pop(pod_uid, None)
        self._may.discard(pod_uid)
        self._called.discard(pod_uid)
        self._carrier.waits_no_more(pod_uid)

    def known_pending(self) -> set[str]:
        """Return the UIDs of the pods without a node of which something is remembered."""
        return self._may | self._carrier.remembered()

    def take_over(self) -> None:
        """Continue the preemptions that an earlier operator has begun. All pending pods are known by now."""
        self._carrier.take_over()
        self._want_if_anybody_may()

    def notice(self, card: CardEntry) -> None:
        """Observe a card as it is stored now."""
        self._carrier.notice(card)

    def room_has_changed(self) -> None:
        """Have all preemptions looked at, and all who could begin one: something has changed in the ledger."""
        self._carrier.look_at_all()
        self._want_if_anybody_may()

    def _want_if_anybody_may(self) -> None:
        if (self._settings.who.operator or self._settings.who.scheduler) and self._may:
            self.wanted.set()

    # Deciding.

    async def decide(self) -> None:
        """Find victims for pending pods, in order; for pods of several containers in the background.

        Only these can take long, and the other pods do not wait for them.
        """
        if not self._settings.who.operator:  # then only gangs are its business
            return
        await self._decide(self._undecided(hard=False))
        self._hard_wanted = bool(self._undecided(hard=True))
        if self._hard_wanted and self._deciding_hard is None:
            self._deciding_hard = self._start(self._decide_hard(), "look for victims for pods of several containers")

    async def _decide_hard(self) -> None:
        try:
            while self._hard_wanted:
                self._hard_wanted = False
                await self._decide(self._undecided(hard=True))
        except Exception:
            logger.exception("searching victims for pods of several containers failed, which is a bug in gpuledger")
        finally:
            self._deciding_hard = None

    def _undecided(self, hard: bool) -> list[WaitingPod]:
        """Return the pending pods that may preempt: those of several containers if `hard`, else those of one."""
        undecided = (
            waiting
            for waiting in self._waiting.in_order()
            if (len(waiting.request.shape) > 1) == hard and self._is_undecided(waiting)
        )
        return in_turns(undecided, SHAPES_AT_ONCE)

    def _is_undecided(self, waiting: WaitingPod) -> bool:
        return self._may_begin(waiting) and self._looked_at.get(waiting.pod.uid) != self._look_of(waiting)

    async def _decide(self, undecided: Iterable[WaitingPod]) -> None:
        """Find victims for these. Nothing is awaited between a choice and its promise."""
        hopeless: set[tuple[object, ...]] = set()
        for waiting in undecided:
            look = self._look_of(waiting)
            same = (waiting.pod.priority, waiting.request.shape, look)
            if not self._is_undecided(waiting) or not self._is_active():
                continue
            nodes = sorted(self._ledger.node_names() if waiting.node_names is None else waiting.node_names)
            found = None if same in hopeless else await self._finder.find(waiting.pod, waiting.request, nodes)
            self._looked_at[waiting.pod.uid] = look
            if found is None:
                hopeless.add(same)
            elif not self._may_begin(waiting) or not self._is_active():  # it has found room meanwhile, or is gone
                self._looked_at.pop(waiting.pod.uid, None)
            elif found.cost[0] and not self._settings.despite_budgets:
                self._is_forbidden(waiting.pod, found)
            elif waiting.node_names is None or (found.pods and not self._is_fresh(waiting.pod.uid)):
                self._have_it_asked_for(waiting.pod.uid)
            elif self._beginnings.are_within_quota([(waiting.pod, found)]):
                self._begin(waiting.pod, found)  # where others leave anyway, it may be enough to keep what they leave

    def _have_it_asked_for(self, pod_uid: str) -> None:
        if pod_uid not in self._called:
            self._called.add(pod_uid)
            self._waiting.call(pod_uid)

    def _is_fresh(self, pod_uid: str) -> bool:
        """Return whether kube-scheduler has named a moment ago the nodes that it would take for a pod."""
        return self._clock.now_s() < self._asked_s.get(pod_uid, float("-inf")) + FRESH_S

    def _may_begin(self, waiting: WaitingPod) -> bool:
        uid = waiting.pod.uid
        return (
            uid in self._may
            and uid not in self._resting
            and self._waiting.lookup(uid) is waiting
            and waiting.pod.priority > self._ledger.lowest_priority()
            and not self._ledger.promises.is_made(uid)
            and not self._ledger.holders_of(uid)
        )

    def _is_forbidden(self, pod: Pod, found: Victims) -> None:
        self._rest(pod.uid)
        if self._forbidden.get(pod.uid) != found.protected_by:
            self._forbidden[pod.uid] = found.protected_by
            self._counts.preemptions.labels(PreemptionOutcome.FORBIDDEN).inc()
            budgets = ", ".join(found.protected_by)
            sentence = f"pods of lower priority hold the cards, and PodDisruptionBudgets protect them: {budgets}"
            self._event_recorder.post_pod_event(pod, True, EventReason.PREEMPTION_FORBIDDEN, sentence)

    def _rest(self, pod_uid: str) -> None:
        self._resting.add(pod_uid)
        asyncio.get_running_loop().call_later(RESTING_S, self._look_again, pod_uid)

    def _look_again(self, pod_uid: str) -> None:
        self._resting.discard(pod_uid)
        self._looked_at.pop(pod_uid, None)
        self._want(pod_uid)

    def _begin(self, pod: Pod, found: Victims) -> None:
        """Promise the room, and have it claimed in the background."""
        self._beginnings.promise(pod, found)
        self._start(self._claim_and_go_on(pod, found), f"preempt for pod {pod}")

    def _start(self, steps: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(steps, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _claim_and_go_on(self, pod: Pod, found: Victims) -> None:
        try:
            await self._beginnings.claim(pod, found, [victim.uid for victim in found.pods], found.pods)
        except GpuledgerError as error:
            logger.warning("pod %s: claiming room for it failed: %s", pod, error)
            await asyncio.sleep(CLAIM_PAUSE_S)
            self._want(pod.uid)
            return
        except Exception:
            logger.exception("pod %s: claiming room for it failed, which is a bug in gpuledger", pod)
            self._rest(pod.uid)
            return
        await self._beginnings.nominate(pod, found)
        self._beginnings.go_on(pod, found)

    async def preempt(self, arguments: PreemptArguments) -> dict[str, tuple[str, ...]]:
        """Answer kube-scheduler: see SchedulersPreemption."""
        return await self._for_scheduler.preempt(arguments)

    async def stop(self) -> None:
        """Decide nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._carrier.stop()
