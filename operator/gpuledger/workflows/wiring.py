"""Builds the operator's parts, each over those below it, and lists who follows what. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gpuledger.workflows.accounts import Accounts
from gpuledger.workflows.audit_runs import AuditRuns
from gpuledger.workflows.binding.bind_pod import PodBinder
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.budgets import Budgets
from gpuledger.workflows.card_evictions import Evictions
from gpuledger.workflows.conflicts import ConflictingShares
from gpuledger.workflows.context import Context
from gpuledger.workflows.explain.explain import CheckMessages, Explainer, WhyWaiting
from gpuledger.workflows.explain.nodes import NodeReasons
from gpuledger.workflows.failures import FailedCards
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.volcano_status import VolcanoStatus
from gpuledger.workflows.growth.demand import WhoWaits
from gpuledger.workflows.growth.growth import GrowthParts
from gpuledger.workflows.idle_shares import IdleShares
from gpuledger.workflows.inventory import AgentPods, InventoryKeeper, NodesWithoutTopology, StuckKubelets
from gpuledger.workflows.kept_nodes import NodeKeeper
from gpuledger.workflows.kept_seats import KeptSeats
from gpuledger.workflows.lifecycles import Deadlines, PodLifecycles
from gpuledger.workflows.observe_cluster import ClusterObserver, DemandHistory
from gpuledger.workflows.pending.pod_condition import PodConditionWriter, PodWarner, RefusedByScheduler
from gpuledger.workflows.pending.queue import RoomQueue
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.placing.nominate_ahead import AheadNominator
from gpuledger.workflows.placing.place_pod import PodPlacer
from gpuledger.workflows.preemption.preempt import Preemption
from gpuledger.workflows.queues.card_check import Queues
from gpuledger.workflows.queues.reclaim import Reclaimer
from gpuledger.workflows.quota import NamespaceQuotas, QuotaStatusWriter
from gpuledger.workflows.release import PodReleaser, ReleaseDeadlines, ReleaseTimes, TerminationReports
from gpuledger.workflows.repair import Adopter
from gpuledger.workflows.reservations import Reservations
from gpuledger.workflows.resource_claims.writes import ResourceClaims

MayWrite = Callable[[], bool]


class Accounting:
    """What namespaces have had, may have, and do not use."""

    def __init__(
        self, c: Context, quotas: NamespaceQuotas, agents: AgentPods, evictions: Evictions, may_write: MayWrite
    ) -> None:
        self.accounts = Accounts(c, may_write)
        self.budgets = Budgets(c, quotas, self.accounts, evictions, may_write)
        self.quota_status = QuotaStatusWriter(c, quotas, may_write, self.budgets.hours_shown)
        self.budgets.on_change.append(self.quota_status.look_at)
        self.idle = IdleShares(c, agents, evictions, may_write)
        self.followers = (self.accounts, self.budgets, self.idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflows:
    """All parts that others than their neighbours ask, over one context."""

    context: Context
    claims: ResourceClaims
    agents: AgentPods
    starts: StuckKubelets
    ends: TerminationReports
    lives: PodLifecycles
    releaser: PodReleaser
    turns: DevicePluginQueue
    waiting: WaitingPods
    queue: RoomQueue
    gangs: Gangs
    queues: Queues
    preemption: Preemption
    ahead: AheadNominator
    placer: PodPlacer
    inventory: InventoryKeeper
    adopter: Adopter
    observer: ClusterObserver
    explainer: Explainer
    check_messages: CheckMessages
    pod_condition_writer: PodConditionWriter
    why_waiting: WhyWaiting
    unlinked: NodesWithoutTopology
    quotas: NamespaceQuotas
    failures: FailedCards
    seats: KeptSeats
    reservations: Reservations
    growth: GrowthParts
    accounting: Accounting
    audits: AuditRuns = field(default_factory=AuditRuns)

    def may_write(self) -> bool:
        """Return whether this operator is the active one, and has read everything."""
        return _may_write(self.context, lambda: self.observer)

    async def stop(self) -> None:
        """End all that is under way."""
        await self.context.tasks.stop()
        await self.preemption.executor.worker.stop()
        for part in (*self.observer.followers, self.accounting.quota_status, self.check_messages):
            await part.stop()


def _may_write(context: Context, observer: Callable[[], ClusterObserver]) -> bool:
    return observer().synced and context.leadership.is_active()


def connect(c: Context) -> Workflows:
    """Return the workflows of an operator, connected."""
    observer: ClusterObserver
    settings, clock, may_write = c.settings, c.clock, partial(_may_write, c, lambda: observer)
    claims, lives, agents, starts = ResourceClaims(c), PodLifecycles(c), AgentPods(c), StuckKubelets(c)
    ends, quotas, turns = TerminationReports(c, agents), NamespaceQuotas(c), DevicePluginQueue(c)
    release_times = ReleaseTimes(settings.release_delay_s, settings.longest_release_s)
    departures = ReleaseDeadlines(ends=ends, times=release_times, clock=clock)
    deadlines = Deadlines(clock=clock, least_s=settings.preemption_timeout_s)
    binder = PodBinder(c, releaser := PodReleaser(c, departures, deadlines, claims.ends), turns, claims.writer)
    queue, seats = RoomQueue(c, waiting := WaitingPods(c)), KeptSeats(c, may_write)
    queues = Queues(c, queue, claims.book, seats)
    reservations = Reservations(c, queue, queues.nodes, claims.book, seats, may_write)
    gangs, ahead = Gangs(c, waiting, queue, lives, binder), AheadNominator(c, seats.takers)
    stays = (queues.check.leaves_with_workload, claims.book.shares_with_others)
    preemption = Preemption(c, waiting, gangs, lives, deadlines, binder, stays)
    placer = PodPlacer(c, binder, waiting, gangs, seats.takers, claims, ahead, preemption)
    inventory, adopter, learner = InventoryKeeper(c, agents, starts), Adopter(c, release_times), DemandHistory(c)
    nodes = NodeReasons(c, waiting, gangs.members, lives, placer.held_pod)
    growth = GrowthParts(c, WhoWaits(waiting, gangs.members, reservations), queues, inventory, may_write, preemption)
    explainer, refused = Explainer(c, waiting, gangs, queues, nodes, growth.nodes), RefusedByScheduler(c)
    conditions, evictions = PodConditionWriter(c, explainer.pods), Evictions(c, lives, preemption.together)
    accounting = Accounting(c, quotas, agents, evictions, may_write)
    failures, conflicts = FailedCards(c, agents, evictions), ConflictingShares(c, lives, evictions)
    followers = (
        *(claims.book, turns, lives, learner, gangs.members, queues.pods, releaser, starts, conditions),
        *(failures, conflicts, placer, placer.costly, preemption, preemption.executor, PodWarner(c), quotas, refused),
        *(seats.takers, ahead, queues.nodes, *growth.followers, inventory, ends, adopter, seats.store),
        *(reservations.status, NodeKeeper(c, may_write), VolcanoStatus(c, gangs, may_write), *accounting.followers),
    )
    observer = ClusterObserver(c, followers, inventory, adopter, starts, placer, waiting, gangs.members)
    return Workflows(
        context=c,
        claims=claims,
        agents=agents,
        starts=starts,
        ends=ends,
        lives=lives,
        releaser=releaser,
        turns=turns,
        waiting=waiting,
        queue=queue,
        gangs=gangs,
        queues=queues,
        preemption=preemption,
        ahead=ahead,
        placer=placer,
        inventory=inventory,
        adopter=adopter,
        observer=observer,
        explainer=explainer,
        check_messages=CheckMessages(c, queues.check, Reclaimer(c, queues, lives), explainer.workloads),
        pod_condition_writer=conditions,
        why_waiting=WhyWaiting(c, waiting, gangs.members, refused, queues.pods.queue_of),
        unlinked=NodesWithoutTopology(c.ledger, c.policy),
        quotas=quotas,
        failures=failures,
        growth=growth,
        accounting=accounting,
        seats=seats,
        reservations=reservations,
    )
