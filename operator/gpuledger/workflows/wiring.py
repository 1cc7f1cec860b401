"""Builds the operator's components and subscribes them to each other. Starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import GroupPlanner
from gpuledger.placement.policy import Policy, Preference
from gpuledger.workflows.binding.bind_pod import BindFailures, PodBinder
from gpuledger.workflows.binding.device_plugin_queue import DevicePluginQueue
from gpuledger.workflows.binding.nominate_ahead import AheadNominator, PlacementSettings
from gpuledger.workflows.binding.place_pod import PodPlacer
from gpuledger.workflows.gangs.gangs import Gangs
from gpuledger.workflows.gangs.members import Members
from gpuledger.workflows.gangs.plans import COME_S, GangPlans, KeptPlaces
from gpuledger.workflows.gangs.pod_groups import PodGroups
from gpuledger.workflows.gangs.report import GangReporter, GangTrials, follow_gangs
from gpuledger.workflows.inventory import AgentPods, InventoryKeeper, NodesWithoutTopology, StuckKubelets
from gpuledger.workflows.journal.journal import Journal
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.list_and_watch import WatchedUpTo
from gpuledger.workflows.namespace_allowances import CostlyQuestions, SelectorAccounts
from gpuledger.workflows.observe_cluster import ClusterObserver, HostTracker
from gpuledger.workflows.pending.explain_pod import PodExplainer, WhyWaiting
from gpuledger.workflows.pending.pod_condition import PodConditionWriter, PodWarner, RefusedByScheduler
from gpuledger.workflows.pending.requeue import ClaimRequeuer, GangRequeuer, WorkloadRequeuer
from gpuledger.workflows.pending.trail import DemandHistory, Trail
from gpuledger.workflows.pending.waiting_pods import PodRequeuer, WaitingPods
from gpuledger.workflows.preemption.execute import Deadlines, PreemptionExecutor
from gpuledger.workflows.preemption.find_for_gang import GangVictimFinder
from gpuledger.workflows.preemption.find_victims import ChosenVictims, EvictedTogether, PodLifecycles, VictimFinder
from gpuledger.workflows.preemption.for_scheduler import Beginnings, PreemptionMode, PreemptionSettings, RoomClaimer
from gpuledger.workflows.preemption.gang_rooms import GangRooms
from gpuledger.workflows.preemption.preempt import Preemption
from gpuledger.workflows.preemption.preempt_gang import GangPreemption, SimilarMembers
from gpuledger.workflows.queues.card_check import CardCheck, CheckWriter
from gpuledger.workflows.queues.reclaim import CheckMessages, Reclaimer, WorkloadExplainer
from gpuledger.workflows.queues.reservations import Reservations
from gpuledger.workflows.queues.workloads import KueueObjects, NodesByRules, SeatReader, WorkloadPods
from gpuledger.workflows.quota import NamespaceQuotas, QuotaFence, QuotaGate, QuotaStatusWriter
from gpuledger.workflows.release import PodReleaser, ReleaseDeadlines, ReleaseTimes, TerminationReports
from gpuledger.workflows.repair import Adopter
from gpuledger.workflows.reporting import Counts, EventRecorder
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind
from gpuledger.workflows.resource_claims.writes import ClaimEnds, ClaimStatusWriter, ClaimWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The parts that deal with Kueue. Where it is not turned on, they know nothing and cost next to nothing."""

    nodes: NodesByRules
    pods: WorkloadPods
    objects: KueueObjects
    reader: SeatReader
    reservations: Reservations
    writer: CheckWriter
    check: CardCheck
    lost: WorkloadRequeuer

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
        planner=GroupPlanner(ledger, chooser),
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
    ledger.seats.on_displaced.append(workflows.waiting.displaced)
    ledger.seats.on_displaced.append(workflows.gangs.displaced)
    ledger.seats.on_displaced.append(workflows.queues.check.displaced)
    workflows.waiting.on_newcomer.append(workflows.room_has_changed.set)
    workflows.placer.before_filter = workflows.carrier.room_comes
    workflows.placer.on_refused.append(workflows.preemption.refused)
    workflows.gangs.on_refused.append(workflows.gang_preemption.refused)
    workflows.lives.on_newcomer.append(workflows.preemption.newcomer)
    workflows.queues.check.on_due.append(workflows.room_has_changed.set)
    workflows.queues.objects.on_change.append(workflows.room_has_changed.set)
    ledger.quotas.on_room.append(workflows.queues.check.may_have_more)
    workflows.placer.on_refused.append(workflows.queues.lost.refused)
    workflows.gangs.on_refused.append(workflows.queues.lost.refused)
    workflows.trail.gang_of = workflows.gang_trials.gang_of
    workflows.trail.on_record.append(workflows.pod_condition_writer.observe)
    return workflows


def connect(
    store: KubeStore,
    settings: Settings,
    dialects: Dialects,
    events: EventRecorder,
    leadership: Leadership,
    clock: Clock,
    gather_s: float,
) -> Workflows:
    """Return the workflows of an operator, connected. `gather_s` is how long the journal waits for more of a card."""
    ledger, counts, cards_watched = Ledger(settings.gang_zones), Counts(), WatchedUpTo()
    claim_book = ClaimBook(ledger, counts, store, settings.all_drivers_scheduler_name)
    accounts = SelectorAccounts(clock)
    claim_book.payer_of = accounts.of
    claim_status = ClaimStatusWriter(store, claim_book)
    claim_pod_waker = PodRequeuer(store, counts)
    trail = Trail(clock=clock, kept=settings.trail_kept)
    is_active = leadership.is_active
    policy = Policy(*map(Preference, settings.policies))
    chooser = Chooser(ledger, policy)
    journal = Journal(ledger=ledger, store=store, clock=clock, gather_s=gather_s)
    claims = ClaimWriter(claim_book, ledger, claim_status, journal.reader, clock)
    who_preempts = PreemptionMode.by_setting(settings.preemption)
    placement = PlacementSettings(
        dialects=dialects,
        hold_ttl_s=settings.hold_ttl_s,
        bind_timeout_s=settings.bind_answer_s,
        nodes_offered=settings.nodes_offered,
        who_preempts=who_preempts,
        claims=claim_book if settings.resource_claims else None,
    )
    release_times = ReleaseTimes(settings.release_delay_s, settings.longest_release_s)
    agents, lives = AgentPods(), PodLifecycles(clock=clock)
    deadlines, ends = Deadlines(clock=clock, least_s=settings.preemption_timeout_s), TerminationReports(agents)
    starts = StuckKubelets(ledger=ledger, reader=store, clock=clock, timeout_s=settings.start_timeout_s)
    waiting = WaitingPods(ledger=ledger, chooser=chooser, store=store, counts=counts, clock=clock, is_active=is_active)
    releaser = PodReleaser(
        ledger=ledger,
        journal=journal,
        store=store,
        counts=counts,
        read_request=placement.request,
        departures=ReleaseDeadlines(ends=ends, times=release_times, clock=clock),
        deadlines=deadlines,
        clock=clock,
        is_active=is_active,
        trail=trail,
        claim_ends=ClaimEnds(store, ledger, claim_status),
    )
    turns = DevicePluginQueue(
        ledger=ledger,
        dialects=dialects,
        store=store,
        counts=counts,
        timeout_s=settings.plugin_timeout_s,
        clock=clock,
        is_active=is_active,
    )
    pod_groups = PodGroups(counts)
    members = Members(placement.request, pod_groups)
    mates, leavers = EvictedTogether(members, ledger, lives), ChosenVictims()
    failures = BindFailures(clock)
    next_try_s = settings.extender_timeout_s + COME_S
    kept_places = KeptPlaces(ledger, lives, settings.gang_replacement_s, next_try_s, clock)
    plans = GangPlans(ledger, chooser, kept_places, failures.avoided, settings.gather_s, next_try_s, clock)
    waker = GangRequeuer(ledger, waiting, clock, is_active)
    gangs = Gangs(ledger, members, plans, kept_places, waker, waiting.refused, settings.gather_s, clock)
    follow_gangs(gangs, members, trail, counts, clock, is_active)
    gang_trials = GangTrials(ledger, gangs, members, kept_places, clock)
    quotas = NamespaceQuotas(ledger.quotas, dialects, counts)
    queues = connect_queues(
        ledger, chooser, waiting, placement.request, store, claim_book, settings, counts, clock, is_active
    )
    accounts.on_more.append(waiting.more_evaluated)
    accounts.on_more.append(lambda account: queues.check.may_have_more(account.namespace))
    ahead = AheadNominator(
        ledger=ledger,
        chooser=chooser,
        store=store,
        settings=placement,
        least_nodes=settings.nominate_ahead_nodes if settings.nodes_offered == 1 else 0,
        reservations=queues.reservations,
        counts=counts,
        clock=clock,
        is_active=is_active,
    )
    costly = CostlyQuestions(clock)
    binder = PodBinder(
        journal=journal,
        store=store,
        releaser=releaser,
        turns=turns,
        bind_timeout_s=settings.bind_answer_s,
        clock=clock,
        claims=claims,
        quota_fence=QuotaFence(ledger, cards_watched),
    )
    placer = PodPlacer(
        ledger=ledger,
        chooser=chooser,
        binder=binder,
        store=store,
        releaser=releaser,
        waiting=waiting,
        turns=turns,
        settings=placement,
        counts=counts,
        clock=clock,
        trail=trail,
        gangs=gangs,
        failures=failures,
        quota_gate=QuotaGate(ledger, chooser, settings.nodes_offered),
        reservations=queues.reservations,
        claims=claims,
        claim_waker=ClaimRequeuer(claim_book, claim_pod_waker, is_active),
        ahead=ahead,
        costly=costly,
    )
    carrier = PreemptionExecutor(
        ledger=ledger,
        journal=journal,
        store=store,
        waiting=waiting,
        lives=lives,
        leavers=leavers,
        gang_rooms=GangRooms(members, ledger, waker),
        event_recorder=events,
        counts=counts,
        despite_budgets=settings.preempt_despite_budgets,
        deadlines=deadlines,
        is_binding=placer.is_binding,
        clock=clock,
        is_active=is_active,
        trail=trail,
    )
    claimer = RoomClaimer(
        ledger=ledger,
        journal=journal,
        store=store,
        lives=lives,
        clock=clock,
        timeout_s=settings.preemption_timeout_s,
    )
    finder = VictimFinder(
        ledger=ledger,
        policy=policy,
        lives=lives,
        mates=mates,
        leavers=leavers,
        stays=lambda uid: queues.check.leaves_with_workload(uid) or claim_book.shares_with_others(uid),
        reader=store,
        clock=clock,
    )
    beginnings = Beginnings(ledger, claimer, carrier, leavers, events, counts)
    preemption_settings = PreemptionSettings(who_preempts, settings.preempt_despite_budgets)
    preemption = Preemption(
        ledger=ledger,
        waiting=waiting,
        finder=finder,
        carrier=carrier,
        beginnings=beginnings,
        mates=mates,
        event_recorder=events,
        counts=counts,
        settings=preemption_settings,
        read_request=placement.request,
        clock=clock,
        is_active=is_active,
    )
    lookalikes = SimilarMembers(members)
    gang_preemption = GangPreemption(
        ledger=ledger,
        members=members,
        gangs=gangs,
        kept_places=kept_places,
        waiting=waiting,
        finder=GangVictimFinder(finder, ledger, store, clock),
        carrier=carrier,
        beginnings=beginnings,
        lookalikes=lookalikes,
        single=preemption,
        event_recorder=events,
        counts=counts,
        settings=preemption_settings,
        clock=clock,
        is_active=is_active,
    )
    inventory = InventoryKeeper(
        ledger=ledger,
        journal=journal,
        store=store,
        counts=counts,
        event_recorder=events,
        agents=agents,
        starts=starts,
        is_active=is_active,
    )
    adopter = Adopter(
        ledger=ledger,
        journal=journal,
        store=store,
        read_facts=placement.facts,
        read_stranger=placement.stranger,
        adopt_pods=settings.adopt_pods,
        scheduler_names=settings.scheduler_names,
        release_times=release_times,
        is_active=is_active,
        trail=trail,
    )
    learner = DemandHistory(ledger, chooser, placement.request)
    explainer = PodExplainer(
        ledger=ledger,
        waiting=waiting,
        store=store,
        read_request=placement.request,
        read_warnings=placement.warnings,
        read_words=placement.words,
        scheduler_names=settings.scheduler_names,
        held_pod=placer.held_pod,
        gangs=gang_trials,
        members=members,
        lives=lives,
        clock=clock,
    )
    workload_explainer = follow_up(queues, ledger, explainer, lives, placement.request, store, clock)
    refused_by_scheduler = RefusedByScheduler(placement.request)
    pod_condition_writer = PodConditionWriter(
        explainer=explainer,
        store=store,
        event_recorder=events,
        after_s=settings.tell_waiting_after_s,
        clock=clock,
        is_active=is_active,
    )
    host_tracker = HostTracker(ledger.hosts, placement.host, bool(dialects.elsewhere), settings.scheduler_names)
    observer = ClusterObserver(
        ledger=ledger,
        inventory=inventory,
        releaser=releaser,
        ends=ends,
        placer=placer,
        waiting=waiting,
        members=members,
        adopter=adopter,
        starts=starts,
        preemption=preemption,
        host_tracker=host_tracker,
        node_rules=queues.nodes,
        cards_watched=cards_watched,
        bound_trackers=(host_tracker, claim_book, turns, lives, learner, members, queues.pods, releaser, starts),
        pending_trackers=(
            claim_book,
            learner,
            members,
            pod_condition_writer,
            placer,
            preemption,
            lookalikes,
            PodWarner(placement.warnings, events, counts, is_active),
            quotas,
            queues.pods,
            queues.reservations,
            refused_by_scheduler,
            ahead,
            costly,
        ),
        reader=store,
        read_request=placement.request,
        dialects=dialects,
        scheduler_names=settings.scheduler_names,
        counts=counts,
    )
    return wired(
        Workflows(
            ledger=ledger,
            counts=counts,
            leadership=leadership,
            trail=trail,
            chooser=chooser,
            journal=journal,
            claim_book=claim_book,
            claim_pod_waker=claim_pod_waker,
            agents=agents,
            starts=starts,
            ends=ends,
            releaser=releaser,
            turns=turns,
            waiting=waiting,
            placer=placer,
            ahead=ahead,
            gangs=gangs,
            members=members,
            kept_places=kept_places,
            pod_groups=pod_groups,
            gang_trials=gang_trials,
            gang_reporter=GangReporter(ledger, members, gang_trials, explainer),
            lives=lives,
            carrier=carrier,
            preemption=preemption,
            gang_preemption=gang_preemption,
            who_preempts=who_preempts,
            inventory=inventory,
            adopter=adopter,
            learner=learner,
            observer=observer,
            explainer=explainer,
            pod_condition_writer=pod_condition_writer,
            why_waiting=WhyWaiting(ledger, chooser, waiting, members, refused_by_scheduler, queues.pods.queue_of),
            unlinked=NodesWithoutTopology(ledger, policy),
            quotas=quotas,
            queues=queues,
            workload_explainer=workload_explainer,
            quota_status=QuotaStatusWriter(ledger.quotas, quotas, store, lambda: observer.synced and is_active()),
            room_has_changed=asyncio.Event(),
        )
    )
