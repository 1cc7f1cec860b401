"""Starts of preemptions: by the operator, or by kube-scheduler, as the settings or the API server's version decide.

The operator reserves in memory, lists the room that is to become free as claimed on each of its cards, then emits
Events. kube-scheduler asks which of its candidates help, and evicts by itself. It knows nothing of cards, nor of gangs:
whose mates would be of no use any more leaves with them, those on the same node by kube-scheduler's hand, the others by
the operator's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from attrs import define

from gpuledger.formats.kubernetes.pod import LONGEST_GRACE_S, grace_s, pod_identity
from gpuledger.formats.scheduler import PreemptArguments
from gpuledger.ledger.quotas import Tally
from gpuledger.model.clock import rfc3339
from gpuledger.model.errors import EventReason, GpuledgerError, NotFound
from gpuledger.model.request import PodRequest
from gpuledger.model.share import DEFAULT_GRACE_S, MAX_HOLDERS, Claim, Holder, HolderState, Pod
from gpuledger.placement.policy import StepBudget
from gpuledger.placement.preemption.victims import WORK_LIMIT
from gpuledger.reports.records import RecordKind
from gpuledger.workflows.context import Component
from gpuledger.workflows.lifecycles import PodLifecycles
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.execute import PreemptionExecutor
from gpuledger.workflows.preemption.find_victims import (
    ChosenVictims,
    EvictedTogether,
    GroupVictims,
    VictimFinder,
    Victims,
)
from gpuledger.workflows.reporting import PreemptionOutcome
from gpuledger.workflows.tasks import gather_all


@define(eq=False, slots=False)
class RoomClaimer(Component):
    """Lists claims at the API server: any operator can go on from there."""

    _lives: PodLifecycles

    async def claim(
        self, pod: Pod, found: Victims, evicted: Collection[str], leaving: Collection[Pod], patience_s: float = 0.0
    ) -> None:
        """Write the claims to all cards, for as long as the leaving pods may take, and a while.

        `patience_s` is how long they may take at least, if that is known already. Raises the API server's error, or
        ShareRefused; some cards may have the claim then.
        """
        patience_s = max(patience_s, await self.longest_grace_s(leaving))
        now = self._clock.wall()
        patience_s += max(0.0, self._leaves_by_s(found) - now.timestamp())
        patience_s = min(patience_s, LONGEST_GRACE_S) + self._settings.preemption_timeout_s
        until = now + timedelta(seconds=patience_s)
        claims = self._claims(pod, found, evicted, rfc3339(until))
        await gather_all(map(self._journal.claim, claims))

    def _claims(self, pod: Pod, found: Victims, evicted: Collection[str], deadline: str) -> list[Claim]:
        claims, shares = [], found.placement.shares
        on_none = set(evicted)
        for share in shares:
            entry = self._ledger.entry(share.uuid)
            on_none -= entry.holders.keys() if entry is not None else set()
        others = sorted(on_none)  # of the victims' gangs; listed, so that they leave whoever is active then
        for share in shares:
            entry = self._ledger.entry(share.uuid)
            here = [uid for uid in evicted if entry is not None and uid in entry.holders]
            room = MAX_HOLDERS - len(here)
            victims, others = (*here, *others[:room]), others[room:]
            claims.append(Claim(Holder(pod, share, HolderState.RESERVED, deadline), len(shares), victims))
        return claims

    def _leaves_by_s(self, found: Victims) -> int:
        """Return when those must have ended that leave the cards anyway, in Unix seconds; 0 if there are none."""
        entries = [self._ledger.entry(share.uuid) for share in found.placement.shares]
        return max((self._lives.leaves_s(uid) for entry in entries if entry for uid in entry.holders), default=0)

    async def longest_grace_s(self, pods: Collection[Pod]) -> float:
        """Return how long the slowest of some pods may take to end, in seconds; the default if nothing is known."""
        graces_s = []
        for pod in pods:
            with suppress(NotFound):
                graces_s.append(grace_s(await self._store.pod(pod.namespace, pod.name)))
        return max(graces_s, default=DEFAULT_GRACE_S)


@define(eq=False, slots=False)
class PreemptionStarter(Component):
    """Starts preemptions, and passes them on to the executor."""

    _claimer: RoomClaimer
    _executor: PreemptionExecutor
    _leavers: ChosenVictims

    def are_within_quota(self, rooms: Iterable[tuple[Pod, Victims]]) -> bool:
        """Return whether the namespace of each of some pods may have the room for all of them."""
        tally = Tally(self._ledger.quotas)
        return not any(tally.add(pod.uid, (found.placement,)) for pod, found in rooms)

    def promise(self, pod: Pod, found: Victims) -> None:
        """Promise the room in memory: it counts as taken from now on. Displaced preemptors give up theirs."""
        self._counts.preemptions.labels(PreemptionOutcome.BEGUN).inc()
        for uid in found.displaced:
            self._executor.give_up(uid, f"pod {pod} of higher priority takes its place")
        self._ledger.promises.make(pod.uid, found.placement)
        self._leavers.choose(pod, [victim.uid for victim in found.pods])

    async def claim(
        self, pod: Pod, found: Victims, evicted: Collection[str], leaving: Collection[Pod], patience_s: float = 0.0
    ) -> None:
        """List the claims on all cards; if that fails, give them up. In any case, what was promised in memory ends.

        Raises what the API server says, or ShareRefused.
        """
        self._leavers.choose(pod, [*evicted, *(each.uid for each in leaving)])
        try:
            await self._claimer.claim(pod, found, evicted, leaving, patience_s)
        except GpuledgerError as error:
            self._executor.give_up(pod.uid, str(error))
            raise
        finally:
            self._ledger.promises.withdraw(pod.uid)  # what is listed counts by itself

    async def claim_all(self, found: GroupVictims) -> None:
        """List the claims of all pods of a group; in any case, what was promised in memory ends.

        Raises what keeps one from it, when all have been tried.
        """
        try:
            patience_s = await self._claimer.longest_grace_s(found.pods)
            rooms = [(pod, its, [victim.uid for victim in its.pods]) for pod, its in found.rooms]
            await gather_all([self.claim(pod, its, evicted, (), patience_s) for pod, its, evicted in rooms])
        finally:  # where nothing was claimed, too
            for pod, _ in found.rooms:
                self._ledger.promises.withdraw(pod.uid)

    def give_up(self, found: GroupVictims, why: str) -> None:
        """End a preemption: room for a part of a group is of no use."""
        for pod, _ in found.rooms:
            self._executor.give_up(pod.uid, why)

    async def go_on(self, found: GroupVictims) -> None:
        """Name the pods' nodes before any victim is evicted; then say who leaves, and have it carried out."""
        rooms = found.rooms
        await gather_all([self._executor.nominator.name(pod, its.placement.node_name) for pod, its in rooms])
        for pod, its in rooms:
            self._go_on(pod, its)

    def _go_on(self, pod: Pod, found: Victims) -> None:
        placement = found.placement
        names = ", ".join(map(str, found.pods)) or "no pod; others leave already"
        cards = ", ".join(share.uuid for share in placement.shares)
        sentence = f"evicts for cards {cards} on node {placement.node_name}: {names}"
        self._event_recorder.post_pod_event(pod, False, EventReason.PREEMPTING, sentence)
        self._trail.note(RecordKind.PREEMPTING, pod, placement.node_name, placement.shares, f"evicts {names}")
        self._executor.look(pod.uid)


logger = logging.getLogger(__name__)


HARD_STEPS = 2 * WORK_LIMIT
"""Steps for a pod of several containers while kube-scheduler waits for the answer: some 0.2 s."""


class Asked(Protocol):
    """Knows what kube-scheduler has asked."""

    def is_fresh(self, pod_uid: str) -> bool:
        """Return whether kube-scheduler has named a moment ago the nodes that it would take for a pod."""


@define(eq=False, slots=False)
class SchedulersPreemption(Component):
    """Answers kube-scheduler."""

    _waiting: WaitingPods
    _finder: VictimFinder
    _executor: PreemptionExecutor
    _starter: PreemptionStarter
    _mates: EvictedTogether
    _questions: Asked

    async def preempt(self, arguments: PreemptArguments) -> dict[str, tuple[str, ...]]:
        """Return the node, one at most, on which these and additional victims make room for the pod.

        kube-scheduler evicts them itself. The pod's cards there are claimed before the answer. None for a pod that
        waits for its gang: room for all of it is made at once, or none. Raises BadInput for a pod that can't be read.
        """
        pod, request = pod_identity(arguments.pod), self._formats.request(dict(arguments.pod))
        if self._mates.waits_for_its_gang(pod.uid):
            return {}
        arguments = self._with_mates(pod, arguments)
        if request is None:
            return dict(arguments.victims)
        if self._ledger.promises.is_made(pod.uid) or self._ledger.holders.of(pod.uid):
            self._executor.found_no_node(pod.uid)
            return {}
        if self._context.preemption_mode.operator and await self._finds_its_own(pod, request):
            return {}
        for violations in sorted(set(arguments.violations.values())):
            found = await self._completed(pod, request, arguments, violations)
            if found is not None:
                return await self._left_to_the_scheduler(pod, found, arguments.victims[found.placement.node_name])
        return {}

    def _with_mates(self, pod: Pod, arguments: PreemptArguments) -> PreemptArguments:
        """Add those on each node who would leave with the victims; leave out nodes where these may not leave."""
        victims: dict[str, tuple[str, ...]] = {}
        for node_name, chosen in arguments.victims.items():
            also = self._mates.all_who_leave(chosen)
            if all(mate.priority < pod.priority for mate in also.values()):
                here = [uid for uid in also if self._node_of(uid) == node_name]
                victims[node_name] = (*chosen, *here)
        violations = {name: number for name, number in arguments.violations.items() if name in victims}
        return replace(arguments, victims=victims, violations=violations)

    def _node_of(self, pod_uid: str) -> str:
        holders = self._ledger.holders.of(pod_uid)
        return holders[0][0].node_name if holders else ""

    async def _completed(
        self, pod: Pod, request: PodRequest, arguments: PreemptArguments, violations: int
    ) -> Victims | None:
        """Return the additional victims, on a node where this many of kube-scheduler's own are protected by a budget.

        Up to Kubernetes 1.37 an answer without any victim is an error.
        """
        who, victims = self._context.preemption_mode, arguments.victims
        names = [n for n in victims if arguments.violations[n] == violations and (victims[n] or who.scheduler)]
        names.sort(key=lambda name: (len(victims[name]), name))
        found = await self._finder.find(pod, request, names, victims, StepBudget(HARD_STEPS))
        if found is None or (found.pods and not (who.operator or who.scheduler)):
            return None
        allowed = who.scheduler or self._settings.preempt_despite_budgets or not found.cost[0]
        return found if allowed and self._starter.are_within_quota([(pod, found)]) else None

    async def _finds_its_own(self, pod: Pod, request: PodRequest) -> bool:
        """Return whether the operator can make room by itself, where nothing but cards is short."""
        waiting = self._waiting.lookup(pod.uid)
        if waiting is None or not waiting.node_names or not self._questions.is_fresh(pod.uid):
            return False
        found = await self._finder.find(pod, request, sorted(waiting.node_names), hard=StepBudget(HARD_STEPS))
        return found is not None and (not found.cost[0] or self._settings.preempt_despite_budgets)

    async def _left_to_the_scheduler(
        self, pod: Pod, found: Victims, victims: Collection[str]
    ) -> dict[str, tuple[str, ...]]:
        node_name = found.placement.node_name
        added = [victim.uid for victim in found.pods if victim.uid not in victims]
        everybody = [*found.pods, *self._known(victims)]
        also = self._mates.all_who_leave([victim.uid for victim in everybody])
        elsewhere = [uid for uid in (*added, *also) if self._node_of(uid) != node_name]
        self._ledger.promises.make(pod.uid, found.placement)
        try:
            await self._starter.claim(pod, found, elsewhere, everybody)
        except GpuledgerError as error:
            logger.warning("pod %s: claiming room for it failed: %s", pod, error)
            return {}
        self._counts.preemptions.labels(PreemptionOutcome.BEGUN).inc()
        self._executor.look(pod.uid)
        return {node_name: (*victims, *(uid for uid in added if uid not in elsewhere))}

    def _known(self, pod_uids: Collection[str]) -> list[Pod]:
        """Return those of some pods that hold cards."""
        holders = [self._ledger.holders.of(uid) for uid in pod_uids]
        return [found[0][1].pod for found in holders if found]
