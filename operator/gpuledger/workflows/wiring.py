"""Builds the operator's parts, each over those below it, and lists who follows what. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.workflows.audit_runs import AuditRuns
from gpuledger.workflows.binding.bind_pod import PodBinder
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.context import Context
from gpuledger.workflows.explain.explain import CheckMessages, Explainer, WhyWaiting
from gpuledger.workflows.explain.nodes import NodeReasons
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.growth.demand import Demand
from gpuledger.workflows.growth.growth import NodeGrowth
from gpuledger.workflows.growth.stand_ins import StandIns
from gpuledger.workflows.growth.templates import Templates
from gpuledger.workflows.inventory import AgentPods, InventoryKeeper, NodesWithoutTopology, StuckKubelets
from gpuledger.workflows.kept_nodes import NodeKeeper
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
from gpuledger.workflows.resource_claims.writes import ResourceClaims


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
    learner: DemandHistory
    observer: ClusterObserver
    explainer: Explainer
    check_messages: CheckMessages
    pod_condition_writer: PodConditionWriter
    why_waiting: WhyWaiting
    unlinked: NodesWithoutTopology
    quotas: NamespaceQuotas
    quota_status: QuotaStatusWriter
    node_keeper: NodeKeeper
    stand_ins: StandIns
    growth: NodeGrowth
    audits: AuditRuns

    async def stop(self) -> None:
        """End all that is under way."""
        await self.context.tasks.stop()
        await self.preemption.executor.worker.stop()
        for part in (
            self.pod_condition_writer,
            self.quota_status,
            self.node_keeper,
            self.stand_ins,
            self.check_messages,
        ):
            await part.stop()


def connect(c: Context) -> Workflows:
    """Return the workflows of an operator, connected."""
    settings, clock = c.settings, c.clock
    claims, lives, agents, starts = ResourceClaims(c), PodLifecycles(c), AgentPods(c), StuckKubelets(c)
    ends, quotas, turns = TerminationReports(c, agents), NamespaceQuotas(c), DevicePluginQueue(c)
    release_times = ReleaseTimes(settings.release_delay_s, settings.longest_release_s)
    departures = ReleaseDeadlines(ends=ends, times=release_times, clock=clock)
    deadlines = Deadlines(clock=clock, least_s=settings.preemption_timeout_s)
    releaser = PodReleaser(c, departures, deadlines, claims.ends)
    binder = PodBinder(c, releaser, turns, claims.writer)
    queue = RoomQueue(c, waiting := WaitingPods(c))
    queues = Queues(c, queue, claims.book)
    gangs = Gangs(c, waiting, queue, lives, binder)
    stays = (queues.check.leaves_with_workload, claims.book.shares_with_others)
    preemption = Preemption(c, waiting, gangs, lives, deadlines, binder, stays)
    ahead = AheadNominator(c, queues.reservations)
    placer = PodPlacer(c, binder, waiting, gangs, queues.reservations, claims, ahead, preemption)
    inventory, adopter, learner = InventoryKeeper(c, agents, starts), Adopter(c, release_times), DemandHistory(c)
    nodes = NodeReasons(c, waiting, gangs.members, lives, placer.held_pod)
    templates = Templates(c, inventory)
    stand_ins = StandIns(c, lambda: observer.synced and c.leadership.is_active())
    demand = Demand(c, waiting, gangs.members, queues.check, queues.reader, queues.nodes, templates)
    growth = NodeGrowth(c, demand, templates, stand_ins, inventory.is_complete)
    explainer, refused = Explainer(c, waiting, gangs, queues, nodes, growth), RefusedByScheduler(c)
    pod_condition_writer = PodConditionWriter(c, explainer.pods)
    followers = (
        *(claims.book, turns, lives, learner, gangs.members, queues.pods, releaser, starts, pod_condition_writer),
        *(placer, placer.costly, preemption, preemption.executor, PodWarner(c), quotas, queues.reservations, refused),
        *(ahead, queues.nodes, demand, templates, stand_ins, growth, inventory, ends, adopter),
        keeper := NodeKeeper(c, lambda: observer.synced and c.leadership.is_active()),
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
        learner=learner,
        observer=observer,
        explainer=explainer,
        check_messages=CheckMessages(c, queues.check, Reclaimer(c, queues, lives), explainer.workloads),
        pod_condition_writer=pod_condition_writer,
        why_waiting=WhyWaiting(c, waiting, gangs.members, refused, queues.pods.queue_of),
        unlinked=NodesWithoutTopology(c.ledger, c.policy),
        quotas=quotas,
        node_keeper=keeper,
        stand_ins=stand_ins,
        growth=growth,
        quota_status=QuotaStatusWriter(c, quotas, lambda: observer.synced and c.leadership.is_active()),
        audits=AuditRuns(),
    )
