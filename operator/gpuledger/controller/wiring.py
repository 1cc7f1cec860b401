"""The operator: its workflows, and what serves and shows them. Nothing runs yet: see kopf_frame.py."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.settings import Settings
from gpuledger.controller.events import Events
from gpuledger.controller.extender_server import ExtenderServer
from gpuledger.controller.lists_read import ListsRead
from gpuledger.controller.scheduler_health import SchedulerHealth
from gpuledger.controller.telemetry.gc_tuning import GcTuning
from gpuledger.controller.telemetry.metrics import Metrics
from gpuledger.controller.web.view_source import LedgerSource, operators_source
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.store import KubeStore
from gpuledger.model.clock import Clock
from gpuledger.workflows.journal.journal import GATHER_S
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.wiring import connect
from gpuledger.workflows.workflows import Workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The parts that run."""

    client: KubeClient
    settings: Settings
    clock: Clock
    workflows: Workflows
    lists: ListsRead
    view_source: LedgerSource
    gc_tuning: GcTuning
    server: ExtenderServer


def build_operator(client: KubeClient, settings: Settings, clock: Clock, host_name: str | None = None) -> Operator:
    """Connect the parts. Nothing runs yet. With a host name, follow the Lease of the kube-scheduler there."""
    store = KubeStore(client)
    workflows = connect(
        store=store,
        settings=settings,
        dialects=dialects_of(settings),
        events=Events(store),
        leadership=Leadership(host_name),
        clock=clock,
        gather_s=GATHER_S,
    )
    metrics = Metrics(
        workflows.ledger,
        workflows.chooser,
        workflows.counts,
        workflows.journal.counts,
        workflows.waiting,
        workflows.adopter,
        workflows.unlinked,
        is_active=workflows.leadership.is_active,
        is_synced=lambda: workflows.observer.synced,
        pending_by_reason=workflows.why_waiting.pods_by_reason,
        members=workflows.members,
        workloads_by_state=workflows.queues.check.by_state,
        per_card=settings.metrics_per_card,
        per_pod=settings.metrics_per_pod,
        compatibility=settings.metrics_compatibility,
    )
    view_source = operators_source(
        workflows.ledger,
        workflows.why_waiting,
        workflows.explainer,
        workflows.gang_reporter,
        workflows.workload_explainer,
        workflows.trail,
        workflows.leadership.active_elsewhere,
        workflows.gang_trials.gang_of,
        workflows.agents,
    )
    workflows.ledger.on_stored.append(view_source.note)
    workflows.members.on_joined.append(view_source.note_pod)
    server = ExtenderServer(
        placer=workflows.placer,
        preemption=workflows.preemption,
        metrics=metrics,
        counts=workflows.counts,
        is_ready=lambda: workflows.observer.synced,
        scheduler=SchedulerHealth(settings.scheduler_livez_url),
    )
    lists = ListsRead()
    workflows.journal.reader.on_older.append(lists.again.set)  # a comparison with full lists finds out the rest
    return Operator(
        client=client,
        settings=settings,
        clock=clock,
        workflows=workflows,
        lists=lists,
        view_source=view_source,
        gc_tuning=GcTuning(metrics.garbage_seconds.observe),
        server=server,
    )
