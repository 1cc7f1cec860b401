"""The parts of the operator, how they are connected, and what each of them runs and serves.

Options are those of `gpuledger run`, or the same as variables of the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpuledger.configuration.dialects import dialects_of
from gpuledger.configuration.files import config_maps, settings_before_cluster
from gpuledger.configuration.settings import Settings
from gpuledger.controller.extender_server import ExtenderServer, SchedulerHealth, extender_secret
from gpuledger.controller.history import History, RecordStreams, Replicas
from gpuledger.controller.kopf_session import ListsRead
from gpuledger.controller.scheduler_connection import served
from gpuledger.controller.scheduler_pipe import given_through, scheduler_config_text
from gpuledger.controller.telemetry.metrics import GcTuning, Measured, Metrics
from gpuledger.controller.web.feed import LedgerSource, operators_source
from gpuledger.controller.web.view_server import DeveloperServer, ViewServer, access_for
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import KubeReads, KubeReviews, followed_pods
from gpuledger.kube_api.watch import all_of
from gpuledger.kube_api.writes import KubeStore
from gpuledger.ledger.entry import CardEntry
from gpuledger.model.clock import Clock
from gpuledger.model.errors import BadInput, Conflict, Unreachable
from gpuledger.serving import Limits, application_served
from gpuledger.workflows.context import Context
from gpuledger.workflows.journal.journal import GATHER_S
from gpuledger.workflows.kinds import (
    AGENT_PODS,
    AUDITS,
    CARDS,
    LEASE,
    NODES,
    OPERATOR_PODS,
    PODS,
    QUOTAS,
    RESERVATIONS,
    STAND_INS,
    Subscription,
    Watcher,
    follow_kind,
)
from gpuledger.workflows.leadership import Leadership
from gpuledger.workflows.list_and_watch import until_settings_differ
from gpuledger.workflows.preemption.preempt import SETTLE_S
from gpuledger.workflows.queues.card_check import keep_checks_active, queue_subscriptions
from gpuledger.workflows.reporting import EventRecorder
from gpuledger.workflows.tasks import started_again, wait_first, yield_to_loop
from gpuledger.workflows.wiring import Workflows, connect

BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""As the command line reads variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options beside the settings."""

    settings: Settings
    """Before the cluster was asked: of ConfigMaps that they name, only the names."""
    settings_file: Path | None = None
    """Where they are from."""
    kubeconfig: str | None = None
    """How to reach the API server: files, parted by colons; None: as the pod's service account."""
    context: str | None = None
    """Which context of these files; None: the current one."""
    host_name: str | None = None
    """Write only while the kube-scheduler of this host holds the schedulers' Lease; None: always."""
    scheduler_pipe: Path | None = None
    """Named pipe through which that kube-scheduler gets its configuration."""
    extender_secret: Path | None = None
    """File with the secret by which the extender recognizes kube-scheduler; None: it answers every client."""
    history: Path | None = None
    """Directory from which the next process goes on with the history; None: it can't."""
    replica_token: Path | None = None
    """File with the token by which the other replicas give it their history; None: they are not asked."""


def followed_host_name(leader_elect: bool, host_name: str | None) -> str | None:
    """Return the host whose kube-scheduler is followed: the given one, or else this one."""
    return (host_name or socket.gethostname()) if leader_elect else None


def options_from(environment: Mapping[str, str]) -> RunOptions:
    """Return the options of the environment, by the names under which `gpuledger run` reads them. Raises BadInput."""
    leader_elect = BOOLEANS.get(environment.get("GPULEDGER_LEADER_ELECT", "true").lower())
    if leader_elect is None:
        raise BadInput("GPULEDGER_LEADER_ELECT: must be true or false")
    file = _path(environment, "GPULEDGER_SETTINGS")
    return RunOptions(
        settings=settings_before_cluster(file),
        settings_file=file,
        kubeconfig=environment.get("KUBECONFIG") or None,
        host_name=followed_host_name(leader_elect, environment.get("GPULEDGER_HOST")),
        scheduler_pipe=_path(environment, "GPULEDGER_SCHEDULER_CONFIG"),
        extender_secret=_path(environment, "GPULEDGER_EXTENDER_SECRET"),
        history=_path(environment, "GPULEDGER_HISTORY"),
        replica_token=_path(environment, "GPULEDGER_REPLICA_TOKEN"),
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The parts that run."""

    client: KubeClient
    settings: Settings
    clock: Clock
    workflows: Workflows
    lists: ListsRead
    subscriptions: Sequence[Subscription]
    view_source: LedgerSource
    gc_tuning: GcTuning
    server: ExtenderServer
    history: History


def subscriptions_of(
    workflows: Workflows, settings: Settings, lists: ListsRead, host_name: str | None, pods_by: Watcher
) -> list[Subscription]:
    """Return who follows each kind, by Kopf or by the plain watch; with a host name, the Lease, too.

    Pods have one watch, from the first time that they are seen waiting to their end. The plain watches of cards and
    pods begin where the observer has read their first lists.
    """
    observer = workflows.observer
    pods = replace(PODS, fields=followed_pods(observer.follows_all), watcher=pods_by)
    pods_listing = partial(all_of, observer.pending_listing, lists.listing)
    cards_listing = partial(all_of, workflows.context.cards_watched.listing, lists.listing)
    found = [
        Subscription(NODES, observer.node),
        Subscription(pods, observer.any_pod, pods_listing, observer.first_pods.version),
        Subscription(CARDS, observer.allocation, cards_listing, observer.first_cards.version),
        Subscription(AGENT_PODS, workflows.agents.observe, workflows.agents.listing),
        Subscription(QUOTAS, workflows.quotas.observe, workflows.quotas.listing),
        Subscription(STAND_INS, workflows.growth.stand_ins.observe, workflows.growth.stand_ins.listing),
        Subscription(AUDITS, workflows.audits.observe, workflows.audits.listing),
        *workflows.gangs.pod_groups.subscriptions(workflows.gangs.members.names),
    ]
    if host_name is not None:
        found.append(Subscription(LEASE, workflows.context.leadership.observe))
    if settings.kueue:
        found += queue_subscriptions(workflows.queues.objects, workflows.queues.check)
    if settings.reservations:
        book = workflows.reservations.book
        found.append(Subscription(RESERVATIONS, book.observe, book.listing))
    if settings.resource_claims:
        found += workflows.claims.book.subscriptions.values()
    return found


def build_operator(
    client: KubeClient,
    settings: Settings,
    clock: Clock,
    host_name: str | None = None,
    replica_token: Path | None = None,
    pods_by: Watcher = Watcher.PLAIN,
) -> Operator:
    """Connect the parts. Nothing runs yet. With a host name, follow the Lease of the kube-scheduler there.

    With a token as well, follow the other replicas.
    """
    store = KubeStore(client)
    events, leadership = EventRecorder(store, clock), Leadership(host_name)
    context = Context(store, settings, dialects_of(settings), events, leadership, clock, GATHER_S)
    workflows = connect(context)
    metrics = Metrics(
        _measured(workflows),
        per_card=settings.metrics_per_card,
        per_pod=settings.metrics_per_pod,
        compatibility=settings.metrics_compatibility,
    )
    replicas = None
    if host_name is not None and replica_token is not None:
        replicas = Replicas(host_name, replica_token, clock, context.counts, settings.trail_kept)
    history, view_source = History(context, replicas), operators_source(workflows)
    workflows.context.ledger.on_stored.append(view_source.note)
    workflows.context.ledger.on_described.append(partial(_cordoned, context))
    workflows.gangs.members.on_joined.append(view_source.note_pod)
    server = ExtenderServer(
        placer=workflows.placer,
        preemption=workflows.preemption.for_scheduler,
        metrics=metrics,
        counts=workflows.context.counts,
        is_ready=lambda: workflows.observer.synced,
        scheduler=SchedulerHealth(settings.scheduler_livez_url),
        is_settled=lambda: history.is_settled,
    )
    lists = ListsRead([NODES.plural, PODS.plural] if pods_by is Watcher.KOPF else [NODES.plural])
    workflows.context.journal.reader.on_older.append(lists.again.set)  # a comparison with full lists finds out the rest
    subscriptions = subscriptions_of(workflows, settings, lists, host_name, pods_by)
    if replicas is not None:
        subscriptions.append(Subscription(OPERATOR_PODS, replicas.observe, replicas.listing, listed=replicas.listed))
    return Operator(
        client=client,
        settings=settings,
        clock=clock,
        workflows=workflows,
        lists=lists,
        subscriptions=subscriptions,
        view_source=view_source,
        gc_tuning=GcTuning(metrics.garbage_seconds.observe),
        server=server,
        history=history,
    )


def _measured(workflows: Workflows) -> Measured:
    """Return what the metrics are about."""
    return Measured(
        workflows.context.ledger,
        workflows.context.chooser,
        workflows.context.counts,
        workflows.context.journal.counts,
        workflows.waiting,
        workflows.adopter,
        workflows.unlinked,
        is_active=workflows.context.leadership.is_active,
        is_synced=lambda: workflows.observer.synced,
        pending=workflows.why_waiting.reports,
        audits=workflows.audits,
        cards_held=lambda: len(workflows.failures.held),
        today=workflows.accounting.accounts.today,
        budgets=workflows.accounting.budgets.all,
        idle=workflows.accounting.idle.idle_now,
        members=workflows.gangs.members,
        workloads_by_state=workflows.queues.check.by_state,
        nodes_asked_for=workflows.growth.nodes.counts,
    )


def _cordoned(context: Context, entry: CardEntry, before: str) -> None:
    """Have it recorded once that a person has cordoned a card: all replicas see it."""
    if context.leadership.is_active():
        context.trail.cordoned(entry, before)


OPEN_TO_ALL = Limits(connections_per_s=50, requests_per_s=100)
"""Of ports that users may reach. Some 3 % of a core, whatever they send."""

START_PAUSE_S = 1.0

PAUSE_TO_WORK = 3.0
"""How long the search for victims pauses, by how long it took."""


async def serve(operator: Operator, options: RunOptions, started: contextlib.AsyncExitStack) -> None:
    """Open the operator's ports, and what else has an end: `started` brings it about, last things first."""
    settings = options.settings
    operator.gc_tuning.start()
    operator.workflows.observer.on_compared.append(partial(_after_comparing, operator))
    health = application_served(operator.server.health(), settings.health_host, settings.health_port)
    await started.enter_async_context(health)
    secret = extender_secret(options.extender_secret)
    questions = operator.server.questions()
    await started.enter_async_context(served(questions, settings.listen_host, settings.listen_port, secret))
    logger.info("extender at %s", settings.extender_url)
    if not secret:
        logger.warning("without --extender-secret, whoever reaches that port can bind pods")
    if options.scheduler_pipe is not None:
        content = scheduler_config_text(settings, options.host_name is not None, secret)
        pipe = await started.enter_async_context(given_through(options.scheduler_pipe, content))
        operator.server.scheduler.has_old_configuration = lambda: pipe.is_outdated
    if settings.view_port:
        access = access_for(settings.view_host, KubeReviews(operator.client))
        view = ViewServer(operator.view_source, access)
        page = application_served(view.application(), settings.view_host, settings.view_port, OPEN_TO_ALL)
        await started.enter_async_context(page)
        logger.info("page at http://%s:%d", settings.view_host, settings.view_port)
    streams = None
    if settings.explain_port:
        developers = DeveloperServer(operator.view_source, KubeReviews(operator.client))
        questions_of_users = developers.application()
        streams = RecordStreams(operator.workflows.context.trail, KubeReviews(operator.client))
        streams.add_to(questions_of_users)
        explain = application_served(questions_of_users, settings.health_host, settings.explain_port, OPEN_TO_ALL)
        await started.enter_async_context(explain)
    started.push_async_callback(operator.workflows.stop)
    started.enter_context(operator.history.written(options.history, streams))


Part = tuple[str, Callable[[], Awaitable[None]]]
"""What runs until the operator ends, with its name."""


async def run_parts(operator: Operator, options: RunOptions) -> None:
    """Run until cancelled, or until a ConfigMap changes the settings. A part that fails is started again.

    Raises StateRolledBack when nothing that is remembered can be trusted.
    """
    await wait_first(*(started_again(name, part, operator.clock) for name, part in parts_of(operator, options)))


def parts_of(operator: Operator, options: RunOptions) -> list[Part]:
    """Return the parts that run side by side. Several may follow one path, each what its selector leaves."""
    client, workflows, settings = operator.client, operator.workflows, options.settings
    parts: list[Part] = [
        (f"follow {each.kind}", partial(follow_kind, client, each))
        for each in operator.subscriptions
        if each.kind.watcher is not Watcher.KOPF
    ]
    parts += [
        ("keep in sync", partial(_keep_in_sync, operator)),
        ("give room", partial(_give_room, operator)),
        ("preempt", partial(_preempt, operator)),
        ("history", partial(operator.history.run, options.host_name or socket.gethostname())),
        ("ask for nodes", partial(workflows.growth.nodes.run, workflows.may_write)),
    ]
    if settings.kueue:
        parts.append(("keep checks active", partial(keep_checks_active, KubeStore(client), workflows.queues.objects)))
    if settings.resource_claims:
        parts.append(("read what pods name", workflows.claims.book.read_what_pods_name))
    if config_maps(settings):
        parts.append(("follow settings", partial(_until_settings_change, operator, options)))
    return parts


async def _keep_in_sync(operator: Operator) -> None:
    """Read everything once, at the start and whenever this operator becomes active; then compare now and then.

    What Kopf watches is read after the list from which it watches; other cards and pods are watched from the lists that
    are read here. So no change in between goes unseen.
    """
    workflows = operator.workflows
    await operator.lists.first.wait()
    for each in operator.subscriptions:
        if each.wanted is None or each.wanted.is_set():
            await _for_a_while(each.kind.start_wait_s, each.listed.wait())
    if operator.settings.preemption == "auto":
        await _until_it_works(lambda: _find_out_who_preempts(operator))
    while True:
        if not workflows.context.leadership.is_active():
            await _until_it_works(workflows.observer.resync)
            logger.info("the ledger is read; ready to take over")
            comparing = workflows.observer.resync_every(None, operator.lists.again)
            await wait_first(workflows.context.leadership.wait_active(), comparing)
        await _until_it_works(workflows.observer.take_over)
        workflows.context.room_has_changed.set()  # for those who wait since before
        workflows.accounting.quota_status.look_again()
        logger.info("the ledger is read; ready")
        interval_s = operator.settings.resync_interval_s
        comparing = workflows.observer.resync_every(interval_s, operator.lists.again)
        await wait_first(workflows.context.leadership.wait_passive(), comparing)


async def _find_out_who_preempts(operator: Operator) -> None:
    workflows = operator.workflows
    version = await KubeReads(operator.client).server_version()
    workflows.context.preemption_mode.know(version)
    who = (
        "kube-scheduler, which calls the extender"
        if workflows.context.preemption_mode.scheduler
        else "the operator itself"
    )
    logger.info("Kubernetes %d.%d: preemption is done by %s", *version, who)


async def _for_a_while(timeout_s: float, what: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await what


async def _until_it_works(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
            return
        except (Unreachable, Conflict) as error:  # no answer, or a list that has expired between two of its pages
            logger.warning("the ledger can't be read yet, retrying: %s", error)
            await asyncio.sleep(START_PAUSE_S)


async def _until_settings_change(operator: Operator, options: RunOptions) -> None:
    """Follow the ConfigMaps that the settings name, until one makes other settings of them."""
    count_refused = operator.workflows.context.counts.bad_input.labels("config").inc

    def differ(found: Settings) -> bool:
        dialects_of(found)
        return found != options.settings

    await until_settings_differ(operator.client, options.settings, options.settings_file, differ, count_refused)


async def _give_room(operator: Operator) -> None:
    """Give room to waiting pods as soon as there is some: something has changed, or a hold has expired.

    A new hold is a change, too: the next expiry is then looked up again. In a cluster at rest nothing runs.
    """
    workflows, room_has_changed = operator.workflows, operator.workflows.context.room_has_changed
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(workflows.placer.next_expiry_s()):
                await room_has_changed.wait()
        room_has_changed.clear()
        workflows.placer.expire_holds()
        if workflows.observer.synced and workflows.context.leadership.is_active():
            begin_s = operator.clock.work_s()
            is_more = await workflows.queue.give_room()
            workflows.preemption.room_has_changed()
            if workflows.context.chooser.look_further() or is_more:
                room_has_changed.set()
                await yield_to_loop(begin_s, operator.clock)  # requests that come meanwhile go first


async def _preempt(operator: Operator) -> None:
    """Look for victims when a pod may need some. In a cluster at rest nothing runs, and in a busy one others do."""
    workflows = operator.workflows
    took_s = 0.0
    while True:
        await workflows.preemption.wanted.wait()
        await asyncio.sleep(max(SETTLE_S, PAUSE_TO_WORK * took_s))
        begin_s = operator.clock.now_s()
        workflows.preemption.wanted.clear()
        if workflows.observer.synced and workflows.context.leadership.is_active():
            await workflows.preemption.decide()
        took_s = operator.clock.now_s() - begin_s


def _after_comparing(operator: Operator) -> None:
    operator.gc_tuning.settle()
    if operator.workflows.context.leadership.is_active():
        operator.workflows.unlinked.log_new()
