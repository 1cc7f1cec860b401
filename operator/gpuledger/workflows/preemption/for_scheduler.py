"""kube-scheduler's own preemption: it asks which of its candidates help, and evicts by itself.

It knows nothing of cards, nor of gangs: whose mates would be of no use any more leaves with them, those on the same
node by kube-scheduler's hand, the others by the operator's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from gpuledger.formats.kubernetes.pod import pod_identity
from gpuledger.formats.scheduler.extender import PreemptArguments
from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Pod
from gpuledger.placement.policy import StepBudget
from gpuledger.placement.preemption.victims import WORK_LIMIT
from gpuledger.workflows.counts import Counts, PreemptionOutcome
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.begin import Beginnings
from gpuledger.workflows.preemption.evicted_together import EvictedTogether
from gpuledger.workflows.preemption.execute import PreemptionExecutor
from gpuledger.workflows.preemption.find_victims import VictimFinder, Victims
from gpuledger.workflows.preemption.preemption_mode import PreemptionSettings

logger = logging.getLogger(__name__)


HARD_STEPS = 2 * WORK_LIMIT
"""Steps for a pod of several containers while kube-scheduler waits for the answer: some 0.2 s."""


class SchedulersPreemption:
    """Answers kube-scheduler."""

    def __init__(
        self,
        ledger: Ledger,
        waiting: WaitingPods,
        finder: VictimFinder,
        carrier: PreemptionExecutor,
        beginnings: Beginnings,
        mates: EvictedTogether,
        counts: Counts,
        settings: PreemptionSettings,
        read_request: Callable[[Json], PodRequest | None],
        is_fresh: Callable[[str], bool],
    ) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._finder = finder
        self._carrier = carrier
        self._beginnings = beginnings
        self._mates = mates
        self._counts = counts
        self._settings = settings
        self._read_request = read_request
        self._is_fresh = is_fresh

    async def preempt(self, arguments: PreemptArguments) -> dict[str, tuple[str, ...]]:
        """Return the node, one at most, on which these victims and those that are added make room for the pod.

        kube-scheduler evicts them itself. The pod's cards there are claimed before it is told. None for a pod that
        waits for its gang: room for all of it is made at once, or none.
        Raises BadInput for a pod that can't be read.
        """
        pod, request = pod_identity(arguments.pod), self._read_request(dict(arguments.pod))
        if self._mates.waits_for_its_gang(pod.uid):
            return {}
        arguments = self._with_mates(pod, arguments)
        if request is None:
            return dict(arguments.victims)
        if self._ledger.promises.is_made(pod.uid) or self._ledger.holders_of(pod.uid):
            self._carrier.found_no_node(pod.uid)
            return {}
        if self._settings.who.operator and await self._finds_its_own(pod, request):
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
        holders = self._ledger.holders_of(pod_uid)
        return holders[0][0].node_name if holders else ""

    async def _completed(
        self, pod: Pod, request: PodRequest, arguments: PreemptArguments, violations: int
    ) -> Victims | None:
        """Return who has to leave beside kube-scheduler's victims, on a node where so many of these are protected.

        Up to Kubernetes 1.37 an answer without any victim is an error.
        """
        who, victims = self._settings.who, arguments.victims
        names = [n for n in victims if arguments.violations[n] == violations and (victims[n] or who.scheduler)]
        names.sort(key=lambda name: (len(victims[name]), name))
        found = await self._finder.find(pod, request, names, victims, StepBudget(HARD_STEPS))
        if found is None or (found.pods and not (who.operator or who.scheduler)):
            return None
        allowed = who.scheduler or self._settings.despite_budgets or not found.cost[0]
        return found if allowed and self._beginnings.are_within_quota([(pod, found)]) else None

    async def _finds_its_own(self, pod: Pod, request: PodRequest) -> bool:
        """Return whether the operator can make room by itself, where nothing but cards is short."""
        waiting = self._waiting.lookup(pod.uid)
        if waiting is None or not waiting.node_names or not self._is_fresh(pod.uid):
            return False
        found = await self._finder.find(pod, request, sorted(waiting.node_names), hard=StepBudget(HARD_STEPS))
        return found is not None and (not found.cost[0] or self._settings.despite_budgets)

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
            await self._beginnings.claim(pod, found, elsewhere, everybody)
        except GpuledgerError as error:
            logger.warning("pod %s: claiming room for it failed: %s", pod, error)
            return {}
        self._counts.preemptions.labels(PreemptionOutcome.BEGUN).inc()
        self._carrier.look(pod.uid)
        return {node_name: (*victims, *(uid for uid in added if uid not in elsewhere))}

    def _known(self, pod_uids: Collection[str]) -> list[Pod]:
        """Return those of some pods that hold cards."""
        holders = [self._ledger.holders_of(uid) for uid in pod_uids]
        return [found[0][1].pod for found in holders if found]
