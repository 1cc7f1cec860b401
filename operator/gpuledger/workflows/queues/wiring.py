"""The parts that deal with Kueue, connected, and watches of its objects, as long as the API server has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.watch import Api, Listing, all_of, follow
from gpuledger.kube_api.writes import WORKLOADS, KubeStore
from gpuledger.ledger.book import Ledger
from gpuledger.model.clock import Clock
from gpuledger.model.errors import ApiError, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.request import PodRequest
from gpuledger.placement.choose import Chooser
from gpuledger.placement.group import GangPlanner
from gpuledger.workflows.counts import Counts
from gpuledger.workflows.list_and_watch import served_path
from gpuledger.workflows.pending.explain_pod import PodExplainer
from gpuledger.workflows.pending.requeue import WorkloadRequeuer
from gpuledger.workflows.pending.waiting_pods import WaitingPods
from gpuledger.workflows.preemption.pod_lifecycles import PodLifecycles
from gpuledger.workflows.queues.card_check import CardCheck, CheckWriter
from gpuledger.workflows.queues.reclaim import CheckMessages, Reclaimer, WorkloadExplainer
from gpuledger.workflows.queues.reservations import Reservations
from gpuledger.workflows.queues.workloads import KueueObjects, NodesByRules, SeatReader, WorkloadPods
from gpuledger.workflows.resource_claims.claims import ClaimBook, Kind


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


logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks whether Kueue is installed by now."""

LISTS_WAIT_S = 10.0
"""Workloads are read after what says which of them are ours, unless that takes longer."""


async def follow_queues(
    api: Api, store: KubeStore, objects: KueueObjects, check: CardCheck, listed: asyncio.Event
) -> None:
    """Follow them until cancelled. `listed` is set when all were read once, or there are none."""
    while True:
        try:
            await served_path(api, [WORKLOADS])
        except ApiError as error:
            if not isinstance(error, NotFound):
                logger.warning("Kueue's workloads can't be listed, retrying: %s", error)
            listed.set()
            await asyncio.sleep(LOOK_S)
            continue
        logger.info("Kueue is installed: following its workloads")
        async with asyncio.TaskGroup() as kinds, AsyncExitStack() as listening:
            changed = asyncio.Event()
            objects.on_change.append(changed.set)
            listening.callback(objects.on_change.remove, changed.set)
            active = kinds.create_task(_keep_active(store, objects, changed), name="say that checks are active")
            known, others = list[asyncio.Event](), list[asyncio.Task[None]]()
            for path, observe, listing in objects.followed():
                known.append(asyncio.Event())
                steps = follow(api, path, {}, observe, _listing(listing, known[-1]), while_served=True)
                others.append(kinds.create_task(steps))
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTS_WAIT_S):
                    for each in known:
                        await each.wait()
            await follow(api, WORKLOADS, {}, check.observe, _listing(check.listing, listed), while_served=True)
            for task in (active, *others):
                task.cancel()
        check.listing()(set())  # Kueue is gone, and its workloads with it


async def _keep_active(store: KubeStore, objects: KueueObjects, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await objects.report_active(store)


def _listing(listing: Listing, done: asyncio.Event) -> Listing:
    """Return the same, which sets an event when a list was read."""
    return partial(all_of, listing, lambda: lambda _: done.set())
