"""The operator's parts, connected. Nothing runs yet: startup.py does that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gpuledger.controller.events import Events
from gpuledger.controller.extender_server import ExtenderServer
from gpuledger.controller.garbage import Garbage
from gpuledger.controller.kopf_lists import KopfLists
from gpuledger.controller.metrics import Metrics
from gpuledger.controller.scheduler_health import SchedulerHealth
from gpuledger.controller.view_source import LedgerSource, operators_source
from gpuledger.controller.vocabularies import words_of
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.store import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.placement.choose import Chooser
from gpuledger.placement.policy import Policy, Preference
from gpuledger.settings import Settings
from gpuledger.workflows.adopt import Adopter
from gpuledger.workflows.agent_pods import AgentPods
from gpuledger.workflows.carry_out import PreemptionCarrier
from gpuledger.workflows.claim_room import RoomClaimer
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.departures import Departures, ReleaseTimes
from gpuledger.workflows.explain_pod import PodExplainer
from gpuledger.workflows.find_victims import VictimFinder
from gpuledger.workflows.inventory import InventoryKeeper
from gpuledger.workflows.journal import GATHER_S, Journal
from gpuledger.workflows.late_starts import LateStarts
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.learn import Learner
from gpuledger.workflows.observe_cluster import ClusterObserver
from gpuledger.workflows.place_pod import PodPlacer
from gpuledger.workflows.placement_settings import PlacementSettings
from gpuledger.workflows.plugin_turns import PluginTurns
from gpuledger.workflows.pod_ends import PodEnds
from gpuledger.workflows.pod_lives import PodLives
from gpuledger.workflows.preempt import Preemption, PreemptionSettings
from gpuledger.workflows.release_pod import PodReleaser
from gpuledger.workflows.tell_waiting import WaitingTeller
from gpuledger.workflows.trail import Trail
from gpuledger.workflows.unlinked_nodes import UnlinkedNodes
from gpuledger.workflows.wake_up import WaitingPods
from gpuledger.workflows.who_preempts import WhoPreempts
from gpuledger.workflows.why_waiting import WhyWaiting


@dataclass(frozen=True, slots=True)
class Operator:
    """The parts that run."""

    client: KubeClient
    kopf_lists: KopfLists
    leadership: Leadership
    observer: ClusterObserver
    agents: AgentPods
    placer: PodPlacer
    waiting: WaitingPods
    preemption: Preemption
    who_preempts: WhoPreempts
    unlinked: UnlinkedNodes
    trail: Trail
    view_source: LedgerSource
    waiting_teller: WaitingTeller
    room_has_changed: asyncio.Event
    counts: Counts
    garbage: Garbage
    server: ExtenderServer
    settings: Settings


def build_operator(client: KubeClient, settings: Settings, host: str | None = None) -> Operator:
    """Connect the parts. Nothing runs yet. With a host name, follow the Lease of the kube-scheduler there."""
    ledger, counts, store = Ledger(), Counts(), KubeStore(client)
    leadership = Leadership(host)
    policy = Policy(nodes=Preference(settings.node_policy), cards=Preference(settings.card_policy))
    chooser = Chooser(ledger, policy)
    journal = Journal(ledger, store, GATHER_S)
    waiting = WaitingPods(ledger, chooser, store, counts, leadership.is_active)
    who_preempts = WhoPreempts.by_setting(settings.preemption)
    placement = PlacementSettings(
        words=words_of(settings),
        hold_ttl_s=settings.hold_ttl_s,
        bind_timeout_s=settings.bind_answer_s,
        nodes_offered=settings.nodes_offered,
        who_preempts=who_preempts,
    )
    clock, trail = asyncio.get_running_loop().time, Trail(settings.trail_kept)
    agents, starts = AgentPods(), LateStarts(ledger, store, settings.start_timeout_s)
    ends = PodEnds(agents)
    release_times = ReleaseTimes(settings.release_delay_s, settings.longest_release_s)
    departures = Departures(ends, release_times)
    releaser = PodReleaser(ledger, journal, store, counts, placement.request, departures, leadership.is_active, trail)
    ends.on_news = releaser.word_of_node
    turns = PluginTurns(ledger, placement.words, store, counts, settings.plugin_timeout_s, leadership.is_active)
    placer = PodPlacer(ledger, chooser, journal, store, releaser, waiting, turns, placement, counts, clock, trail)
    events, lives = Events(store), PodLives()
    carrier = PreemptionCarrier(
        ledger,
        journal,
        store,
        waiting,
        lives,
        events,
        counts,
        settings.preempt_despite_budgets,
        placer.is_binding,
        leadership.is_active,
        trail,
    )
    preemption = Preemption(
        ledger,
        RoomClaimer(ledger, journal, store, lives, settings.preemption_timeout_s),
        waiting,
        VictimFinder(ledger, policy, lives, store),
        carrier,
        events,
        counts,
        PreemptionSettings(who_preempts, settings.preempt_despite_budgets),
        placement.request,
        leadership.is_active,
    )
    placer.before_filter = carrier.room_comes
    placer.on_refused = preemption.refused
    inventory = InventoryKeeper(ledger, journal, store, counts, events, agents, starts, leadership.is_active)
    journal.on_lost = inventory.recheck
    adopter = Adopter(
        ledger,
        journal,
        store,
        placement.facts,
        placement.stranger,
        settings.adopt_pods,
        settings.scheduler_names,
        release_times,
        leadership.is_active,
        trail,
    )
    observer = ClusterObserver(
        ledger,
        inventory,
        releaser,
        ends,
        placer,
        waiting,
        turns,
        adopter,
        starts,
        Learner(ledger, chooser, placement.request),
        lives,
        preemption,
        store,
        placement.request,
        placement.words,
        settings.scheduler_names,
        counts,
    )
    explainer = PodExplainer(
        ledger, waiting, store, placement.request, settings.scheduler_names, placer.held_pod, lives
    )
    waiting_teller = WaitingTeller(explainer, store, events, settings.tell_waiting_after_s, leadership.is_active)
    trail.listeners.append(waiting_teller.observe)
    observer.on_pending, observer.on_waits_no_more = waiting_teller.pending, waiting_teller.forget
    why_waiting = WhyWaiting(ledger, chooser, waiting)
    view_source = operators_source(ledger, why_waiting, explainer, trail)
    unlinked = UnlinkedNodes(ledger, policy)
    metrics = Metrics(
        ledger,
        chooser,
        counts,
        journal.counts,
        waiting,
        adopter,
        unlinked,
        is_active=leadership.is_active,
        is_synced=lambda: observer.synced,
        pending_by_reason=why_waiting.pods_by_reason,
        ledger_failures=lambda: journal.counts.failures,
        per_card=settings.metrics_per_card,
        per_pod=settings.metrics_per_pod,
        compatibility=settings.metrics_compatibility,
    )
    journal.counts.on_write = metrics.ledger_written
    garbage = Garbage(metrics.garbage_seconds.observe)
    neighbour = SchedulerHealth(settings.scheduler_livez_url)
    server = ExtenderServer(placer, preemption, metrics, counts, lambda: observer.synced, neighbour)
    room_has_changed = asyncio.Event()
    ledger.on_change = waiting.on_newcomer = room_has_changed.set
    return Operator(
        client,
        KopfLists(),
        leadership,
        observer,
        agents,
        placer,
        waiting,
        preemption,
        who_preempts,
        unlinked,
        trail,
        view_source,
        waiting_teller,
        room_has_changed,
        counts,
        garbage,
        server,
        settings,
    )
