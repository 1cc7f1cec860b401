"""Preemption: pods of lower priority leave their cards for a pod that waits, or for all members of a gang at once.

Three things, each in its own time:

1. *Decide*: for a pod that kube-scheduler could place nowhere, find the cheapest victims on one of the nodes that it
   would take; for a gang, those that make room for all members that are missing. These cards count as taken from that
   moment on.
2. *Claim*: the claims are listed on the cards, at the API server. Any operator can go on from there.
3. *Carry out*, again and again, from what the ledger shows (`execute.py`): evict, reserve what becomes free, and call
   the pods when all is there; or give up. No pod is evicted for a gang before the claims of all its members are listed.

kube-scheduler's own preemption can do that for single pods alone, so for gangs the operator evicts in every mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.formats.kubernetes.pod import is_unschedulable, may_preempt
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import EventReason, GpuledgerError
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeSet
from gpuledger.model.share import Pod
from gpuledger.workflows.binding.bind_pod import PodBinder
from gpuledger.workflows.context import Component
from gpuledger.workflows.events import MemberRefused, PodRefused, PodSeenBound, PodYields
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import GangState, Member
from gpuledger.workflows.lifecycles import Deadlines, PodLifecycles
from gpuledger.workflows.pending.queue import Attempts
from gpuledger.workflows.pending.waiting_pods import PodRequeuer, WaitingPod, WaitingPods, in_turns
from gpuledger.workflows.preemption.execute import GangRooms, PreemptionExecutor
from gpuledger.workflows.preemption.find_for_gang import GangVictimFinder, SimilarMembers, kinds_of
from gpuledger.workflows.preemption.find_victims import ChosenVictims, EvictedTogether, GroupVictims, VictimFinder
from gpuledger.workflows.preemption.for_scheduler import PreemptionStarter, RoomClaimer, SchedulersPreemption
from gpuledger.workflows.reporting import PreemptionOutcome
from gpuledger.workflows.tasks import Tasks, by_turns

logger = logging.getLogger(__name__)


SETTLE_S = 0.1
"""Between a refusal and the decision: kube-scheduler sometimes asks for one node first, and then for all of them."""

FRESH_S = 5.0
"""How long the nodes that kube-scheduler offered count. After that it is asked again, before any pod is evicted: a node
can have got a taint meanwhile, or run short of CPU."""

RESTING_S = 10.0
"""After this time a pod or gang is looked at again for which only budgets stand in the way, of which no watch tells, or
for which claiming has failed by a defect."""

SHAPES_AT_ONCE = 8
"""Different shapes of one namespace's pods for which victims are looked for before others have their turn."""

CLAIM_PAUSE_S = 1.0
"""Before a pod or gang is looked at again whose claims could not be written."""


Key = TypeVar("Key", bound=Hashable)
ItsKey = TypeVar("ItsKey", bound=Hashable, covariant=True)


class Preemptor(Protocol[ItsKey]):
    """A pod, or a gang, for which others may have to leave."""

    @property
    def key(self) -> ItsKey:
        """Return by what it is remembered."""

    @property
    def pod(self) -> Pod:
        """Return the pod whose Events speak of it."""

    @property
    def alike(self) -> Hashable:
        """Return what those have in common for which the search has the same outcome."""

    def look(self) -> object:
        """Return what the outcome of the search depends on."""

    def may_begin(self) -> bool:
        """Return whether it waits for room, may preempt, and none is being made for it."""

    async def find(self) -> GroupVictims | None:
        """Return the cheapest victims, None if none help."""

    def to_ask_for(self, found: GroupVictims) -> Sequence[Pod]:
        """Return the pods of which kube-scheduler has to say again where they may go, before any pod is evicted."""

    def begins(self) -> None:
        """Record that room is being made for it."""


class _Memory(Generic[Key]):
    """What is remembered of pods, or of gangs, for which others could not be evicted."""

    def __init__(self, attempts: Attempts[Key], forbidden: MutableMapping[Key, tuple[str, ...]]) -> None:
        self.attempts = attempts
        self.forbidden = forbidden
        """The budgets that were reported to each."""

    def is_undecided(self, one: Preemptor[Key]) -> bool:
        """Return whether it may preempt, and something is another than at the last search."""
        return one.may_begin() and self.attempts.may_be_tried(one.key, one.look())


class _Search:
    """A search in the background, which begins again when it is wanted meanwhile."""

    def __init__(self, tasks: Tasks, name: str, search: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks, self._name, self._search = tasks, name, search
        self.task: asyncio.Task[None] | None = None
        self._again = False

    def want(self) -> None:
        """Have it begin, or begin again."""
        self._again = True
        if self.task is None:
            self.task = self._tasks.start(self._run(), self._name)

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._search()
        except Exception:
            logger.exception("%s failed, which is a bug in gpuledger", self._name)
        finally:
            self.task = None


@define(eq=False, slots=False)
class Questions(Component):
    """Knows when kube-scheduler has asked for a pod, and has it ask again."""

    _requeuer: PodRequeuer

    def __attrs_post_init__(self) -> None:
        self._asked_s: dict[str, float] = {}  # pod UID -> when kube-scheduler asked for it last, by the loop's clock
        self._wanted: set[str] = set()  # UIDs of pods that kube-scheduler has not asked for since that was wanted
        self._called: set[str] = set()  # those of them for which it was called

    def was_asked(self, pod_uid: str) -> bool:
        """Record a question that was answered with a no; return whether it was wanted, whether the call came or not."""
        self._asked_s[pod_uid] = self._clock.now_s()
        was_wanted = pod_uid in self._wanted
        self._wanted.discard(pod_uid)
        self._called.discard(pod_uid)
        return was_wanted

    def is_fresh(self, pod_uid: str) -> bool:
        """Return whether kube-scheduler has named a moment ago the nodes that it would take for a pod."""
        return self._clock.now_s() < self._asked_s.get(pod_uid, float("-inf")) + FRESH_S

    def ask_for(self, pod: Pod) -> None:
        """Have kube-scheduler ask for a pod: then it says which nodes it would take."""
        self._wanted.add(pod.uid)
        if pod.uid not in self._called:
            self._called.add(pod.uid)
            self._tasks.start(self._call(pod), f"ask for nodes of pod {pod}")

    async def _call(self, pod: Pod) -> None:
        if not await self._requeuer.keep_waking(pod, lambda: pod.uid in self._called):
            self._called.discard(pod.uid)

    def forget(self, pod_uid: str) -> None:
        """Record that a pod waits no more."""
        self._asked_s.pop(pod_uid, None)
        self._wanted.discard(pod_uid)
        self._called.discard(pod_uid)


@define(eq=False, slots=False)
class Preemption(Component):
    """Decides for which pods and gangs others have to leave."""

    _waiting: WaitingPods
    _gangs: Gangs
    _lives: PodLifecycles
    _deadlines: Deadlines
    _binder: PodBinder
    _stays: Sequence[Callable[[str], bool]]
    """Each takes a pod's UID. If one is true, others decide whether the pod leaves, or it would make no room."""

    def __attrs_post_init__(self) -> None:
        context, members, leavers = self._context, self._gangs.members, ChosenVictims()
        self.questions = Questions(context, self._waiting.requeuer)
        self.together = mates = EvictedTogether(context, members, self._lives)
        rooms = GangRooms(context, self._gangs)
        self.executor = PreemptionExecutor(
            context, self._waiting, self._lives, leavers, rooms, self._deadlines, self._binder
        )
        self.finder = VictimFinder(context, self._lives, mates, leavers, self._stays)
        self.gang_finder = GangVictimFinder(context, self.finder)
        self._starter = PreemptionStarter(context, RoomClaimer(context, self._lives), self.executor, leavers)
        self.for_scheduler = SchedulersPreemption(
            context, self._waiting, self.finder, self.executor, self._starter, mates, self.questions
        )
        self.similar = SimilarMembers(context, members)
        self._may: set[str] = set()  # UIDs of pending pods that kube-scheduler could not place, and that may preempt
        self._newcomers = 0  # bound pods that were seen so far
        self._of_pods = _Memory[str](Attempts(self._clock, {}), {})
        self._of_gangs = _Memory[GangState](Attempts(self._clock), WeakKeyDictionary())
        # Only pods of several containers, and gangs, can take long, and the others do not wait for them.
        self._hard_search = _Search(
            self._tasks,
            "look for victims for pods of several containers",
            lambda: self._decide(self._of_pods, self._pods(hard=True)),
        )
        self.gang_search = _Search(self._tasks, "look for victims for gangs", self._decide_gangs)
        self.waits_for_nodes_s: Callable[[str], float] = lambda _: 0.0
        """Takes a pod's UID, returns for how long it still waits for nodes that may come for it."""
        self._waiting_for_nodes: asyncio.TimerHandle | None = None
        self.wanted = asyncio.Event()
        """Set when a pod may need others to leave."""
        self._events.on(PodRefused, self._pod_is_refused)
        self._events.on(MemberRefused, self._member_is_refused)
        self._events.on(PodSeenBound, self._newcomer)
        self._events.on(PodYields, self._newcomer)

    # Called with what the watches and kube-scheduler show.

    def observe_pending(self, pod: Json) -> None:
        """Observe a pod without a node."""
        uid = pod["metadata"]["uid"]
        self.executor.pending.add(uid)
        self.executor.nominator.shows(pod)
        if uid not in self._may and is_unschedulable(pod) and may_preempt(pod):
            self._may.add(uid)
            self._want(uid)
        self.similar.observe_pending(pod)

    def forget_pending(self, pod_uid: str) -> None:
        """Record that a pod waits no more: it is bound or gone."""
        self.similar.forget_pending(pod_uid)
        self.questions.forget(pod_uid)
        self._of_pods.attempts.forget(pod_uid)
        self._of_pods.forbidden.pop(pod_uid, None)
        self._may.discard(pod_uid)
        self.executor.waits_no_more(pod_uid)

    def known_pending(self) -> set[str]:
        """Return the UIDs of the pods without a node of which something is remembered."""
        return self._may | self.executor.pending | self.similar.known_pending()

    def room_has_changed(self) -> None:
        """Have all preemptions looked at, and all who could begin one: something has changed in the ledger."""
        self.executor.look_at_all()
        self._want_if_anybody_may()

    @property
    def happened(self) -> int:
        """Return how much has happened that could change who has to leave."""
        return self._ledger.changes + self._newcomers

    def may_preempt(self, pod_uid: str) -> bool:
        """Return whether kube-scheduler could not place a pending pod, and it may have others leave."""
        return pod_uid in self._may

    def _newcomer(self, event: PodSeenBound | PodYields) -> None:
        self._newcomers += 1
        self._want_if_anybody_may()

    def _pod_is_refused(self, event: PodRefused) -> None:
        waiting = self._waiting.find(event.uid)
        if waiting is not None:  # else it was seen already that it waits no more: of that nothing is kept
            self._was_asked(event.uid, waiting.node_names, self._of_pods, event.uid)
            self._want(event.uid)

    def _member_is_refused(self, event: MemberRefused) -> None:
        state = self._gangs.members.of(event.uid)
        member = state.pending.get(event.uid) if state else None
        if state is not None and member is not None:
            self._was_asked(event.uid, member.node_names, self._of_gangs, state)
        if self._context.preemption_mode.is_known:
            self.wanted.set()

    def _was_asked(self, pod_uid: str, node_names: NodeSet | None, memory: _Memory[Key], key: Key) -> None:
        """Record a refused Filter and the nodes that it offered."""
        if node_names is not None:
            self.executor.asked(pod_uid, node_names)
        if self.questions.was_asked(pod_uid):
            memory.attempts.forget(key)

    def _want(self, pod_uid: str) -> None:
        if self._context.preemption_mode.operator and pod_uid in self._may:
            self.wanted.set()

    def _want_if_anybody_may(self) -> None:
        if self._context.preemption_mode.is_known and self._may:
            self.wanted.set()

    # Deciding.

    async def decide(self) -> None:
        """Find victims for pods and gangs that wait, in order; where it can take long, in the background."""
        if self._context.preemption_mode.operator:
            await self._decide(self._of_pods, self._pods(hard=False))
            if any(map(self._of_pods.is_undecided, self._pods(hard=True))):
                self._hard_search.want()
        if self._context.preemption_mode.is_known and any(map(self._of_gangs.is_undecided, self._waiting_gangs())):
            self.gang_search.want()

    async def _decide_gangs(self) -> None:
        in_order = sorted(self._waiting_gangs(), key=lambda gang: gang.key.rank)
        await self._decide(self._of_gangs, by_turns(in_order, lambda gang: gang.key.namespace))

    def _pods(self, hard: bool) -> list[SinglePod]:
        """Return the pending pods that may preempt, in order: those of several containers if `hard`, else of one."""
        found = (
            SinglePod(self, self._ledger, self._waiting, waiting) for waiting in self._waiting.all(without_room=True)
        )
        undecided = [each for each in found if each.is_hard == hard and self._of_pods.is_undecided(each)]
        undecided = [each for each in undecided if not self._waits_for_nodes(each.key)]
        by_uid = {each.key: each for each in undecided}
        return [by_uid[one.pod.uid] for one in in_turns([each.waiting for each in undecided], SHAPES_AT_ONCE)]

    def _waiting_gangs(self) -> list[WaitingGang]:
        waiting = [state for state in self._gangs.members.waiting() if not self._waits_for_nodes(*state.pending)]
        return [WaitingGang(self, self._context.ledger, self._gangs, state) for state in waiting]

    def _waits_for_nodes(self, *pod_uids: str) -> bool:
        """Return whether nodes may come for a pod, or for a gang, before others have to leave for it."""
        left_s = max(map(self.waits_for_nodes_s, pod_uids), default=0.0)
        if left_s > 0.0:
            if self._waiting_for_nodes is not None:
                self._waiting_for_nodes.cancel()
            self._waiting_for_nodes = self._tasks.after(left_s, self.wanted.set)
        return left_s > 0.0

    async def _decide(self, memory: _Memory[Key], undecided: Iterable[Preemptor[Key]]) -> None:
        """Find victims for these. Nothing is awaited between a choice and its promise."""
        hopeless: set[Hashable] = set()
        for one in undecided:
            if not memory.is_undecided(one) or not self._is_active():
                continue
            look = one.look()
            found = None if (one.alike, look) in hopeless else await one.find()
            memory.attempts.failed(one.key, look)
            if found is None:
                hopeless.add((one.alike, look))
            elif not one.may_begin() or not self._is_active():  # it has found room meanwhile, or is gone
                memory.attempts.forget(one.key)
            elif found.cost[0] and not self._settings.preempt_despite_budgets:
                self._is_forbidden(memory, one, found.protected_by)
            elif to_ask_for := one.to_ask_for(found):
                for pod in to_ask_for:
                    self.questions.ask_for(pod)
            elif self._starter.are_within_quota(found.rooms):
                self._begin(memory, one, found)  # where others leave anyway, it may be enough to keep what they leave

    def _is_forbidden(self, memory: _Memory[Key], one: Preemptor[Key], budgets: tuple[str, ...]) -> None:
        self._rest(memory, one, RESTING_S)
        if memory.forbidden.get(one.key) != budgets:
            memory.forbidden[one.key] = budgets
            self._counts.preemptions.labels(PreemptionOutcome.FORBIDDEN).inc()
            names = ", ".join(budgets)
            sentence = f"pods of lower priority hold the cards, and PodDisruptionBudgets protect them: {names}"
            self._event_recorder.post_pod_event(one.pod, True, EventReason.PREEMPTION_FORBIDDEN, sentence)

    def _rest(self, memory: _Memory[Key], one: Preemptor[Key], pause_s: float) -> None:
        memory.attempts.pause(one.key, pause_s)
        self._tasks.after(pause_s, self.wanted.set)

    # Beginning.

    def _begin(self, memory: _Memory[Key], one: Preemptor[Key], found: GroupVictims) -> None:
        """Promise the room, and have it claimed in the background."""
        one.begins()
        for pod, its in found.rooms:
            self._starter.promise(pod, its)
        self._tasks.start(self._claim_and_go_on(memory, one, found), f"preempt for {one}")

    async def _claim_and_go_on(self, memory: _Memory[Key], one: Preemptor[Key], found: GroupVictims) -> None:
        try:
            await self._starter.claim_all(found)
        except GpuledgerError as error:
            logger.warning("%s: claiming room for it failed: %s", one, error)
            self._rest(memory, one, CLAIM_PAUSE_S)
            self._starter.give_up(found, f"room could not be claimed: {error}")
        except Exception:
            logger.exception("%s: claiming room for it failed, which is a bug in gpuledger", one)
            self._rest(memory, one, RESTING_S)
            self._starter.give_up(found, "room could not be claimed")
        else:
            await self._starter.go_on(found)


@dataclass(frozen=True, slots=True)
class SinglePod:
    """A pod that waits for cards by itself."""

    preemption: Preemption
    ledger: Ledger
    all_waiting: WaitingPods
    waiting: WaitingPod

    def __str__(self) -> str:
        return f"pod {self.pod}"

    @property
    def key(self) -> str:
        """See Preemptor."""
        return self.waiting.pod.uid

    @property
    def pod(self) -> Pod:
        """See Preemptor."""
        return self.waiting.pod

    @property
    def alike(self) -> Hashable:
        """See Preemptor."""
        return self.waiting.pod.priority, self.waiting.request.shape

    @property
    def is_hard(self) -> bool:
        """Return whether the search can take long."""
        return len(self.waiting.request.shape) > 1

    def look(self) -> object:
        """See Preemptor."""
        return self.preemption.happened, self.waiting.node_names

    def may_begin(self) -> bool:
        """See Preemptor."""
        uid, ledger = self.key, self.ledger
        return (
            self.preemption.may_preempt(uid)
            and self.all_waiting.lookup(uid) is self.waiting
            and self.pod.priority > ledger.holders.lowest_priority()
            and not ledger.promises.is_made(uid)
            and not ledger.holders.of(uid)
        )

    async def find(self) -> GroupVictims | None:
        """See Preemptor."""
        names = self.waiting.node_names
        nodes = sorted(self.ledger.node_names() if names is None else names)
        found = await self.preemption.finder.find(self.pod, self.waiting.request, nodes)
        return found.as_group(self.pod) if found else None

    def to_ask_for(self, found: GroupVictims) -> Sequence[Pod]:
        """See Preemptor."""
        is_known = self.waiting.node_names is not None and (
            not found.pods or self.preemption.questions.is_fresh(self.key)
        )
        return () if is_known else (self.pod,)

    def begins(self) -> None:
        """See Preemptor."""


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A gang of which members are missing.

    Members that kube-scheduler has not asked for count as well. Where it tries Kubernetes' own groups as a whole, from
    1.37 on, it ends at the first member that finds no card, if too few are left then: see SimilarMembers.
    """

    preemption: Preemption
    ledger: Ledger
    gangs: Gangs
    key: GangState

    def __str__(self) -> str:
        return f"gang {self.key.name}"

    @property
    def pod(self) -> Pod:
        """See Preemptor."""
        return self._chosen()[0].pod

    @property
    def alike(self) -> Hashable:
        """See Preemptor."""
        return self.key

    def _chosen(self) -> list[Member]:
        """Return the members that are to get room: the longest waiting ones of those with known nodes."""
        state, may_preempt = self.key, self.preemption.may_preempt
        may = [m for m in state.pending.values() if m.node_names is not None and may_preempt(m.pod.uid)]
        may += self.preemption.similar.of(may, state)
        return sorted(may, key=lambda member: (member.tried_s is None, member.since, member.pod.uid))[: state.missing]

    def look(self) -> object:
        """See Preemptor."""
        return self.preemption.happened, self.key.asked, tuple(member.pod.uid for member in self._chosen())

    def may_begin(self) -> bool:
        """See Preemptor."""
        if not self.gangs.lacks_only_cards(self.key):
            return False
        chosen, ledger = self._chosen(), self.ledger
        if len(chosen) < self.key.missing or min(m.pod.priority for m in chosen) <= ledger.holders.lowest_priority():
            return False
        return not any(ledger.promises.is_made(uid) or ledger.holders.of(uid) for uid in self.key.pending)

    async def find(self) -> GroupVictims | None:
        """See Preemptor."""
        look, chosen = self.look(), self._chosen()
        places = [place.key for place in self.gangs.kept_places.kept_for(self.key.name)]
        found = await self.preemption.gang_finder.find(chosen, places)
        if found is not None and self.look() != look:  # somebody has come, or is gone, meanwhile
            self.preemption.gang_search.want()
            return None
        return found if found and (found.pods or found.leave_anyway) else None

    def to_ask_for(self, found: GroupVictims) -> Sequence[Pod]:
        """Return one of each kind of members of which kube-scheduler has not said a moment ago where they can go."""
        if not found.pods:
            return ()
        is_fresh = self.preemption.questions.is_fresh
        latest = (max(kind, key=lambda member: member.tried_s or 0.0) for kind in kinds_of(self._chosen()))
        return [member.pod for member in latest if not is_fresh(member.pod.uid)]

    def begins(self) -> None:
        """See Preemptor."""
        self.gangs.kept_places.forget(self.key.name)
