"""All workflows of one operator, and who is called when something happens to one of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gpuledger.ledger.book import Ledger
from gpuledger.placement.choose import Chooser
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.binding.nominate_ahead import AheadNominator
from gpuledger.workflows.binding.place_pod import PodPlacer
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.demand_history import DemandHistory
from gpuledger.workflows.gangs.gang_report import GangReporter
from gpuledger.workflows.gangs.gang_trial import GangTrials
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.kept_places import KeptPlaces
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.gangs.pod_groups import PodGroups
from gpuledger.workflows.inventory.inventory import AgentPods, InventoryKeeper, NodesWithoutTopology
from gpuledger.workflows.inventory.stuck_kubelets import StuckKubelets
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.observe_cluster import ClusterObserver
from gpuledger.workflows.pending.explain_pod import PodExplainer
from gpuledger.workflows.pending.pod_condition import PodConditionWriter
from gpuledger.workflows.pending.pod_requeuer import PodRequeuer
from gpuledger.workflows.pending.trail import Trail
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.pending.why_waiting import WhyWaiting
from gpuledger.workflows.preemption.execute import PreemptionExecutor
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles
from gpuledger.workflows.preemption.preempt import Preemption
from gpuledger.workflows.preemption.preempt_gang import GangPreemption
from gpuledger.workflows.preemption.preemption_mode import PreemptionMode
from gpuledger.workflows.queues.explain_workload import WorkloadExplainer
from gpuledger.workflows.queues.wiring import Queues
from gpuledger.workflows.quota.namespace_quotas import NamespaceQuotas, QuotaStatusWriter
from gpuledger.workflows.release.deadlines import TerminationReports
from gpuledger.workflows.release.release import PodReleaser
from gpuledger.workflows.repair.adopt import Adopter
from gpuledger.workflows.resource_claims.claims import ClaimBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflows:
    """All of them, over one ledger in memory."""

    ledger: Ledger
    counts: Counts
    leadership: Leadership
    trail: Trail
    chooser: Chooser
    journal: Journal
    claim_book: ClaimBook
    claim_pod_waker: PodRequeuer
    agents: AgentPods
    starts: StuckKubelets
    ends: TerminationReports
    releaser: PodReleaser
    turns: DevicePluginQueue
    waiting: WaitingPods
    placer: PodPlacer
    ahead: AheadNominator
    gangs: Gangs
    members: Members
    kept_places: KeptPlaces
    pod_groups: PodGroups
    gang_trials: GangTrials
    gang_reporter: GangReporter
    lives: PodLifecycles
    carrier: PreemptionExecutor
    preemption: Preemption
    gang_preemption: GangPreemption
    who_preempts: PreemptionMode
    inventory: InventoryKeeper
    adopter: Adopter
    learner: DemandHistory
    observer: ClusterObserver
    explainer: PodExplainer
    pod_condition_writer: PodConditionWriter
    why_waiting: WhyWaiting
    unlinked: NodesWithoutTopology
    quotas: NamespaceQuotas
    quota_status: QuotaStatusWriter
    queues: Queues
    workload_explainer: WorkloadExplainer
    room_has_changed: asyncio.Event
    """Set whenever a pod that waits may have room now."""


def wired(workflows: Workflows) -> Workflows:
    """Register the event listeners."""
    ledger = workflows.ledger
    ledger.on_change.append(workflows.room_has_changed.set)
    ledger.on_opened.append(workflows.adopter.reconsider)
    ledger.quotas.on_room.append(workflows.gangs.may_have_more)
    ledger.strangers.on_change.append(workflows.inventory.reconsider)
    workflows.agents.on_change.append(workflows.ends.agent_has_changed)
    workflows.agents.on_change.append(workflows.inventory.reconsider)
    workflows.starts.on_change.append(workflows.inventory.reconsider)
    workflows.ends.on_news.append(workflows.releaser.word_of_node)
    workflows.journal.on_lost.append(workflows.inventory.recheck)
    workflows.gangs.on_due.append(workflows.room_has_changed.set)
    workflows.releaser.on_not_bound.append(workflows.gangs.is_not_bound)
    workflows.members.on_left.append(workflows.kept_places.member_left)
    workflows.members.on_gone.append(workflows.kept_places.member_waits_no_more)
    workflows.members.on_bound.append(workflows.kept_places.others_leave)
    ledger.on_stored.append(workflows.kept_places.stored)
    workflows.waiting.on_newcomer.append(workflows.room_has_changed.set)
    workflows.placer.before_filter = workflows.carrier.room_comes
    workflows.placer.on_refused.append(workflows.preemption.refused)
    workflows.gangs.on_refused.append(workflows.gang_preemption.refused)
    workflows.lives.on_newcomer.append(workflows.preemption.newcomer)
    workflows.queues.check.on_due.append(workflows.room_has_changed.set)
    workflows.queues.objects.on_change.append(workflows.room_has_changed.set)
    ledger.quotas.on_room.append(workflows.queues.check.may_have_more)
    workflows.queues.reservations.for_gang.append(workflows.kept_places.keep_for)
    workflows.placer.on_refused.append(workflows.queues.lost.refused)
    workflows.gangs.on_refused.append(workflows.queues.lost.refused)
    workflows.trail.gang_of = workflows.gang_trials.gang_of
    workflows.trail.on_record.append(workflows.pod_condition_writer.observe)
    return workflows
