"""Preemption for gangs: room for all members that are missing at once, or no eviction.

The decision is made for all of them; each gets claims of its own, and no pod is evicted before all of these are written
(`gang_rooms.py`). kube-scheduler's own preemption can't do that, so the operator evicts here in every mode.

Members that kube-scheduler has not asked for count as well. Where it tries Kubernetes' own groups as a whole, from 1.37
on, it ends at the first member that finds no card, if too few are left then. Others can go where that one can, if
everything that decides this is the same for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define

from gpuledger.formats.kubernetes.constraints import where_it_can_go
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, EventReason, GpuledgerError
from gpuledger.model.gang import GangWay
from gpuledger.model.json_object import Json
from gpuledger.model.share import Pod
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import GangState, Member, Members
from gpuledger.workflows.gangs.plans import KeptPlaces
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.execute import PreemptionExecutor
from gpuledger.workflows.preemption.find_for_gang import GangVictimFinder, GangVictims, kinds_of
from gpuledger.workflows.preemption.for_scheduler import Beginnings, PreemptionSettings
from gpuledger.workflows.preemption.preempt import CLAIM_PAUSE_S, FRESH_S, RESTING_S, Preemption
from gpuledger.workflows.reporting import Counts, EventRecorder, PreemptionOutcome
from gpuledger.workflows.tasks import by_turns, gather_all


class SimilarMembers:
    """Knows the members of Kubernetes' own groups."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._terms: dict[str, str] = {}  # pod UID -> what decides where it can go

    def observe_pending(self, pod: Json) -> None:
        """See PendingPodTracker."""
        uid = pod["metadata"]["uid"]
        state = self._members.of(uid)
        if state is not None and state.name.way is GangWay.KUBERNETES:
            self._terms[uid] = where_it_can_go(pod)

    def forget_pending(self, pod_uid: str) -> None:
        """See PendingPodTracker."""
        self._terms.pop(pod_uid, None)

    def known_pending(self) -> set[str]:
        """See PendingPodTracker."""
        return set(self._terms)

    def of(self, asked: Collection[Member], state: GangState) -> list[Member]:
        """Return the members that were not asked for and are like one that was, with the nodes of that one."""
        latest_last = sorted(asked, key=lambda member: member.tried_s or 0.0)
        names = {self._terms.get(member.pod.uid): member.node_names for member in latest_last}
        names.pop(None, None)
        others = (member for member in state.pending.values() if member.node_names is None)
        found = ((member, names.get(self._terms.get(member.pod.uid))) for member in others)
        return [replace(member, node_names=its) for member, its in found if its is not None]


logger = logging.getLogger(__name__)

_Look = tuple[int, int, tuple[str, ...]]
"""How much had happened, how often kube-scheduler had named other nodes, and which members there were."""


@define(eq=False, slots=False)
class GangPreemption:
    """Decides for which gangs others have to leave."""

    _ledger: Ledger
    _members: Members
    _gangs: Gangs
    _kept_places: KeptPlaces
    _waiting: WaitingPods
    _finder: GangVictimFinder
    _carrier: PreemptionExecutor
    _beginnings: Beginnings
    _lookalikes: SimilarMembers
    _single: Preemption
    _event_recorder: EventRecorder
    _counts: Counts
    _settings: PreemptionSettings
    _clock: Clock
    _is_active: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._looked_at: WeakKeyDictionary[GangState, _Look] = WeakKeyDictionary()  # those that nothing can be done for
        self._rests_until_s: WeakKeyDictionary[GangState, float] = WeakKeyDictionary()
        self._forbidden: WeakKeyDictionary[GangState, tuple[str, ...]] = WeakKeyDictionary()  # budgets reported
        self._called: set[str] = set()  # UIDs of members for which kube-scheduler was called, and has not asked since
        self._tasks: set[asyncio.Task[None]] = set()
        self._deciding: asyncio.Task[None] | None = None
        self._again = False

    def refused(self, pod_uid: str) -> None:
        """Record that Filter refused a member."""
        self._called.discard(pod_uid)
        state = self._members.of(pod_uid)
        member = state.pending.get(pod_uid) if state else None
        if member is not None and member.node_names is not None:
            self._carrier.asked(pod_uid, member.node_names)
        if self._is_on:
            self._single.wanted.set()

    @property
    def _is_on(self) -> bool:
        return self._settings.who.operator or self._settings.who.scheduler

    def decide(self) -> None:
        """Find victims for gangs that wait, in the background: it can take long, and single pods do not wait for it."""
        self._again = self._is_on
        if self._deciding is None and self._is_on and any(self._may_begin(state) for state in self._members.waiting()):
            self._deciding = self._start(self._decide(), "look for victims for gangs")

    async def _decide(self) -> None:
        try:
            while self._again:
                self._again = False
                in_order = sorted(self._members.waiting(), key=lambda state: state.rank)
                for state in by_turns(in_order, lambda state: state.name.namespace):
                    if self._may_begin(state):
                        await self._decide_for(state)
        except Exception:
            logger.exception("looking for victims for gangs failed, which is a bug in gpuledger")
        finally:
            self._deciding = None

    def _chosen(self, state: GangState) -> list[Member]:
        """Return the members that are to get room: the longest waiting ones of those with known nodes."""
        may = [m for m in state.pending.values() if m.node_names is not None and self._single.may_preempt(m.pod.uid)]
        may += self._lookalikes.of(may, state)
        return sorted(may, key=lambda member: (member.tried_s is None, member.since, member.pod.uid))[: state.missing]

    def _look_of(self, state: GangState) -> _Look:
        return self._single.happened, state.asked, tuple(member.pod.uid for member in self._chosen(state))

    def _may_begin(self, state: GangState) -> bool:
        now_s = self._clock.now_s()
        if not self._is_active() or not self._gangs.lacks_only_cards(state):
            return False
        if self._rests_until_s.get(state, 0.0) > now_s:
            return False
        chosen = self._chosen(state)
        if len(chosen) < state.missing or self._looked_at.get(state) == self._look_of(state):
            return False
        if min(member.pod.priority for member in chosen) <= self._ledger.lowest_priority():
            return False
        return not any(self._ledger.promises.is_made(uid) or self._ledger.holders_of(uid) for uid in state.pending)

    async def _decide_for(self, state: GangState) -> None:
        look, chosen = self._look_of(state), self._chosen(state)
        found = await self._finder.find(chosen, [place.key for place in self._kept_places.kept_for(state.name)])
        if found is not None and (self._look_of(state) != look or not self._may_begin(state)):
            self._again = True  # somebody has come, or is gone, meanwhile
            return
        self._looked_at[state] = look
        if found is None or not (found.pods or found.leave_anyway):
            return
        if found.cost[0] and not self._settings.despite_budgets:
            self._is_forbidden(state, chosen[0].pod, found)
        elif found.pods and (stale := self._not_fresh(chosen)):
            self._looked_at.pop(state, None)
            for member in stale:
                self._have_it_asked_for(member.pod)
        elif self._beginnings.are_within_quota(found.rooms):
            self._begin(state, found)

    # Asking again.

    def _not_fresh(self, chosen: list[Member]) -> list[Member]:
        """Return one of each kind of members of which kube-scheduler has not said a moment ago where they can go."""
        now_s = self._clock.wall().timestamp()
        kinds = kinds_of(chosen)
        latest = (max(kind, key=lambda member: member.tried_s or 0.0) for kind in kinds)
        return [member for member in latest if (member.tried_s or 0.0) + FRESH_S <= now_s]

    def _have_it_asked_for(self, pod: Pod) -> None:
        if pod.uid not in self._called:
            self._called.add(pod.uid)
            self._start(self._call(pod), f"ask for nodes of pod {pod}")

    async def _call(self, pod: Pod) -> None:
        try:
            await self._waiting.wake_up(pod)
        except ApiError as error:
            self._called.discard(pod.uid)
            logger.info("pod %s can't be woken: %s", pod, error)

    def _is_forbidden(self, state: GangState, pod: Pod, found: GangVictims) -> None:
        self._rest(state, RESTING_S)
        if self._forbidden.get(state) != found.protected_by:
            self._forbidden[state] = found.protected_by
            self._counts.preemptions.labels(PreemptionOutcome.FORBIDDEN).inc()
            budgets = ", ".join(found.protected_by)
            sentence = f"pods of lower priority hold the cards, and PodDisruptionBudgets protect them: {budgets}"
            self._event_recorder.post_pod_event(pod, True, EventReason.PREEMPTION_FORBIDDEN, sentence)

    def _rest(self, state: GangState, pause_s: float) -> None:
        self._rests_until_s[state] = self._clock.now_s() + pause_s
        asyncio.get_running_loop().call_later(pause_s, self._look_again, state)

    def _look_again(self, state: GangState) -> None:
        self._looked_at.pop(state, None)
        self._single.wanted.set()

    # Beginning.

    def _begin(self, state: GangState, found: GangVictims) -> None:
        """Promise room to all of them, and have it claimed in the background."""
        self._kept_places.forget(state.name)
        for pod, its in found.rooms:
            self._beginnings.promise(pod, its)
        self._start(self._claim_and_go_on(state, found), f"preempt for gang {state.name}")

    async def _claim_and_go_on(self, state: GangState, found: GangVictims) -> None:
        try:
            await self._claim(found)
        except GpuledgerError as error:
            logger.warning("gang %s: claiming room for it failed: %s", state.name, error)
            self._rest(state, CLAIM_PAUSE_S)
            for pod, _ in found.rooms:
                self._carrier.give_up(pod.uid, f"room for the whole gang could not be claimed: {error}")
            return
        except Exception:
            logger.exception("gang %s: claiming room for it failed, which is a bug in gpuledger", state.name)
            self._rest(state, RESTING_S)
            for pod, _ in found.rooms:
                self._carrier.give_up(pod.uid, "room for the whole gang could not be claimed")
            return
        await gather_all([self._beginnings.nominate(pod, its) for pod, its in found.rooms])
        for pod, its in found.rooms:
            self._beginnings.go_on(pod, its)

    async def _claim(self, found: GangVictims) -> None:
        """List the claims of all members; raise what keeps one from it, when all have been tried."""
        patience_s = await self._beginnings.longest_grace_s(found.pods)
        await gather_all(
            [
                self._beginnings.claim(pod, its, [victim.uid for victim in its.pods], (), patience_s)
                for pod, its in found.rooms
            ]
        )

    def _start(self, steps: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(steps, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Decide nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
