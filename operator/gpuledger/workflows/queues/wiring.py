"""The parts that deal with Kueue, connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import GangPlanner
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.pending.explain_pod import PodExplainer
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles
from gpuledger.workflows.queues.card_check import CardCheck
from gpuledger.workflows.queues.check_message import CheckMessages
from gpuledger.workflows.queues.check_writer import CheckWriter
from gpuledger.workflows.queues.explain_workload import WorkloadExplainer
from gpuledger.workflows.queues.kueue_objects import KueueObjects
from gpuledger.workflows.queues.nodes_by_rules import NodesByRules
from gpuledger.workflows.queues.queued_workload import SeatReader
from gpuledger.workflows.queues.reclaim import Reclaimer
from gpuledger.workflows.queues.requeue import WorkloadRequeuer
from gpuledger.workflows.queues.reservations import Reservations
from gpuledger.workflows.queues.workload_pods import WorkloadPods
from gpuledger.workflows.resource_claims.claims import ClaimBook
from gpuledger.workflows.resource_claims.kept_objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """All of them. Where the settings do not turn Kueue on, they know nothing and cost next to nothing."""

    nodes: NodesByRules
    pods: WorkloadPods
    objects: KueueObjects
    reader: SeatReader
    reservations: Reservations
    writer: CheckWriter
    check: CardCheck
    lost: WorkloadRequeuer
    listed: asyncio.Event
    """Set when workloads were read once, or there are none."""

    def next_due_s(self) -> float | None:
        """Return when something is to be done though nothing has changed; None: never, as far as is known."""
        due = [due_s for due_s in (self.check.next_due_s(), self.lost.next_due_s()) if due_s is not None]
        return min(due, default=None)

    async def give_room(self) -> bool:
        """Give room to workloads that wait for it; return whether some have to be tried in the next turn."""
        self.lost.retry_overdue()
        return await self.check.give_room()


def connect_queues(
    ledger: Ledger,
    chooser: Chooser,
    waiting: WaitingPods,
    read_request: Callable[[Json], PodRequest | None],
    store: KubeStore,
    claims: ClaimBook,
    settings: Settings,
    counts: Counts,
    clock: Clock,
    is_active: Callable[[], bool],
) -> Queues:
    """Return the parts that others need; see `follow_up` for the rest."""
    nodes, pods, objects = NodesByRules(settings.kueue), WorkloadPods(), KueueObjects(clock)
    reader = SeatReader(read_request, objects, nodes, claims, clock)
    reservations, writer = Reservations(ledger), CheckWriter(store, counts, clock, is_active)
    check = CardCheck(
        ledger=ledger,
        planner=GangPlanner(ledger, chooser),
        waiting=waiting,
        objects=objects,
        reservations=reservations,
        pods=pods,
        reader=reader,
        writer=writer,
        reserve_s=settings.kueue_reserve_s,
        clock=clock,
    )
    claims.on_appeared.append(lambda kind, name: None if kind is Kind.CLAIMS else check.on_due())
    lost = WorkloadRequeuer(check, pods, writer, settings.kueue_retry_s, clock)
    return Queues(
        nodes=nodes,
        pods=pods,
        objects=objects,
        reader=reader,
        reservations=reservations,
        writer=writer,
        check=check,
        lost=lost,
        listed=asyncio.Event(),
    )


def follow_up(
    queues: Queues,
    ledger: Ledger,
    explainer: PodExplainer,
    lives: PodLifecycles,
    read_request: Callable[[Json], PodRequest | None],
    store: KubeStore,
    clock: Clock,
) -> WorkloadExplainer:
    """Have something done about workloads for which there is no room; return what tells people about workloads."""
    take_back = Reclaimer(
        ledger, queues.check, queues.reservations, queues.pods, lives, queues.objects, queues.writer, clock
    )
    no_room = CheckMessages(ledger, queues.check, take_back, explainer, clock)
    queues.check.on_no_room.append(no_room.found)
    return WorkloadExplainer(store, queues.check, queues.reader, no_room, read_request)
