"""Starts a preemption: reserves in memory, stores the reservation, then emits Events."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuledger.ledger.book import Ledger
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.refusal import EventReason
from gpuledger.model.share import Placement, Pod
from gpuledger.reports.history import RecordKind
from gpuledger.workflows.counts import Counts, PreemptionOutcome
from gpuledger.workflows.event_recorder import EventRecorder
from gpuledger.workflows.preemption.chosen_victims import ChosenVictims
from gpuledger.workflows.preemption.claim_room import RoomClaimer
from gpuledger.workflows.preemption.execute import PreemptionExecutor
from gpuledger.workflows.preemption.find_victims import Victims


class Beginnings:
    """Begins preemptions, and passes them on to the carrier."""

    def __init__(
        self,
        ledger: Ledger,
        claimer: RoomClaimer,
        carrier: PreemptionExecutor,
        leavers: ChosenVictims,
        event_recorder: EventRecorder,
        counts: Counts,
    ) -> None:
        self._ledger = ledger
        self._claimer = claimer
        self._carrier = carrier
        self._leavers = leavers
        self._event_recorder = event_recorder
        self._counts = counts

    def are_within_quota(self, rooms: Iterable[tuple[Pod, Victims]]) -> bool:
        """Return whether the namespace of each of some pods may have the room for all of them."""
        by_namespace: dict[str, dict[str, Placement]] = {}
        for pod, found in rooms:
            by_namespace.setdefault(pod.namespace, {})[pod.uid] = found.placement
        return not any(map(self._ledger.quotas.exceeded_together, by_namespace.keys(), by_namespace.values()))

    def promise(self, pod: Pod, found: Victims) -> None:
        """Promise the room in memory: it counts as taken from now on. Those who lose what is promised are told."""
        self._counts.preemptions.labels(PreemptionOutcome.BEGUN).inc()
        for uid in found.displaced:
            self._carrier.give_up(uid, f"pod {pod} of higher priority takes its place")
        self._ledger.promises.make(pod.uid, found.placement)
        self._leavers.choose(pod, [victim.uid for victim in found.pods])

    async def longest_grace_s(self, pods: Collection[Pod]) -> float:
        """Return how long the slowest of some pods may take to end, in seconds."""
        return await self._claimer.longest_grace_s(pods)

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
            self._carrier.give_up(pod.uid, str(error))
            raise
        finally:
            self._ledger.promises.withdraw(pod.uid)  # what is listed counts by itself

    async def nominate(self, pod: Pod, found: Victims) -> None:
        """Name the node on which room is made, before anybody leaves."""
        await self._carrier.nominator.name(pod, found.placement.node_name)

    def go_on(self, pod: Pod, found: Victims) -> None:
        """Say who leaves, and have it carried out."""
        placement = found.placement
        names = ", ".join(map(str, found.pods)) or "no pod; others leave already"
        cards = ", ".join(share.uuid for share in placement.shares)
        sentence = f"evicts for cards {cards} on node {placement.node_name}: {names}"
        self._event_recorder.post_pod_event(pod, False, EventReason.PREEMPTING, sentence)
        self._carrier.trail.note(RecordKind.PREEMPTING, pod, placement.node_name, placement.shares, f"evicts {names}")
        self._carrier.look(pod.uid)
